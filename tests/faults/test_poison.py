"""One key that is stuck, others that fail: 10,000 records, none of which waits for another's."""

import zlib
from collections.abc import Callable

import pytest

from tests.support.evidence import Evidence, gather
from tests.support.kafka import New, Writer
from tests.support.ledgers import Invocation, by_position
from tests.support.service import service

Topic = Callable[..., str]

# By its number a record fails up to three times: at random, and at the next start the same.
POISON = """
import time
import zlib
from pathlib import Path
from tests.support.recorded import recorded

RELEASED = Path(__file__).with_name("released")

@recorded
def handle(message):
    while message.key == b"stuck" and not RELEASED.exists():
        time.sleep(0.02)
    if message.key.startswith(b"failing"):
        if message.attempt <= zlib.crc32(message.value) % 8 - 4:
            raise ConnectionError("not now")
    return message.value
"""
RECORDS = 10_000
STUCK = 3  # records of the stuck key, in a partition among others
FAILING_KEYS, FAILING_EVERY = 12, 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic) -> Evidence:
    """The stuck key is released when every other record is done, and not before."""
    folder = tmp_path_factory.mktemp("poison")
    source = topic("proof", partitions=4)
    results = topic("proof-results", message_timestamp_type="LogAppendTime")
    settings = {
        "workers": {"processes": 2, "threads": 4},
        "delivery": {"results": results},
        "retry": {"mode": "hold", "delays": ["50ms", "100ms", "150ms"]},
    }
    records = [New(f"{n}", b"%d" % n, key_of(n)) for n in range(RECORDS)]
    writer = Writer(bootstrap, folder / "produced")
    writer.write(source, records[:STUCK])
    with service(
        folder / "service", bootstrap, [source], handlers=POISON, settings=settings
    ) as poisoned:
        poisoned.serve()
        poisoned.handled(1)
        writer.write(source, records[STUCK:])
        others = RECORDS - STUCK
        poisoned.until(lambda: poisoned.counter("done") == others, "the others are done", 120)
        (poisoned.folder / "released").touch()
        poisoned.caught_up()
        assert poisoned.stop() == 0
    return gather(poisoned, writer.acked, results)


def key_of(number: int) -> bytes:
    if number < STUCK:
        return b"stuck"
    if number % FAILING_EVERY == 0:
        return b"failing-%d" % (number // FAILING_EVERY % FAILING_KEYS)
    return b"key-%d" % (number % 500)


def test_a_key_that_is_stuck_delays_no_other(run: Evidence) -> None:
    """The other keys pass it, and are counted as done, as if it were not there."""
    stuck = of_keys(run, b"stuck")
    others = [each for each in run.runs if each not in stuck]
    assert (len(stuck), len({each.position for each in others})) == (STUCK, RECORDS - STUCK)
    released_ns = stuck[0].end_ns or 0
    assert max(each.end_ns or 0 for each in others) < released_ns <= stuck[1].start_ns


def test_held_keys_keep_their_order_through_every_failure(run: Evidence) -> None:
    """No record begins before the one ahead of it has returned."""
    runs = of_keys(run, b"failing-")
    failures = {n: max(0, zlib.crc32(b"%d" % n) % 8 - 4) for n in range(STUCK, RECORDS)}
    expected = [failures[n] for n in range(STUCK, RECORDS) if n % FAILING_EVERY == 0]
    attempts = [len(of_record) - 1 for of_record in by_position(runs).values()]
    assert sorted(attempts) == sorted(expected)
    assert sum(run.raised for run in runs) == sum(expected) > 300
    # "out of order" is among what is looked for, and so is every loss and every early commit.
    assert (run.contradictions(), run.repeated) == ({}, [])


def of_keys(found: Evidence, prefix: bytes) -> list[Invocation]:
    return [run for run in found.runs if bytes.fromhex(run.key).startswith(prefix)]
