"""One key that is slow, others that fail: 10,000 records of which nobody else's is late."""

import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.harness.evidence import Evidence, gather
from tests.harness.kafka import New, Writer
from tests.harness.ledgers import Invocation, by_position
from tests.harness.service import service

Topic = Callable[..., str]

# By its number a record fails up to three times: at random, and at the next start the same.
POISON = """
import time
import zlib
from tests.harness.recorded import recorded

@recorded
def handle(message):
    if message.key == b"slow":
        time.sleep(2)
    elif message.key.startswith(b"failing"):
        if message.attempt <= zlib.crc32(message.value) % 8 - 4:
            raise ConnectionError("not now")
    return message.value
"""
RECORDS = 10_000
SLOW = 3  # records of the slow key, in a partition among others
FAILING_KEYS, FAILING_EVERY = 12, 20
SILENCE_S = 1.0  # of the others at most, while there are any: half of what the slow one takes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic) -> Evidence:
    """The others are written when the slow key's first handler has begun."""
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
    writer.write(source, records[:SLOW])
    with service(
        folder / "service", bootstrap, [source], handlers=POISON, settings=settings
    ) as poisoned:
        poisoned.serve()
        poisoned.handled(1)
        writer.write(source, records[SLOW:])
        poisoned.caught_up()
        assert poisoned.stop() == 0
    return gather(poisoned, writer.acked, results)


def key_of(number: int) -> bytes:
    if number < SLOW:
        return b"slow"
    if number % FAILING_EVERY == 0:
        return b"failing-%d" % (number // FAILING_EVERY % FAILING_KEYS)
    return b"key-%d" % (number % 500)


def test_a_key_whose_handler_takes_two_seconds_delays_no_other(run: Evidence) -> None:
    """P4: six seconds of one key; the others pass it as if it were not there."""
    slow = of_keys(run, b"slow")
    others = of_keys(run, b"key-")
    assert (len(slow), len(others)) == (SLOW, RECORDS - SLOW - failing())
    assert all((run.end_ns or 0) - run.start_ns >= 2e9 for run in slow)
    ends = sorted(run.end_ns or 0 for run in others)
    print("the others took", (ends[-1] - slow[0].start_ns) / 1e9, f"s of the slow key's {2 * SLOW}")
    assert others[0].start_ns > slow[0].start_ns
    assert ends[-1] < slow[-1].start_ns
    silences = [(after - before) / 1e9 for before, after in pairwise(ends)]
    assert max(silences) < SILENCE_S


def test_held_keys_keep_their_order_through_every_failure(run: Evidence) -> None:
    """P3, record by record: none begins before the one ahead of it has returned."""
    runs = of_keys(run, b"failing-")
    failures = {n: max(0, zlib.crc32(b"%d" % n) % 8 - 4) for n in range(SLOW, RECORDS)}
    expected = [failures[n] for n in range(SLOW, RECORDS) if n % FAILING_EVERY == 0]
    attempts = [len(of_record) - 1 for of_record in by_position(runs).values()]
    assert sorted(attempts) == sorted(expected)
    assert sum(run.raised for run in runs) == sum(expected) > 300
    # "out of order" is among what is looked for, and so is every loss and every early commit.
    assert (run.contradictions(), run.repeated) == ({}, [])


def of_keys(found: Evidence, prefix: bytes) -> list[Invocation]:
    return [run for run in found.runs if bytes.fromhex(run.key).startswith(prefix)]


def failing() -> int:
    return sum(key_of(number).startswith(b"failing") for number in range(RECORDS))
