"""Records whose outputs are being written together."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from kworker.clients.delivery import Queued, Refused
from kworker.clients.errors import Broken, KafkaRequestError, QueueFull
from kworker.core.outcome import Output, PlainResult
from kworker.core.plain_results import PlainResults
from kworker.core.record import Partition, Record
from kworker.worker.publish.numbered_reports import NumberedReports
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.result_block import ResultBlock

PRODUCE_MOST = 5_000  # records a turn, so that polling goes on


class Queue(NamedTuple):
    """Two methods of a producer, which queue outputs.

    `one` queues an output. It raises QueueFull, KafkaRequestError, or Broken (transactions only).
    `plain` queues results as far as it can, with one function for each record.
    """

    one: Callable[[Output, Refused], None]
    plain: Callable[[PlainResults, Sequence[Refused]], Queued]


class FillResult(Enum):
    """The reason why `OutputBatch.fill` has produced no more outputs."""

    ALL = auto()  # it has all that waits, or that may be taken in one turn
    QUEUE = auto()  # the producer's queue is full
    REFUSED = auto()  # the client refused a record; those after it are for the next batch


class _Produced(NamedTuple):
    """A block whose outputs are out.

    `first` is the number of its first delivery report. `behind` is the number of single records
    that were produced before it.
    """

    block: ResultBlock
    first: int
    behind: int


class OutputBatch:
    """Records whose outputs are produced together. Owned by the poll thread."""

    def __init__(self, outbox: Outbox) -> None:
        self.produced = 0  # outputs of whole records, ever
        self._outbox = outbox
        self.spoiled = False  # a record was refused after some of its outputs were produced
        self._records: list[Record] = []
        self._blocks: list[_Produced] = []
        self._in_blocks = 0  # records
        self._reports = NumberedReports()
        self._next_number = 0  # of a delivery report
        self._numbered: dict[int, Record] = {}  # of blocks that are broken up, by number
        self._torn: Record | None = None  # taken from the outbox, and produced in part
        self._sent = 0  # so many of its outputs are out
        self._settled_blocks: list[ResultBlock] = []  # are in Kafka

    def __len__(self) -> int:
        """The number of records of which all outputs were produced."""
        return len(self._records) + self._in_blocks

    def fill(self, queue: Queue, now: float, *, only_torn: bool = False) -> FillResult:
        """Produces waiting outputs into the batch. Raises Broken if the transaction fails.

        With `only_torn`, produces no more than the rest of the record that is produced in part.
        """
        outbox, torn = self._outbox, self._torn
        if torn is None:
            outbox.update(now)
        else:  # nothing may get ahead of it
            self._torn = None
            outbox.waiting.appendleft(torn)
        waiting, refusals, batch = outbox.waiting, outbox.refusals, self._records
        backing_off, produce = refusals.backing_off, queue.one
        if backing_off:
            outbox.break_up()
        most = 1 if only_torn else min(PRODUCE_MOST, len(waiting))
        for _ in range(most):
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
                outbox.first_refused(outputs[sent].topic, refused, self.begun, now)
                self.spoiled |= sent > 0
                return FillResult.REFUSED
            except Broken:
                self._tear(sent)
                raise
            batch.append(waiting.popleft())
            self.produced += sent
        return FillResult.ALL if only_torn else self._fill_blocks(queue, PRODUCE_MOST - most, now)

    def _fill_blocks(self, queue: Queue, most: int, now: float) -> FillResult:
        """Produces blocks, which come after single records, until that are `most` records."""
        blocks = self._outbox.blocks
        while blocks and most > 0:
            block = blocks[0]
            first = self._next_number
            callbacks = self._reports.callbacks(first, len(block))
            done, stopped = queue.plain(block.results, callbacks)
            blocks.popleft()
            if done < len(block):
                block, rest = block.split(done)
                blocks.appendleft(rest)
            if done:
                self._blocks.append(_Produced(block, first, len(self._records)))
                self._in_blocks += done
                self._next_number += done
                self.produced += block.results.number
                most -= done
            match stopped:
                case QueueFull():
                    return FillResult.QUEUE
                case KafkaRequestError():
                    self._outbox.break_up()
                    topic = block.results.topic
                    self._outbox.first_refused(topic, stopped, self.begun, now)
                    return FillResult.REFUSED
                case Broken():
                    raise stopped
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
        self._break_up()
        return self._records if self._torn is None else [*self._records, self._torn]

    @property
    def torn(self) -> bool:
        """True if only some of a record's outputs are produced, so that the rest must follow."""
        return self._torn is not None

    @property
    def any_failed(self) -> bool:
        """True if a delivery of a record failed of which all outputs were produced."""
        self._note_failed()
        return any(record.failed_deliveries for record in self._records)

    def holds(self, partition: Partition) -> bool:
        """Returns True if any output of a partition's records was produced into this batch."""
        return any(record.partition is partition for record in self.begun)

    def offsets(self) -> dict[Partition, list[int]]:
        """Returns the offsets of the records of which all outputs were produced, by partition."""
        found: dict[Partition, list[int]] = {}
        for record in self._records:
            found.setdefault(record.partition, []).append(record.offset)
        for block, _, _ in self._blocks:
            found.setdefault(block.partition, []).extend(block.offsets)
        return found

    def take(self) -> list[Record]:
        """Empties the batch, and returns its records.

        They include a record of which only some outputs were produced. Their delivery reports may
        still come: nobody hears those of blocks.
        """
        self._note_failed()
        records = self.begun
        self._clear()
        self._reports, self._torn = NumberedReports(), None
        return records

    def settle(self) -> list[Record]:
        """Empties the batch, all of which is in Kafka; returns its records.

        `take_blocks` returns the blocks.
        """
        records, blocks = self._records, [produced.block for produced in self._blocks]
        self._clear()
        self._outbox.settled(records)
        self._outbox.settled_blocks(blocks)
        self._settled_blocks += blocks
        return records

    def take_blocks(self) -> list[ResultBlock]:
        """Returns the blocks that are in Kafka, since the last call."""
        blocks, self._settled_blocks = self._settled_blocks, []
        return blocks

    def finish(self, now: float, *, silence: bool = False) -> list[Record]:
        """Empties the batch, and returns those of its records that are in Kafka, as `settle` does.

        Called when all delivery reports have come. The records with a failed delivery go back to
        the outbox. With `silence`, a topic that gave no answer gets no outputs for a while. If only
        some outputs of the last record are produced, its other outputs go into the next batch. But
        if any delivery of this batch failed, this last record goes back to the outbox, too: it may
        be at fault.
        """
        failed = self.any_failed
        if not failed and (self._torn is None or not self._torn.failed_deliveries):
            return self.settle()
        torn, records = self._torn, self.begun
        self._torn = None
        self._clear()
        settled = [r for r in records if not r.failed_deliveries and r is not torn]
        refused = [r for r in records if r.failed_deliveries or r is torn]
        self._outbox.settled(settled)
        self._outbox.returned(refused, now, silence=silence)
        return settled

    def give_up(self, now: float, *, silence: bool = False) -> None:
        """Puts all records back into the outbox.

        As delivery reports are missing, it is unknown which outputs are in Kafka. With `silence`,
        a topic that gave no answer gets no outputs for a while.
        """
        self._outbox.returned(self.take(), now, silence=silence)

    def _clear(self) -> None:
        self._records, self._blocks, self._in_blocks = [], [], 0
        self._next_number = 0
        self._numbered.clear()
        self.spoiled = False

    def _break_up(self) -> None:
        """Turns the blocks into records, in the order in which they were produced."""
        records: list[Record] = []
        begin = 0
        for block, first, behind in self._blocks:
            own = block.records()
            self._numbered.update(enumerate(own, first))
            records += [*self._records[begin:behind], *own]
            begin = behind
        self._records = [*records, *self._records[begin:]]
        self._blocks, self._in_blocks = [], 0

    def _note_failed(self) -> None:
        """Passes failed deliveries of outputs in blocks to their records, which are made then."""
        if self._reports.failed:
            self._break_up()
            for number, error, message in self._reports.take_failed():
                self._numbered[number](error, message)
