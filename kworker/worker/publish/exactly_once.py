"""How outcomes become durable, together with the positions behind them: exactly once."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum, auto
from operator import attrgetter
from typing import Any

import structlog

from kworker.clients.background_call import aside
from kworker.clients.delivery import Fault, refusal_of
from kworker.clients.errors import KafkaRequestError
from kworker.clients.transactions import Abortable, Broken
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.record import Partition, Record, by_partition
from kworker.core.restart import Backoff
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.in_doubt import FencingJudge, ForeignFence, InDoubtTransaction
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.output_batch import FillResult, OutputBatch
from kworker.worker.publish.transactor import TransactionMember, TransactionPolicy, Transactor

_LOG = structlog.get_logger()
_refusals = attrgetter("refusals")

RunInBackground = Callable[[Callable[[], Any]], "Future[Any]"]
"""Begins a call that may block, elsewhere."""


class TransactionStep(Enum):
    """Where the present transaction is."""

    AWAY = auto()  # no producer is open, or what the last one did is not known
    OPENING = auto()
    READING = auto()  # what the group has
    READY = auto()  # for the next
    FILLING = auto()
    CLOSING = auto()  # all is produced; the reports are awaited
    ENDING = auto()
    ABORTING = auto()


class ExactlyOnce:
    """One transaction after the other: outcomes, and the positions as they are then.

    Owned by the poll thread, which never waits here: what may block runs aside, one call at
    a time, and meanwhile outcomes wait. After any doubt the producer is discarded and another
    opened under the same id; then what the group has tells whether the transaction is there,
    before anything is published again. Records are settled when their transaction is
    committed for sure; those whose partition has gone before that are dropped.
    """

    def __init__(
        self,
        make: Callable[[], Transactor],
        member: TransactionMember,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        backlog: Outbox,
        policy: TransactionPolicy,
        fences: FencingJudge,
        begin: RunInBackground = aside,
        outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        """`outdated`: what was made is not as `make` would make it now."""
        self._make = make
        self._outdated = outdated
        self._member = member
        self._committer = committer
        self._partitions = partitions  # those that are owned now
        self._backlog = backlog
        self._policy = policy
        self._begin_call = begin
        self._transactor = make()
        self._opened = False
        self._opened_at = 0.0
        self._step = TransactionStep.AWAY
        self._call: Future[Any] | None = None
        self._since = 0.0  # the present step is waited for
        self._serve_at = self._hear_at = self._look_at = 0.0
        self._batch = OutputBatch(backlog)
        self._begun_at: float | None = None
        self._due = False  # what is produced shall be settled
        self._spoiled = False  # what is produced must not become visible
        self._broken = ""  # why the transaction is being aborted, if nothing was refused
        self._sent: Mapping[
            PartitionId, Committed
        ] = {}  # with the present transaction, or the last
        self._in_doubt: InDoubtTransaction | None = None
        self._dropped: list[Record] = []
        self._again = Backoff(*policy.again_s, calm_s=10.0)
        self._not_before = 0.0
        self._fences = fences
        self._taken = False  # our id, by another process, which shall not have it from a zombie
        self._ending = False
        self._trouble = ""
        self._silence = ""

    # -- what the poller asks ---------------------------------------------------------

    @property
    def published(self) -> int:
        return self._batch.produced

    @property
    def problems(self) -> list[str]:
        return [*filter(None, [self._trouble, self._silence])]

    @property
    def busy(self) -> bool:
        return self._call is not None or self._step is TransactionStep.CLOSING

    @property
    def positions_readable(self) -> bool:
        return self._opened and self._in_doubt is None

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        idle = not self.busy and not self._batch.records and self._in_doubt is None
        return idle and not self._committer.news(partitions)

    def drained(self, going: Collection[Partition]) -> bool:
        return not self._backlog.pending and self.nothing_pending(going)

    # -- what the poller does ---------------------------------------------------------

    def turn(self, now: float) -> list[Record]:
        if now >= self._serve_at and self._call is None:
            self._serve_at = now + self._policy.serve_every_s
            self._transactor.poll()
        if self._call is not None:
            if self._call.done():
                return self._heard(now)
            self._mind_silence(now)
        elif self._step is TransactionStep.AWAY:
            self._come_back(now)
        elif self._spoiled or (self._ending and self._begun_at is not None):
            self._abort(now)
        elif self._step is TransactionStep.CLOSING:
            self._hear_reports(now)
        elif now >= self._not_before and not self._ending:
            self._fill(now)
        return []

    def flush(self, now: float) -> None:  # noqa: ARG002 - whenever the next turn is
        self._due = True

    def commit(self, now: float) -> None:
        """Positions go with the transactions."""

    def give_up(self, going: Collection[Partition]) -> None:
        """What was not committed by now is not."""

    def drop(self, partition: Partition) -> None:
        self._dropped += self._backlog.drop(partition)
        if self._step in (TransactionStep.FILLING, TransactionStep.CLOSING) and self._batch.holds(
            partition
        ):
            self._spoiled = True

    def take_dropped(self) -> list[Record]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def brokers_answered(self, now: float, since: float) -> None:
        waited_s = now - max(self._since, since)
        if self._step is TransactionStep.CLOSING and waited_s > self._policy.give_up_s:
            self._doubt(
                KafkaRequestError("no acknowledgement, though the brokers answer", retriable=True),
                now,
            )

    def end(self) -> bool:
        self._ending = True
        return self._begun_at is None

    # -- one transaction --------------------------------------------------------------

    def _fill(self, now: float) -> None:
        """Begins one if need be, produces what waits, and closes it when it is due."""
        if self._outdated() and not self._batch.torn:
            if self._step is TransactionStep.READY:
                self._renew(now)
                return
            self._due = True
        if self._step is TransactionStep.READY and not self._begin(now):
            return
        try:
            filled = self._batch.fill(self._transactor.queue, now)
        except Broken as broken:
            self._abort(now, broken=self._transactor.trouble() or str(broken))
            return
        if filled is FillResult.QUEUE:
            self._transactor.poll()  # makes room
            self._mind_silence(now)
        self._spoiled |= self._batch.spoiled
        self._due |= filled is FillResult.REFUSED
        if self._due and not self._batch.torn:
            self._due = False
            self._enter(TransactionStep.CLOSING, now)

    def _begin(self, now: float) -> bool:
        """Whether a transaction with something in it has begun."""
        owned = self._partitions.values()
        if not (self._backlog.ready(now) or (self._due and self._committer.news(owned))):
            if self._due and not self._backlog.pending:
                self._trouble = ""  # what it was about is gone, with its partition
            self._due = False
            return False
        try:
            self._transactor.begin()
        except KafkaRequestError as refused:
            self._doubt(refused, now)
            return False
        self._begun_at, self._sent = now, {}
        self._enter(TransactionStep.FILLING, now)
        return True

    def _hear_reports(self, now: float) -> None:
        if now < self._hear_at:
            return
        self._hear_at = now + self._policy.hear_every_s
        self._transactor.poll()
        if not self._transactor.unfinished:
            if any(map(_refusals, self._batch.records)):
                self._abort(now)
            else:
                self._end(now)
        elif now >= self._look_at:
            self._look_at = now + self._policy.look_every_s
            self._mind_silence(now)
            if trouble := self._transactor.trouble():
                self._abort(now, broken=trouble)

    def _end(self, now: float) -> None:
        """Positions as they are once all of it is settled; then nobody can take it back."""
        settling = self._settling()
        positions = self._committer.news(self._partitions.values(), settling)
        if not positions or not all(_names(positions, partition) for partition in settling):
            self._abort(now)  # a topic did not take what it was begun for
            return
        try:
            metadata = self._member.group_metadata()
        except KafkaRequestError as refused:
            self._abort(now, why=str(refused))  # the client will tell of the loss
            return
        self._committer.sending(positions, self._partitions.values(), settling)
        transactor, self._sent = self._transactor, positions

        def end() -> None:
            transactor.send_positions(positions, metadata)
            transactor.commit()

        self._begin_aside(TransactionStep.ENDING, end, now)

    def _settling(self) -> Mapping[Partition, Collection[int]]:
        batch = by_partition(self._batch.records)
        return {partition: {record.offset for record in own} for partition, own in batch}

    def _ended(self) -> list[Record]:
        settled = self._batch.take()
        self._backlog.settled(settled)
        self._committer.accept(self._sent)
        self._trouble = ""
        self._over()
        return settled

    def _abort(self, now: float, *, why: str = "", broken: str = "") -> None:
        """As if it had not been; what it was for comes again, but for what Kafka refused.

        `why` is nobody's fault; `broken` is a topic's, and nobody tells whose.
        """
        self._broken = broken
        if why or broken:
            self._trouble = f"transactions: {why or broken}"
            self._not_before = now + self._policy.rest_s
        self._begin_aside(TransactionStep.ABORTING, self._transactor.abort, now)

    def _aborted(self, now: float) -> None:
        back = self._still_ours(self._batch.take())
        if self._broken and back and not any(map(_is_refused, back)):
            self._backlog.shun_but_one(back, self._broken, now)
        self._backlog.returned(back, now)
        self._over()

    def _still_ours(self, records: list[Record]) -> list[Record]:
        """Without those whose partition is another's by now."""
        gone = [record for record in records if not record.partition.open]
        self._backlog.let_go(gone)
        self._dropped += gone
        return [record for record in records if record.partition.open] if gone else records

    def _over(self) -> None:
        self._step = TransactionStep.READY
        self._begun_at = None
        self._spoiled = False

    # -- doubt ------------------------------------------------------------------------

    def _doubt(self, refused: KafkaRequestError, now: float) -> None:
        """Another producer, and then what the group has. Raises FencedByTwin."""
        foreign = self._fences.mind(refused, self._begun_at, now)
        if foreign is None:
            _LOG.warning("a transaction is in doubt; positions are read back", error=str(refused))
        doubt, self._sent = InDoubtTransaction(self._batch.take(), self._sent), {}
        self._in_doubt = doubt if doubt.asked else None
        self._over()
        self._discard(refused, foreign, now)

    def _discard(self, why: KafkaRequestError, foreign: ForeignFence | None, now: float) -> None:
        self._renew(now)
        self._rest(why, now)
        if foreign is not None:
            self._taken_by_another(foreign, now)

    def _renew(self, now: float) -> None:
        """Another producer, to be opened at once."""
        self._transactor.close()
        self._transactor = self._make()
        self._opened = False
        self._step, self._not_before = TransactionStep.AWAY, now

    def _taken_by_another(self, foreign: ForeignFence, now: float) -> None:
        name = self._fences.name
        self._taken = True
        self._trouble = f"transactions: another process took the id {name}; it is taken back"
        self._not_before = now + foreign.rest_s
        _LOG.warning(
            f"another process took the transactional id {name}: what was open is aborted and"
            f" written again; the id is taken back in {foreign.rest_s:g} s",
            fence=f"{foreign.nth} of {foreign.most}",
        )

    def _rest(self, why: KafkaRequestError, now: float) -> None:
        self._step = TransactionStep.AWAY
        self._trouble = f"transactions: {why}"
        self._not_before = now + self._again.failed(now - self._opened_at)

    def _come_back(self, now: float) -> None:
        if now < self._not_before or (self._taken and not self._is_member()):
            return
        if not self._opened:
            self._begin_aside(TransactionStep.OPENING, self._transactor.open, now)
            return
        assert self._in_doubt is not None
        member, asked, limit_s = self._member, self._in_doubt.asked, self._policy.read_s
        self._begin_aside(TransactionStep.READING, lambda: member.positions(asked, limit_s), now)

    def _is_member(self) -> bool:
        """Whether the group still knows us: else who took the id may own our partitions, too."""
        try:
            self._member.group_metadata()
        except KafkaRequestError:
            return False
        return True

    def _came_back(self, now: float) -> None:
        self._opened, self._opened_at, self._taken = True, now, False
        if self._in_doubt is not None:
            self._step = TransactionStep.AWAY  # until it is known what the last one did
        else:
            self._step, self._trouble = TransactionStep.READY, ""

    def _resolve(self, held: Mapping[PartitionId, Committed | None]) -> list[Record]:
        """What the group has is the truth: our transaction is there, or it never was."""
        assert self._in_doubt is not None
        settled, lost = self._in_doubt.resolved(held)
        self._in_doubt = None
        for at, positions in held.items():
            if at in self._partitions:
                self._committer.know(at, positions)
        self._backlog.settled(settled)
        self._backlog.put_back(self._still_ours(lost))
        self._step, self._trouble = TransactionStep.READY, ""
        return settled

    # -- calls that run aside ---------------------------------------------------------

    def _begin_aside(self, step: TransactionStep, call: Callable[[], Any], now: float) -> None:
        self._enter(step, now)
        self._call = self._begin_call(call)

    def _enter(self, step: TransactionStep, now: float) -> None:
        self._step, self._since = step, now
        self._hear_at, self._look_at = now, now + self._policy.look_every_s

    def _heard(self, now: float) -> list[Record]:
        assert self._call is not None
        call, self._call = self._call, None
        self._silence = ""
        try:
            answer = call.result()
        except KafkaRequestError as refused:
            self._failed(refused, now)
            return []
        match self._step:
            case TransactionStep.OPENING:
                self._came_back(now)
            case TransactionStep.READING:
                return self._resolve(answer)
            case TransactionStep.ENDING:
                return self._ended()
            case _:
                self._aborted(now)
        return []

    def _failed(self, refused: KafkaRequestError, now: float) -> None:
        match self._step:
            case TransactionStep.READING:
                self._rest(refused, now)
            case TransactionStep.OPENING if refused.retriable:
                self._rest(refused, now)
            case TransactionStep.OPENING:
                self._discard(refused, self._fences.mind(refused, None, now), now)
            case TransactionStep.ENDING if isinstance(refused, Abortable):
                self._abort(now, why=str(refused))
            case _:
                self._doubt(refused, now)

    def _mind_silence(self, now: float) -> None:
        if now - self._since > self._policy.patience_s:
            self._silence = f"transactions: no answer for {now - self._since:.0f} s"


def _is_refused(record: Record) -> bool:
    """Whether Kafka refused an output of its, and did not just give it up with the others."""
    return bool(record.refusals) and refusal_of(record.refusals).fault is not Fault.NOBODY


def _names(positions: Mapping[PartitionId, Committed], partition: Partition) -> bool:
    """Whether these positions say that records of the partition are done."""
    return partition.open and (partition.topic, partition.number) in positions
