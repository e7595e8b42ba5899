"""Outcomes that wait to be written, and those that are being written together."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

from kworker.clients.kafka import QueueFull, Refused
from kworker.core.outcome import Output
from kworker.core.record import SPENT, Partition, Record

_OBJECT_BYTES = 600  # what an output and its record cost beside the payload
PRODUCE_MOST = 5_000  # records a turn, so that polling goes on

Produce = Callable[[Output, Callable[[object, object], None]], None]
"""Queues an output; the second hears of its failure. Raises QueueFull; Refused."""


@dataclass(frozen=True, slots=True)
class BacklogPolicy:
    """How much may wait, and how soon a refusal is tried again."""

    bytes_max: int
    records_max: int
    retry_s: float = 1.0


class Backlog:
    """The outputs of finished records, until they are in Kafka.

    Owned by the poll thread. A topic that refused one is left alone for a while, and what
    is for it waits, in order; other topics' go on.
    """

    def __init__(self, policy: BacklogPolicy) -> None:
        self.policy = policy
        self.waiting: deque[Record] = deque()
        self.pending = 0  # records handed over and not settled
        self._refused: deque[Record] = deque()  # for topics that are left alone
        self._unnamed: deque[Record] = deque()  # which no position would name yet
        self.shunned: dict[str, float] = {}  # those topics, until when
        self._troubles: dict[str, str] = {}
        self._bytes = 0

    def add(self, records: Collection[Record]) -> None:
        """Takes over records whose outcomes are lists of outputs."""
        total = 0
        for record in records:
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            size = _OBJECT_BYTES * len(outputs)
            for output in outputs:
                size += output.size
            # What it was is not needed any more; what it became is what it weighs.
            record.raw = SPENT
            record.size = size
            total += size
        self.waiting.extend(records)
        self.pending += len(records)
        self._bytes += total

    @property
    def full(self) -> bool:
        """So much is pending that no more records should be taken."""
        return self._bytes >= self.policy.bytes_max or self.pending >= self.policy.records_max

    @property
    def troubles(self) -> list[str]:
        """What topics refuse, a line each."""
        return [f"{topic}: {trouble}" for topic, trouble in self._troubles.items()]

    def shun(self, topic: str, why: str, now: float) -> None:
        """The topic is left alone for a while."""
        self._troubles[topic] = why
        self.shunned[topic] = now + self.policy.retry_s

    def put_aside(self) -> None:
        """The first that waits is for a topic that is left alone."""
        self._refused.append(self.waiting.popleft())

    def shun_but_one(self, records: list[Record], why: str, now: float) -> None:
        """One of these is for a topic that takes nothing, and nobody tells which.

        So all but one topic are left alone: it is that one if it happens again.
        """
        topics = list(dict.fromkeys(o.topic for record in records for o in _outputs(record)))
        if len(topics) == 1:
            self.shun(topics[0], why, now)
        for topic in topics[1:]:
            self.shunned[topic] = now + self.policy.retry_s

    def name(self, under_way: Iterable[Record]) -> None:
        """Of partitions without an offset map, only what their position passes may be written.

        That is, once all of it is settled, with what is `under_way`.
        """
        plain = [r for r in self.waiting if r.partition.origin is None]
        if not plain and not self._unnamed:
            return
        mapped = [record for record in self.waiting if record.partition.origin is not None]
        plain = [*self._unnamed, *plain]
        finished: dict[Partition, set[int]] = {record.partition: set() for record in plain}
        for record in chain(plain, under_way):
            if record.partition in finished:
                finished[record.partition].add(record.offset)
        reach = {p: p.ledger.after(offsets)[0] or 0 for p, offsets in finished.items()}
        named = [record for record in plain if record.offset < reach[record.partition]]
        self._unnamed = deque(r for r in plain if r.offset >= reach[r.partition])
        self.waiting = deque([*named, *mapped])

    def ready(self, now: float) -> bool:
        """Whether something waits that may be written now."""
        self.look(now)
        outputs: Iterable[list[Output]] = map(_outputs, self.waiting)
        return any(not self._shuns(each) for each in outputs)

    def _shuns(self, outputs: list[Output]) -> bool:
        return any(output.topic in self.shunned for output in outputs)

    def look(self, now: float) -> None:
        """What a topic refused goes first, when it has been left alone for long enough."""
        if due := {topic for topic, until in self.shunned.items() if now >= until}:
            for topic in due:
                del self.shunned[topic]
            self.waiting.extendleft(reversed(self._refused))
            self._refused.clear()

    def refused(self, records: list[Record], now: float) -> None:
        """Reports came that Kafka did not take these, which were under way."""
        for record in records:
            # Which of several it was, the report does not tell; they come together again.
            self.shun(_outputs(record)[0].topic, str(record.refusal), now)
            record.refusal = None
        self._refused.extendleft(reversed(records))

    def put_back(self, records: list[Record]) -> None:
        """They were under way, and come again, before all others."""
        for record in records:
            record.refusal = None
        self.waiting.extendleft(reversed(records))

    def drop(self, partition: Partition) -> list[Record]:
        """What waits of a partition is another's to publish: those records."""
        every = (*self.waiting, *self._refused, *self._unnamed)
        if going := [record for record in every if record.partition is partition]:
            self.waiting = _without(self.waiting, partition)
            self._refused = _without(self._refused, partition)
            self._unnamed = _without(self._unnamed, partition)
            self.let_go(going)
        return going

    def let_go(self, records: list[Record]) -> None:
        """They were under way, and are another's to publish."""
        self.pending -= len(records)
        self._bytes -= sum([record.size for record in records])
        if not self.pending:
            self._troubles.clear()  # nothing waits for those topics any more

    def settled(self, records: list[Record]) -> None:
        """They are in Kafka."""
        self.let_go(records)
        if self._troubles:
            for record in records:
                for output in _outputs(record):
                    self._troubles.pop(output.topic, None)


