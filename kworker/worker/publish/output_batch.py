"""Records whose outputs are being written together."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from kworker.clients.errors import Broken, KafkaRequestError, QueueFull
from kworker.core.outcome import Output, PlainResult
from kworker.core.record import Partition, Record
from kworker.worker.publish.outbox import Outbox

PRODUCE_MOST = 5_000  # records a turn, so that polling goes on

Produce = Callable[[Output, Callable[[object, object], None]], None]
"""Queues an output; the second argument is called if it fails.

Raises QueueFull, and KafkaRequestError.
"""


class FillResult(Enum):
    """The reason why `OutputBatch.fill` has produced no more outputs."""

    ALL = auto()  # it has all that waits, or that may be taken in one turn
    QUEUE = auto()  # the producer's queue is full
    REFUSED = auto()  # the client refused a record; those after it are for the next batch


class OutputBatch:
    """Records whose outputs are produced together. Owned by the poll thread."""

    def __init__(self, outbox: Outbox) -> None:
        self.records: list[Record] = []
        self.produced = 0  # outputs of whole records, ever
        self._outbox = outbox
        self.spoiled = False  # a record was refused after some of its outputs were produced
        self._torn: Record | None = None  # taken from the outbox, and produced in part
        self._sent = 0  # so many of its outputs are out

    def fill(self, produce: Produce, now: float, *, only_torn: bool = False) -> FillResult:
        """Produces waiting outputs into the batch. Raises Broken if the transaction fails.

        With `only_torn`, produces no more than the rest of the record that is produced in part.
        """
        outbox, torn = self._outbox, self._torn
        if torn is None:
            outbox.update(now)
        else:  # nothing may get ahead of it
            self._torn = None
            outbox.waiting.appendleft(torn)
        waiting, refusals, batch = outbox.waiting, outbox.refusals, self.records
        backing_off = refusals.backing_off
        for _ in range(1 if only_torn else min(PRODUCE_MOST, len(waiting))):
            record = waiting[0]
            outcome: Any = record.outcome
            outputs = (outcome,) if type(outcome) is PlainResult else outcome
            sent = self._sent if record is torn else 0
            if backing_off and not sent and refusals.blocks(record):
                outbox.block_first()
                continue
            try:
                for output in outputs[sent:] if sent else outputs:
                    produce(output, record)
                    sent += 1
            except QueueFull:
                self._tear(sent)
                return FillResult.QUEUE
            except KafkaRequestError as refused:
                outbox.first_refused(outputs[sent].topic, refused, batch, now)
                self.spoiled |= sent > 0
                return FillResult.REFUSED
            except Broken:
                self._tear(sent)
                raise
            batch.append(waiting.popleft())
            self.produced += sent
        return FillResult.ALL

    def _tear(self, sent: int) -> None:
        """Moves the outbox's first record to this batch, if some of its outputs are produced.

        `sent` is the number of these outputs.
        """
        if sent:
            self._torn, self._sent = self._outbox.waiting.popleft(), sent

    @property
    def begun(self) -> list[Record]:
        """The records of which some or all outputs were produced into this batch."""
        return self.records if self._torn is None else [*self.records, self._torn]

    @property
    def torn(self) -> bool:
        """True if only some of a record's outputs are produced, so that the rest must follow."""
        return self._torn is not None

    def holds(self, partition: Partition) -> bool:
        """Returns True if any output of a partition's records was produced into this batch."""
        return any(record.partition is partition for record in self.begun)

    def take(self) -> list[Record]:
        """Empties the batch, and returns its records.

        They include a record of which only some outputs were produced.
        """
        records = self.begun
        self.records, self._torn, self.spoiled = [], None, False
        return records

    def finish(self, now: float, *, silence: bool = False) -> list[Record]:
        """Empties the batch, and returns those of its records that are in Kafka.

        Called when all delivery reports have come. The records with a failed delivery go back to
        the outbox. With `silence`, a topic that gave no answer gets no outputs for a while. If only
        some outputs of the last record are produced, its other outputs go into the next batch. But
        if any delivery of this batch failed, this last record goes back to the outbox, too: it may
        be at fault.
        """
        records, self.records = self.records, []
        settled = [record for record in records if not record.failed_deliveries]
        whole = len(settled) == len(records)
        refused = [] if whole else [record for record in records if record.failed_deliveries]
        if self._torn is not None and (refused or self._torn.failed_deliveries):
            refused.append(self._torn)
            self._torn = None
        self._outbox.settled(settled)
        if refused:
            self._outbox.returned(refused, now, silence=silence)
        return settled

    def give_up(self, now: float, *, silence: bool = False) -> None:
        """Puts all records back into the outbox.

        As delivery reports are missing, it is unknown which outputs are in Kafka. With `silence`,
        a topic that gave no answer gets no outputs for a while.
        """
        self._outbox.returned(self.take(), now, silence=silence)
