"""What is in dead letters: the record byte for byte, and nothing that a retention would erase."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kworker.core.message import Headers
from tests.support.kafka import New, Raw, Read, Writer, create_topic, messages_of, read_all, starts
from tests.support.ledgers import Invocation, Position, Produced, invocations, now_ns
from tests.support.service import service
from tests.support.waiting import eventually, repeated

HANDLERS = """
from kworker import Reject
from tests.support.recorded import recorded

@recorded
def refuse(message):
    raise Reject(f"not an order: {message.json()}")

@recorded
def fail(message):
    raise ConnectionError("not now")

@recorded
def handle(message):
    return {"text": "x" * 2_000_000} if message.value == b"large" else message.value
"""
BYTES_MAX = 1_048_588  # the broker's default
DAYS_MS, HOURS_MS = 24 * 3_600_000, 3_600_000
MANY, PARTITIONS = 1_000, 4
RETRIED_AFTER = "6s"  # meanwhile a topic is made, and the retention check runs
# Hostile keys, values and headers, and what kworker itself might take for its own.
CORPUS: dict[str, tuple[bytes | None, bytes | None, Headers]] = {
    "null key and value": (None, None, ()),
    "null value": (b"k", None, ()),
    "empty key and value": (b"", b"", ()),
    "invalid UTF-8": (b"\xff\xfe", b'{"a": "\xff\xc0"}', (("h\u00e9", b"\xff\x00\xfe"),)),
    "deep nesting": (b"k", b"[" * 100_000 + b"]" * 100_000, ()),
    "NaN": (b"k", b'{"a": NaN, "b": -Infinity}', ()),
    "huge integers": (b"k", b'{"a": %b}' % (b"9" * 5_000), ()),
    "5,000 headers": (b"k", b"{}", tuple((f"h{n % 100}", b"%d" % n) for n in range(5_000))),
    "headers without a value or a name": (b"k", b"{}", (("a", None), ("a", b""), ("", b"x"))),
    "the user's own kworker headers": (
        b"k",
        b"{}",
        (
            ("kworker-source", b"other/0/0/0"),
            ("kworker-attempt", b"999"),
            ("kworker-in-source", b"twice"),
            ("kworker-", b""),
            ("kafka_dlt-original-topic", b"another framework's"),
            ("traceparent", b"00-1-2-3"),
        ),
    ),
}


class Run(NamedTuple):
    """One service, at its end, and all that it left behind."""

    corpus: dict[str, tuple[Position, New]]
    large: list[Produced]
    stamped: list[Produced]
    runs: list[Invocation]
    results: list[Read]
    letters: dict[Position, Raw]
    erased_ns: int  # when the retention check was seen to have run, before their second run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, strict: str) -> Run:
    folder = tmp_path_factory.mktemp("dead")
    corpus, large = (create_topic(strict, name, PARTITIONS) for name in ("corpus", "large"))
    stamped = create_topic(strict, "stamped", 1, **STAMPS)
    settings = {
        "workers": {"processes": 2, "threads": 4},
        "handlers": {corpus: "handlers:refuse", stamped: "handlers:fail"},
        "retry": {"delays": [RETRIED_AFTER]},
    }
    writer = Writer(strict, folder / "produced")
    wanted = dict(written(writer, corpus))
    thousand = writer.write(large, thousand_and_one_large())
    now_ms = int(time.time() * 1000)
    pairs: list[list[Produced]] = []
    with service(
        folder / "service", strict, [corpus, large, stamped], handlers=HANDLERS, settings=settings
    ) as failing:
        dead = f"{failing.name}.dead"
        failing.serve()

        def erased_while_they_wait(number: int) -> int:
            """When the retention check was seen to have run; 0 if their second run was before."""
            pairs.append(writer.write(stamped, stamps(now_ms)))
            retried = sum(map(len, pairs))
            eventually(lambda: failing.counter("retried") == retried, what="they wait")
            seen_ns = checked(strict, writer, f"control-{number}", now_ms)
            places = {record.position for record in pairs[-1]}
            runs = [run for run in invocations(failing.ledger) if run.position in places]
            return seen_ns if len(runs) == len(places) else 0

        erased_ns = repeated(erased_while_they_wait, bool, what="a check while they wait")
        failing.caught_up()
        dying = len(CORPUS) + 1 + 1 + sum(map(len, pairs))
        eventually(lambda: failing.counter("dead") == dying, what="all are dead")
        assert failing.stop() == 0
    checked(strict, writer, "control", now_ms)
    letters = [raw for n in range(PARTITIONS) for raw in messages_of(strict, dead, n)]
    by_source = {source_of(raw): raw for raw in letters}
    assert len(by_source) == len(letters) == dying
    return Run(
        wanted,
        thousand,
        pairs[-1],
        invocations(failing.ledger),
        read_all(strict, failing.results),
        by_source,
        erased_ns,
    )


# Everything may be written to it, and nothing is erased of it before it is read.
STAMPS = {"message_timestamp_after_max_ms": str(10 * DAYS_MS), "retention_ms": "-1"}


def written(writer: Writer, topic: str) -> Iterator[tuple[str, tuple[Position, New]]]:
    """The corpus, and a record as large as the topic takes."""
    for name, (key, value, headers) in CORPUS.items():
        new = New(name, value, key, 0, headers)
        [produced] = writer.write(topic, [new])
        yield name, (produced.position, new)
    for size in range(BYTES_MAX, 0, -1):
        new = New("at the limit", os.urandom(size), None, 0, (("kworker-a", b"a"),))
        if taken := writer.tried(topic, new):
            yield new.identity, (taken.position, new)
            return


def thousand_and_one_large() -> Iterator[New]:
    for n in range(MANY):
        value = b"large" if n == MANY // 2 else b"%d" % n
        yield New(f"{n}", value, b"key-%d" % (n % 50), n % PARTITIONS)


def stamps(now_ms: int) -> Iterator[New]:
    yield New("old", b"old", b"old", 0, time_ms=now_ms - 15 * DAYS_MS)
    yield New("new", b"new", b"new", 0, time_ms=now_ms + 2 * HOURS_MS)


def checked(bootstrap: str, writer: Writer, control: str, now_ms: int) -> int:
    """Waits until the retention check has run: a record of the same age, unprotected, is gone."""
    create_topic(bootstrap, control, 1)
    writer.write(control, [New("control", b"", None, 0, time_ms=now_ms - 15 * DAYS_MS)])
    eventually(lambda: starts(bootstrap, control) == {(control, 0): 1}, what="it is erased")
    return now_ns()


def source_of(letter: Raw) -> Position:
    topic, partition, offset, _ = dict(letter.headers())["kworker-source"].decode().split("/")
    return topic, int(partition), int(offset)


def users_headers(letter: Raw) -> list[tuple[str, bytes | None]]:
    """The user's headers: all but kworker's and the last two, under their own names again."""
    *carried, _, _ = letter.headers()
    mine = [pair for pair in carried if not is_kworkers(pair[0])]
    return [(name.replace("kworker-in-", "kworker-", 1), value) for name, value in mine]


def is_kworkers(name: str) -> bool:
    return name.startswith("kworker-") and not name.startswith("kworker-in-")


def told(letter: Raw, name: str) -> str:
    return dict(letter.headers())[f"kworker-{name}"].decode()


@pytest.mark.parametrize("name", [*CORPUS, "at the limit"])
def test_a_dead_letter_is_its_record_byte_for_byte(run: Run, name: str) -> None:
    """A record is handled or dead, whatever it holds, and a redrive returns it unchanged."""
    position, new = run.corpus[name]
    letter = run.letters[position]
    assert (letter.key(), letter.value()) == (new.key, new.value)
    assert users_headers(letter) == list(new.headers)
    assert told(letter, "reason") in ("rejected", "undecodable")
    assert [own for own, _ in letter.headers()[-2:]] == [
        "kafka_dlt-original-topic",
        "kafka_dlt-exception-fqcn",
    ]


def test_an_oversized_result_of_a_thousand_kills_only_its_source(run: Run) -> None:
    """One oversized record fails the whole batch that it is in, so it must not get there."""
    [source] = [record.position for record in run.large if record.identity == f"{MANY // 2}"]
    assert told(run.letters[source], "reason") == "unpublishable"
    assert run.letters[source].value() == b"large"
    ours = Counter(read.source for read in run.results if read.source[0] == "large")
    assert ours == dict.fromkeys({record.position for record in run.large} - {source}, 1)


def test_very_old_and_future_records_are_retried_and_die_alike(run: Run) -> None:
    """Kept with their own stamps they would be erased within the day, or be refused."""
    for record in run.stamped:
        runs = [each for each in run.runs if each.position == record.position]
        assert [each.attempt for each in runs] == [1, 2]
        assert runs[1].start_ns > run.erased_ns
        letter = run.letters[record.position]
        assert told(letter, "reason") == "exhausted"
        assert letter.value() == record.identity.encode()
        assert abs(letter.timestamp()[1] - time.time() * 1000) < HOURS_MS
    stamps = [int(told(run.letters[each.position], "source").split("/")[3]) for each in run.stamped]
    assert stamps[1] - stamps[0] == 15 * DAYS_MS + 2 * HOURS_MS
