"""The interfaces that exactly-once uses, the states of its producer, and its time-outs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from kworker.clients.delivery import Queued, Refused
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults


class Transactor(Protocol):
    """The methods of `KafkaTransactor`, and of its in-memory twin, that exactly-once uses."""

    @property
    def unfinished(self) -> int: ...
    def open(self) -> None: ...
    def begin(self) -> None: ...
    def queue(self, output: Output, refused: Refused) -> None: ...
    def queue_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued: ...
    def poll(self) -> None: ...
    def flush(self, wait_s: float) -> None: ...
    def problem(self) -> str | None: ...
    def send_positions(
        self, positions: Mapping[PartitionId, Committed], group_metadata: Any
    ) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class TransactionMember(Protocol):
    """The methods of `KafkaConsumer`, and of its in-memory twin, that exactly-once uses."""

    def group_metadata(self) -> object: ...
    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]: ...


class TransactionStep(Enum):
    """The states of a transactional producer and of its present transaction."""

    AWAY = auto()  # the producer is to be opened
    TAKEN = auto()  # it is to be opened, and another process took its id
    OPENING = auto()
    RETAKING = auto()  # opening an id that another process took
    IN_DOUBT = auto()  # open; the group has to say whether the last transaction was committed
    READING = auto()  # what the group holds
    READY = auto()  # for the next transaction
    FILLING = auto()
    CLOSING = auto()  # all is produced; the reports are awaited
    SPOILED = auto()  # it is to be aborted
    ENDING = auto()
    ABORTING = auto()
    ENDED = auto()  # no transaction begins any more


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """Intervals and time-outs of transactions, in seconds."""

    serve_every_s: float = 1.0  # callbacks, at least: they pile up in the client
    hear_every_s: float = 0.004  # delivery reports, when they are all that is awaited
    flush_s: float = 0.002  # of each such time; linger.ms counts only between these
    look_every_s: float = 0.05  # for a broken transaction, when they do not come
    patience_s: float = 5.0  # without them, or an answer: it is a problem
    give_up_s: float = 15.0  # though the brokers answer: another producer
    rest_s: float = 0.2  # after a transaction that was aborted for no known record
    again_s: tuple[float, float] = (0.05, 1.0)  # until another producer: first, longest
    read_s: float = 5.0
