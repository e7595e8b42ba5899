"""Records for tests that need no Kafka."""

from collections.abc import Iterable

from kworker.clients.memory import MemoryKafka
from kworker.core.message import Fields, HeaderList, Headers
from kworker.core.outcome import Output
from kworker.core.record import Partition, Record


class Unheard(Fields):
    """A record that the client cannot tell the headers of; asked again, it would end the process.

    As the library behaves with a header name that is not UTF-8 (measured).
    """

    __slots__ = ("_asked",)

    def __init__(
        self,
        position: tuple[str, int, int],
        key: bytes | None,
        value: bytes | None,
        timestamp: int = 1_700_000_000_123,
    ) -> None:
        super().__init__(position, timestamp, key, value, ())
        self._asked = False

    def headers(self) -> HeaderList | None:
        assert not self._asked, "asked again"
        self._asked = True
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
    """Writes such a record."""
    offset = kafka.append(topic, partition)
    records = kafka.log((topic, partition)).records
    stamp = records[-1].timestamp()[1]
    records[-1] = Unheard((topic, partition, offset), key, value, stamp)


def a_partition(
    topic: str = "orders", number: int = 0, *, position: int | None = 0, known: int = 0
) -> Partition:
    return Partition(topic, number, 1, known, position)


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
    return Record(partition, offset, lane, size, Fields(at, timestamp, key, value, headers))


def with_outputs(record: Record, outputs: Iterable[Output]) -> Record:
    """As it comes back from a handler that returned results."""
    record.outcome = list(outputs)
    return record
