"""Records for tests that need no Kafka."""

from collections.abc import Iterable, Iterator, Sequence

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.chunk import Chunk, ChunkPart, Columns
from kworker.core.headers import SOURCE
from kworker.core.memory_size import size_together
from kworker.core.message import Fields, Headers, RawMessage
from kworker.core.outcome import (
    NO_RESULTS,
    Outcome,
    Output,
    PlainResult,
    Results,
    plain_result,
    size_of,
)
from kworker.core.plain_results import PlainValue
from kworker.core.record import Partition, Record, records_of

ORIGIN = b"the log of tests"


class Unreadable(tuple[tuple[str, bytes | None], ...]):
    """Headers that the client cannot tell; asked again for them, it would end the process.

    As the library behaves with a name that is not UTF-8 (measured).
    """

    asked = False

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        assert not self.asked, "asked again"
        self.asked = True
        error = UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "unexpected end of data")
        raise SystemError("headers() returned a result with an exception set") from error


def unheard(
    kafka: MemoryKafka,
    topic: str,
    partition: int = 0,
    *,
    key: bytes | None = None,
    value: bytes | None = None,
) -> None:
    """Writes a record with such headers."""
    kafka.append(topic, partition, key=key, value=value, headers=Unreadable())


def a_partition(
    topic: str = "orders", number: int = 0, *, position: int | None = 0, scoreboard_index: int = 0
) -> Partition:
    return Partition(topic, number, 1, scoreboard_index, position, ORIGIN)


def a_record(
    partition: Partition,
    offset: int = 0,
    *,
    lane: object = None,
    size: int = 100,
    key: bytes | None = None,
    value: bytes | None = b"{}",
    headers: Headers = (),
    timestamp: int = 1_700_000_000_123,
) -> Record:
    at = (partition.topic, partition.number, offset)
    raw = Fields(at, timestamp, key, value, headers)
    return records_of(partition, (offset,), (lane,), (size,), (raw,))[0]


class Watched(Fields):
    """A message of which one can tell that it is gone."""

    __slots__ = ("__weakref__",)


def a_chunk(partition: Partition, begin: int = 0, number: int = 5, headers: Headers = ()) -> Chunk:
    offsets = list(range(begin, begin + number))
    raws: list[RawMessage] = [
        Watched(
            (partition.topic, partition.number, offset), 1, b"%d" % (offset % 2), b"{}", headers
        )
        for offset in offsets
    ]
    keys, all_headers = [raw.key() for raw in raws], [raw.headers() for raw in raws]
    total = size_together(raws, keys, all_headers).total
    given = all_headers if headers else None
    return Chunk(partition, Columns(offsets, keys, raws, 0, given), total)


def a_part(
    partition: Partition,
    begin: int,
    values: Sequence[PlainValue | None],
    topic: str = "results",
    headers: Headers = (),
) -> ChunkPart:
    """Records that ended in a chunk, each with a result of this value or without one."""
    chunk = a_chunk(partition, begin, len(values), headers)
    return ChunkPart(partition, chunk.columns, chunk.memory_bytes, topic, values)


def with_outputs(record: Record, outputs: Iterable[Output]) -> Record:
    """As it comes back from a handler that returned results."""
    record.outcome = outcome_of(list(outputs))
    return record


def plain_result_of(record: Record, topic: str, value: bytes) -> PlainResult:
    """The outcome of a handler that returned a dictionary with this JSON."""
    source = str(record.source).encode()
    key = record.raw.key()
    size = size_of([(SOURCE, source)], key, value)
    return plain_result(topic, key, value, source, size)


def outcome_of(told: Outcome | Sequence[Output] | None) -> Outcome:
    """An outcome as tests write it: outputs are results, and None is a run without any."""
    if told is None:
        return NO_RESULTS
    return Results(told) if isinstance(told, list) else told
