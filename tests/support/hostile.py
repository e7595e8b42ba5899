"""Hostile records, made from a seed: whatever somebody may write into a service's topics."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.support.raw_writer import RawRecord

FORGED_FROM = 10**9
"""From this offset on a source position is forged, and each is so once."""
SOURCE_BYTES_MAX = 1_048_588  # the broker's default
OWN_BYTES_MAX = SOURCE_BYTES_MAX + 65_536  # of the service's own topics
_FRAME_BYTES = 300  # of a record alone in its batch, and of a mark
DAY_MS, MINUTE_MS = 86_400_000, 60_000
Header = tuple[bytes, bytes | None]
SOURCE, ATTEMPT, DUE = b"kworker-source", b"kworker-attempt", b"kworker-due"

NAMES = (
    b"",
    b"a",
    b"n" * 3_000,
    "h\u00e9".encode(),
    b"a\0b",
    b"traceparent",
    b"kworker-",
    b"kworker-source",
    b"kworker-attempt",
    b"kworker-due",
    b"kworker-reason",
    b"kworker-error",
    b"kworker-redriven",
    b"kworker-replay",
    b"kworker-in-source",
    b"kworker-in-",
    b"kafka_dlt-original-topic",
    b"kafka_dlt-exception-fqcn",
)
UNREADABLE = (b"caf\xe9", b"\xff", b"kworker-\x80", b"\xed\xa0\x80", b"\xc0\x80", b"a\xf5")
NUMBERS = (
    b"",
    b"0",
    b"1",
    b"-1",
    b"+1",
    b" 1",
    b"1_000",
    b"1.0",
    b"1e3",
    b"0x1",
    b"NaN",
    b"\xff",
    "\u0661".encode(),
    b"%d" % (2**31),
    b"%d" % (2**48),
    b"%d" % (2**63 - 1),
    b"%d" % (2**63),
    b"%d" % (2**64),
    b"-%d" % (2**63),
    b"9" * 5_000,
)
BEYOND = NUMBERS[NUMBERS.index(b"%d" % 2**48) :]
"""What no offset is."""


@dataclass(frozen=True)
class Topics:
    """Where a service reads and writes, and how many partitions each of them has."""

    source: str
    requeue: str
    delays: Sequence[str]
    dead: str
    results: str
    partitions: int


class Sent(NamedTuple):
    """A record, and where its end will say that it comes from, if that is known beforehand.

    `stays`: it is nobody's to handle.
    """

    record: RawRecord
    mark: bytes
    forged: str = ""
    stays: bool = False


class Hostile:
    """Makes them. Strangers bear a mark of their own, by which each is found again."""

    def __init__(self, seed: int, topics: Topics) -> None:
        self._random = random.Random(seed)
        self._topics = topics
        self._made = 0
        kinds: tuple[tuple[Callable[[], Sent], int], ...] = (
            (self._in_source, 70),
            (self._in_requeue, 12),
            (self._in_delay, 12),
            (self._in_dead, 3),
            (self._in_results, 3),
        )
        self._kinds = [kind for kind, _ in kinds]
        self._weights = [weight for _, weight in kinds]

    def records(self, count: int) -> Iterator[Sent]:
        for kind in self._random.choices(self._kinds, self._weights, k=count):
            self._made += 1
            yield kind()

    # -- where ------------------------------------------------------------------------

    def _in_source(self) -> Sent:
        rolled = self._random
        key, value = self._key(), self._value()
        record = RawRecord(
            self._topics.source, self._partition(), key, value, self._headers(), self._stamp()
        )
        if rolled.random() < 0.001:
            record = record._replace(value=self._as_large_as(SOURCE_BYTES_MAX, record))
        elif rolled.random() < 0.3 and value is not None and len(value) < 100:
            # As many different ends as there are handlers.
            record = record._replace(value=value + b"%d" % rolled.randrange(1_000))
        return Sent(record, b"")

    def _in_requeue(self) -> Sent:
        return self._stranger(self._topics.requeue, due=False)

    def _in_delay(self) -> Sent:
        return self._stranger(self._random.choice(self._topics.delays), due=True)

    def _in_dead(self) -> Sent:
        return self._staying(self._topics.dead)

    def _in_results(self) -> Sent:
        return self._staying(self._topics.results)

    def _stranger(self, topic: str, *, due: bool) -> Sent:
        rolled = self._random.random()
        headers, forged = self._headers(), ""
        if rolled < 0.3:
            forged = self._source()
            headers = [
                *(h for h in headers if not h[0].startswith(b"kworker-") or h[0][8:11] == b"in-"),
                (SOURCE, forged.encode()),
                (ATTEMPT, b"%d" % self._random.randint(1, 4)),
            ]
            if due:
                due_ms = int(time.time() * 1000) + self._random.randint(-5_000, 2_000)
                headers.append((DUE, b"%d" % due_ms))
            if any(name in UNREADABLE for name, _ in headers):
                forged = ""
        elif rolled < 0.9:
            headers += self._nonsense()
        record, mark = self._marked(topic, headers)
        return Sent(record, mark, forged)

    def _staying(self, topic: str) -> Sent:
        record, mark = self._marked(topic, [*self._headers(), *self._nonsense()])
        return Sent(record, mark, stays=True)

    # -- of what ----------------------------------------------------------------------

    def _marked(self, topic: str, headers: list[Header]) -> tuple[RawRecord, bytes]:
        mark = b"<%d>" % self._made
        record = RawRecord(topic, self._partition(), self._key(), self._value(), headers)
        large = self._random.random() < 0.004 and topic != self._topics.results
        value = self._as_large_as(OWN_BYTES_MAX, record) if large else record.value or b""
        return record._replace(value=value + mark), mark

    def _as_large_as(self, most: int, record: RawRecord) -> bytes:
        """A value with which the record has just room in its topic, or almost."""
        headers = sum(8 + len(name) + len(value or b"") for name, value in record.headers)
        room = most - _FRAME_BYTES - headers - len(record.key or b"")
        return self._random.randbytes(room - self._random.choice((0, 100, 1_000, 10_000)))

    def _partition(self) -> int:
        return self._random.randrange(self._topics.partitions)

    def _source(self) -> str:
        """A position that no record has, in the source topic, once."""
        partition = self._random.choice([self._partition(), self._random.randrange(2**31)])
        offset = self._random.choice([FORGED_FROM, 2**40, 2**47]) + self._made
        stamp = self._random.choice([-1, 0, 1_700_000_000_000, -(2**62), 2**63 - 1])
        return f"{self._topics.source}/{partition}/{offset}/{stamp}"

    def _nonsense(self) -> list[Header]:
        """Headers as kworker has them, of which one at least is none."""
        number = self._random.choice
        source = f"{self._topics.source}/0/{FORGED_FROM + self._made}/0".encode()
        bad = [value for value in NUMBERS if value not in (b"0", b"1")]
        wrong: list[list[Header]] = [
            [],
            [(SOURCE, None)],
            [(SOURCE, b"")],
            [(SOURCE, b"/" * self._random.randrange(2_000))],
            [(SOURCE, b"\xff/0/0/0")],
            [(SOURCE, b"nowhere/0/%d/0" % self._made)],
            [(SOURCE, b"%b/0/0/0" % self._topics.results.encode())],
            [(SOURCE, b"%b/%b/0/0" % (self._topics.source.encode(), number(bad)))],
            [(SOURCE, b"%b/0/%b/0" % (self._topics.source.encode(), number(BEYOND)))],
            [(SOURCE, source), (ATTEMPT, number(bad))],
            [(SOURCE, source), (DUE, b"%d" % 2**62)],
            [(SOURCE, source), (b"kworker-redriven", number(bad))],
        ]
        return self._random.choice(wrong)

    def _headers(self) -> list[Header]:
        rolled = self._random.random()
        if rolled < 0.4:
            return []
        if rolled < 0.41:
            return [(b"h%d" % (n % 100), b"%d" % n) for n in range(1_000)]
        if rolled < 0.4105:
            return [(b"kworker-", None)] * self._random.choice((10_000, 30_000))
        headers = [
            (self._random.choice(NAMES), self._small()) for _ in range(self._random.randint(1, 6))
        ]
        if rolled < 0.55:
            headers.insert(
                self._random.randrange(len(headers) + 1),
                (self._random.choice(UNREADABLE), self._small()),
            )
        return headers

    def _small(self) -> bytes | None:
        return self._random.choice(
            (None, b"", b"x", b"\xff\xfe\0", self._random.choice(NUMBERS), b"%d" % self._made)
        )

    def _key(self) -> bytes | None:
        rolled = self._random.random()
        if rolled < 0.1:
            return None
        if rolled < 0.2:
            return b""
        if rolled < 0.3:
            return self._random.randbytes(self._random.randint(1, 40))
        if rolled < 0.302:
            return b"k" * 20_000
        return b"key-%d" % self._random.randrange(200)

    def _value(self) -> bytes | None:
        rolled = self._random.random()
        if rolled < 0.05:
            return None
        if rolled < 0.1:
            return b""
        if rolled < 0.3:
            return self._random.randbytes(self._random.randint(1, 300))
        if rolled < 0.301:
            return b"[" * 100_000 + b"]" * 100_000
        if rolled < 0.302:
            return self._random.randbytes(self._random.randint(100_000, 900_000))
        return self._random.choice(
            (
                b'{"a": NaN, "b": -Infinity}',
                b'{"a": %b}' % (b"9" * 5_000),
                b'{"a": "\\ud800"}',
                b'{"a": 1}',
                b"null",
                b'"text"',
                b"\xef\xbb\xbf{}",
                b"record %d" % self._made,
            )
        )

    def _stamp(self) -> int:
        """0 is now; what brokers refuse is left out (measured on 4.3.1)."""
        now_ms = int(time.time() * 1000)
        stamps = (-1, -5, 1, -(2**62), now_ms - 15 * DAY_MS, now_ms + 50 * MINUTE_MS)
        return self._random.choice((0, 0, 0, 0, *stamps))