class Filled(Enum):
    """Why a batch took no more."""

    ALL = auto()  # that waits, or that may be taken in one turn
    QUEUE = auto()  # the producer's is full
    REFUSED = auto()  # a topic refused one: the same call for what came after it


class Batch:
    """Records whose outputs are produced together. Owned by the poll thread."""

    def __init__(self, backlog: Backlog) -> None:
        self.records: list[Record] = []
        self.produced = 0  # outputs of whole records, ever
        self._backlog = backlog
        self.spoiled = False  # a record was refused after some of its outputs were produced
        self._begun: Record | None = None  # which the queue had room for in part
        self._sent = 0  # so many of its outputs are out

    def fill(self, produce: Produce, now: float) -> Filled:
        """Produces what waits."""
        backlog, filled = self._backlog, Filled.ALL
        if self._begun is None:  # else nothing may get ahead of it
            backlog.look(now)
        waiting, shunned, batch = backlog.waiting, backlog.shunned, self.records
        for _ in range(min(PRODUCE_MOST, len(waiting))):
            record = waiting[0]
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            if shunned and any(output.topic in shunned for output in outputs):
                backlog.put_aside()
                continue
            # One that was put aside meanwhile begins anew.
            sent = self._sent if record is self._begun else 0
            try:
                for output in outputs[sent:] if sent else outputs:
                    produce(output, record)
                    sent += 1
            except QueueFull:
                self._begun, self._sent = record, sent
                return Filled.QUEUE
            except Refused as refused:
                backlog.shun(outputs[sent].topic, str(refused), now)
                backlog.put_aside()
                self.spoiled |= sent > 0
                filled = Filled.REFUSED
                continue
            batch.append(waiting.popleft())
            self.produced += sent
        self._begun = None
        return filled

    @property
    def torn(self) -> bool:
        """Some outputs of a record are in it, and others have to follow."""
        return self._begun is not None

    def holds(self, partition: Partition) -> bool:
        """Whether anything of a partition was produced."""
        begun = self._begun is not None and self._begun.partition is partition
        return begun or any(record.partition is partition for record in self.records)

    def take(self) -> list[Record]:
        """All of it, whatever became of it; the batch is empty."""
        if self._begun is not None:
            self._begun.refusal = None
            self._begun = None
        records, self.records, self.spoiled = self.records, [], False
        return records

    def finish(self, now: float) -> list[Record]:
        """All reports are there: what Kafka did not refuse is settled. The batch is empty."""
        records, self.records = self.records, []
        settled = [record for record in records if record.refusal is None]
        self._backlog.settled(settled)
        self._backlog.refused([record for record in records if record.refusal is not None], now)
        return settled

    def give_up(self) -> None:
        """Nothing of it is in Kafka for sure: it comes again, each from its first output."""
        self._backlog.put_back(self.take())


def _without(records: Iterable[Record], partition: Partition) -> deque[Record]:
    return deque(record for record in records if record.partition is not partition)


def _outputs(record: Record) -> list[Output]:
    return record.outcome  # type: ignore[return-value]
