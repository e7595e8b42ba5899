"""The guarantee exactly-once: outputs, and the positions to commit for them, in one transaction.

One file over 300 lines, since it is one state machine: steps of a transaction lead to the recovery
of the producer, and the recovery leads back to them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog

from kworker.clients.background_call import aside
from kworker.clients.delivery import Fault, refusal_of
from kworker.clients.errors import Abortable, Broken, KafkaRequestError
from kworker.core.chunk import ChunkPart
from kworker.core.durations import EndTimes
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.record import Partition, Record
from kworker.core.restart import Backoff
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.in_doubt import FencingJudge, ForeignFence, InDoubtTransaction
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.output_batch import FillResult, OutputBatch, Queue
from kworker.worker.publish.result_block import ResultBlock
from kworker.worker.publish.settle_order import settle, settle_parts
from kworker.worker.publish.silent_topics import NO_ANSWER
from kworker.worker.publish.transactor import (
    TransactionMember,
    TransactionPolicy,
    TransactionStep,
    Transactor,
)

_LOG = structlog.get_logger()

RunInBackground = Callable[[Callable[[], Any]], "Future[Any]"]
"""Begins a call that may block, in another thread."""


class ExactlyOnce:
    """Publishes outcomes, and the positions that follow from them, in one transaction at a time.

    Owned by the poll thread, which waits here for 2 ms at most, or 1 s as it gives up a producer.
    Calls that may block for longer run in the background, one at a time; outcomes wait meanwhile. A
    failed call may leave it unknown how its transaction ended. Then another producer is opened
    under the same transactional id, and the group's positions tell whether the transaction was
    committed. Only after that is anything published again. A record is settled when its transaction
    is committed for certain. If the partition of a record is revoked earlier, the record is
    dropped.
    """

    def __init__(
        self,
        make: Callable[[], Transactor],
        member: TransactionMember,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        outbox: Outbox,
        policy: TransactionPolicy,
        fences: FencingJudge,
        begin: RunInBackground = aside,
        outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        """`outdated` tells if a new transactor would have other properties than the last one.

        `make` makes the transactors.
        """
        self._make = make
        self._outdated = outdated
        self._member = member
        self._committer = committer
        self._partitions = partitions  # those that are owned now
        self._outbox = outbox
        self._policy = policy
        self._fences = fences
        self._begin_call = begin
        self._transactor = make()
        self._step = TransactionStep.AWAY
        self._since = 0.0  # the present step is waited for
        self._call: Future[Any] | None = None  # of the present step
        self._opened_at = 0.0
        self._not_before = 0.0  # the next transaction, or attempt to open
        self._serve_at = self._hear_at = self._look_at = 0.0
        self._again = Backoff(*policy.again_s, calm_s=10.0)
        self._batch = OutputBatch(outbox)
        self._begun_at: float | None = None  # the present transaction
        self._flush_due = False  # requested, and not begun
        self._broken = ""  # why the transaction is being aborted, if no record was refused
        # Positions sent with the present transaction, or the last.
        self._sent: Mapping[PartitionId, Committed] = {}
        self._in_doubt: InDoubtTransaction | None = None
        self.transactions = EndTimes()
        self._dropped: list[Record] = []
        self._problem = ""
        self._silence = ""

    # -- what the poll loop reads -----------------------------------------------------

    @property
    def published(self) -> int:
        return self._batch.produced

    @property
    def problems(self) -> list[str]:
        return [*filter(None, [self._problem, self._silence])]

    @property
    def busy(self) -> bool:
        return self._call is not None or self._step in (
            TransactionStep.CLOSING,
            TransactionStep.SPOILED,
        )

    @property
    def flushing(self) -> bool:
        return False  # `commit` does nothing

    @property
    def positions_readable(self) -> bool:
        return self._step not in (
            TransactionStep.AWAY,
            TransactionStep.TAKEN,
            TransactionStep.OPENING,
            TransactionStep.RETAKING,
            TransactionStep.IN_DOUBT,
            TransactionStep.READING,
        )

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        idle = not self.busy and not len(self._batch) and self._in_doubt is None
        return idle and not self._committer.to_commit(partitions)

    def drained(self, going: Collection[Partition]) -> bool:
        return not self._outbox.pending and self.nothing_pending(going)

    # -- what the poll loop does ------------------------------------------------------

    def turn(self, now: float) -> list[Record]:
        if now >= self._serve_at and self._call is None:
            self._serve_at = now + self._policy.serve_every_s
            self._transactor.poll()
        if self._call is not None:
            if self._call.done():
                return self._answered(now)
            self._note_silence(now)
            return []
        match self._step:
            case TransactionStep.AWAY | TransactionStep.TAKEN | TransactionStep.IN_DOUBT:
                self._recover(now)
            case TransactionStep.SPOILED:
                self._abort(now)
            case TransactionStep.CLOSING:
                self._hear_reports(now)
            case TransactionStep.READY | TransactionStep.FILLING if now >= self._not_before:
                self._fill(now)
            case _:
                pass
        return []

    def take_blocks(self) -> list[ResultBlock]:
        return self._batch.take_blocks()

    def flush(self, now: float) -> None:  # noqa: ARG002 - whenever the next turn is
        self._flush_due = True

    def settle(self, records: list[Record]) -> None:
        settle(records)

    def settle_parts(self, parts: Sequence[ChunkPart | ResultBlock]) -> None:
        settle_parts(parts)

    def commit(self, now: float) -> None:
        """Does nothing, since transactions commit the positions."""

    def give_up(self, going: Collection[Partition]) -> None:
        """Does nothing, since positions are committed only in transactions."""

    def drop(self, partition: Partition) -> list[Record]:
        self._dropped += self._outbox.drop(partition)
        if self._batch.holds(partition):
            self._spoil()
        return []

    def take_dropped(self) -> list[Record]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def unpublished(self) -> list[Record]:
        produced = [] if self._step is TransactionStep.ENDING else self._batch.begun
        if self._in_doubt is not None and not self._in_doubt.may_be_committed:
            produced = [*self._in_doubt.records]
        return [*produced, *self._outbox.unsent()]

    def brokers_answered(self, now: float, since: float) -> None:
        waited_s = now - max(self._since, since)
        if self._step is TransactionStep.CLOSING and waited_s > self._policy.give_up_s:
            # The end of the producer reports what had no answer, so that those topics back off.
            self._doubt(KafkaRequestError(NO_ANSWER, retriable=True), now, silence=True)

    def end(self) -> bool:
        self._spoil()
        if self._step is TransactionStep.READY:
            self._step = TransactionStep.ENDED
        return self._begun_at is None

    # -- one transaction --------------------------------------------------------------

    def _fill(self, now: float) -> None:
        """Begins a transaction if needed, and produces waiting outputs into it.

        If a flush is due, the transaction takes no more outputs after these.
        """
        outdated = self._outdated()
        if outdated and not self._batch.torn:
            # The present producer may refuse what the topics take now.
            if self._step is TransactionStep.READY:
                self._replace(now, TransactionStep.AWAY)
            else:
                self._close_batch(now)
            return
        if self._step is TransactionStep.READY and not self._begin(now):
            return
        try:
            queue = Queue(self._transactor.queue, self._transactor.queue_plain)
            filled = self._batch.fill(queue, now, only_torn=outdated)
        except Broken as broken:
            self._abort(now, broken=self._transactor.problem() or str(broken))
            return
        if filled is FillResult.QUEUE:
            self._transactor.poll()  # makes room
            self._note_silence(now)
        self._flush_due |= filled is FillResult.REFUSED
        if self._batch.spoiled:
            self._spoil()
        elif self._flush_due and not self._batch.torn:
            self._close_batch(now)

    def _close_batch(self, now: float) -> None:
        self._flush_due = False
        self._enter(TransactionStep.CLOSING, now)

    def _begin(self, now: float) -> bool:
        """Begins a transaction; returns False if there is nothing to send, or Kafka refuses."""
        owned = self._partitions.values()
        self._outbox.update(now)
        if not (self._outbox.is_ready() or (self._flush_due and self._committer.to_commit(owned))):
            if self._flush_due and not self._outbox.pending:
                self._problem = ""  # what it was about is gone, with its partition
            self._flush_due = False
            return False
        try:
            self._transactor.begin()
        except KafkaRequestError as refused:
            self._doubt(refused, now)
            return False
        self._begun_at, self._sent = now, {}
        self._enter(TransactionStep.FILLING, now)
        return True

    def _spoil(self) -> None:
        """Marks the open transaction as one to abort, unless its commit has begun."""
        if self._step in (TransactionStep.FILLING, TransactionStep.CLOSING):
            self._step = TransactionStep.SPOILED

    def _hear_reports(self, now: float) -> None:
        if now < self._hear_at:
            return
        self._hear_at = now + self._policy.hear_every_s
        self._transactor.flush(self._policy.flush_s)
        if not self._transactor.unfinished:
            if self._batch.any_failed:
                self._abort(now)
            else:
                self._end(now)
        elif now >= self._look_at:
            self._look_at = now + self._policy.look_every_s
            self._note_silence(now)
            if broken := self._transactor.problem():
                self._abort(now, broken=broken)

    def _end(self, now: float) -> None:
        """Commits the transaction, with the positions that follow once its records are settled.

        Aborts it instead if the partition of a record is closed, or has no new position.
        """
        settling = self._batch.offsets()
        positions = self._committer.to_commit(self._partitions.values(), settling)
        if not positions or not all(_names(positions, partition) for partition in settling):
            self._abort(now)  # a topic did not take what it was begun for
            return
        try:
            metadata = self._member.group_metadata()
        except KafkaRequestError as refused:
            self._abort(now, why=str(refused))  # the client will report the loss
            return
        self._committer.note_sent(positions, self._partitions.values(), settling)
        transactor, self._sent = self._transactor, positions

        def end() -> None:
            transactor.send_positions(positions, metadata)
            transactor.commit()

        self._begin_background(TransactionStep.ENDING, end, now)

    def _committed(self, now: float) -> list[Record]:
        self._note_end(self._begun_at, now, failed=False)
        settled = self._batch.settle()
        self._committer.accept(self._sent)
        self._problem = ""
        self._over(TransactionStep.READY)
        return settled

    def _abort(self, now: float, *, why: str = "", broken: str = "") -> None:
        """Aborts the transaction.

        Then its records go back to the outbox, if this worker still owns their partitions.
        `why` is the reason if no topic is at fault. `broken` is the reason if one of the topics is
        at fault, but it is not known which one. Both are empty in all other cases.
        """
        self._broken = broken
        if why or broken:
            self._problem = f"transactions: {why or broken}"
            self._not_before = now + self._policy.rest_s
        self._begin_background(TransactionStep.ABORTING, self._transactor.abort, now)

    def _aborted(self, now: float) -> None:
        self._note_end(self._begun_at, now, failed=True)
        back = self._still_ours(self._batch.take())
        if self._broken and back and not any(map(_is_refused, back)):
            self._outbox.isolate_topic(back, self._broken, now)
        self._outbox.returned(back, now)
        self._over(TransactionStep.READY)

    def _still_ours(self, records: list[Record]) -> list[Record]:
        """Drops records whose partitions this worker owns no more; returns the others."""
        gone = [record for record in records if not record.partition.open]
        self._outbox.let_go(gone)
        self._dropped += gone
        return [record for record in records if record.partition.open] if gone else records

    def _note_end(self, begun_at: float | None, now: float, *, failed: bool) -> None:
        if begun_at is not None:
            self.transactions.add(now - begun_at, failed=failed)

    def _over(self, step: TransactionStep) -> None:
        self._step, self._begun_at = step, None

    # -- recovery ---------------------------------------------------------------------

    def _doubt(self, refused: KafkaRequestError, now: float, *, silence: bool = False) -> None:
        """Replaces the producer, after the error `refused` left it unknown what was committed.

        Later turns read the group's positions to find that out. `silence` is True if some outputs
        were not acknowledged, although the brokers answered other clients.
        Raises FencedByTwin if other processes have fenced this worker too often.
        """
        foreign = self._fences.judge(refused, self._begun_at, now)
        if foreign is None:
            _LOG.warning(
                "it is not known whether a transaction was committed; the positions of the group"
                " are read to find out",
                error=str(refused),
            )
        doubt = InDoubtTransaction(self._batch.take(), self._sent, self._begun_at, silence)
        self._in_doubt, self._sent = doubt if doubt.partitions else None, {}
        self._discard(refused, foreign, now)

    def _discard(self, why: KafkaRequestError, foreign: ForeignFence | None, now: float) -> None:
        taken = foreign is not None or self._step is TransactionStep.RETAKING
        away = TransactionStep.TAKEN if taken else TransactionStep.AWAY
        self._replace(now, away)
        self._rest(why, away, now)
        if foreign is not None:
            self._warn_of(foreign, now)

    def _replace(self, now: float, step: TransactionStep) -> None:
        """Closes the producer and makes another, which may be opened without a back-off."""
        self._transactor.close()
        self._transactor = self._make()
        self._over(step)
        self._not_before = now

    def _warn_of(self, foreign: ForeignFence, now: float) -> None:
        name = self._fences.name
        self._problem = f"transactions: another process took the id {name}; it is taken back"
        self._not_before = now + foreign.rest_s
        _LOG.warning(
            f"another process took the transactional id {name}; does another copy of the service"
            f" run with the same `instance`? This worker takes the id back in {foreign.rest_s:g} s"
            f" and writes the aborted records again; if the id is taken {foreign.most} times in a"
            " short time, the service ends",
            taken=f"{foreign.nth} of {foreign.most}",
        )

    def _rest(self, why: KafkaRequestError, step: TransactionStep, now: float) -> None:
        """Goes back to the state `step`, because a call failed with the error `why`.

        The call for that state is made after a back-off.
        """
        self._step = step
        self._problem = f"transactions: {why}"
        self._not_before = now + self._again.failed(now - self._opened_at)

    def _recover(self, now: float) -> None:
        if now < self._not_before:
            return
        match self._step:
            case TransactionStep.IN_DOUBT:
                assert self._in_doubt is not None
                member, asked = self._member, self._in_doubt.partitions
                limit_s = self._policy.read_s
                self._begin_background(
                    TransactionStep.READING, lambda: member.positions(asked, limit_s), now
                )
            case TransactionStep.AWAY:
                self._begin_background(TransactionStep.OPENING, self._transactor.open, now)
            case _ if self._is_member():
                self._begin_background(TransactionStep.RETAKING, self._transactor.open, now)

    def _is_member(self) -> bool:
        """Returns False if the group has dropped this worker.

        Then other workers may own this worker's partitions.
        """
        try:
            self._member.group_metadata()
        except KafkaRequestError:
            return False
        return True

    def _opened(self, now: float) -> None:
        self._opened_at = now
        if self._in_doubt is not None:
            self._step = TransactionStep.IN_DOUBT
        else:
            self._step, self._problem = TransactionStep.READY, ""

    def _resolve(self, held: Mapping[PartitionId, Committed | None], now: float) -> list[Record]:
        """Ends the doubt about a transaction: settles and returns its committed records.

        `held` has the present positions of the group, which tell which records were committed.
        The other records of the transaction are published again, if this worker still owns their
        partitions.
        """
        doubt, self._in_doubt = self._in_doubt, None
        assert doubt is not None
        settled, lost = doubt.resolved(held)
        self._note_end(doubt.begun_at, now, failed=not doubt.was_committed(held))
        for at, positions in held.items():
            if at in self._partitions:
                self._committer.learn(at, positions)
        self._outbox.settled(settled)
        self._outbox.returned(self._still_ours(lost), now, silence=doubt.silence)
        self._step, self._problem = TransactionStep.READY, ""
        return settled

    # -- calls in the background ------------------------------------------------------

    def _begin_background(self, step: TransactionStep, call: Callable[[], Any], now: float) -> None:
        self._enter(step, now)
        self._call = self._begin_call(call)

    def _enter(self, step: TransactionStep, now: float) -> None:
        self._step, self._since = step, now
        self._hear_at, self._look_at = now, now + self._policy.look_every_s

    def _answered(self, now: float) -> list[Record]:
        assert self._call is not None
        call, self._call = self._call, None
        self._silence = ""
        try:
            answer = call.result()
        except KafkaRequestError as refused:
            self._failed(refused, now)
            return []
        match self._step:
            case TransactionStep.OPENING | TransactionStep.RETAKING:
                self._opened(now)
            case TransactionStep.READING:
                return self._resolve(answer, now)
            case TransactionStep.ENDING:
                return self._committed(now)
            case _:
                self._aborted(now)
        return []

    def _failed(self, refused: KafkaRequestError, now: float) -> None:
        match self._step:
            case TransactionStep.READING:
                self._rest(refused, TransactionStep.IN_DOUBT, now)
            case TransactionStep.OPENING if refused.retriable:
                self._rest(refused, TransactionStep.AWAY, now)
            case TransactionStep.RETAKING if refused.retriable:
                self._rest(refused, TransactionStep.TAKEN, now)
            case TransactionStep.OPENING | TransactionStep.RETAKING:
                self._discard(refused, self._fences.judge(refused, None, now), now)
            case TransactionStep.ENDING if isinstance(refused, Abortable):
                self._abort(now, why=str(refused))
            case _:
                self._doubt(refused, now)

    def _note_silence(self, now: float) -> None:
        if now - self._since > self._policy.patience_s:
            self._silence = f"transactions: no answer for {now - self._since:.0f} s"


def _is_refused(record: Record) -> bool:
    """Returns True if Kafka refused an output of this record.

    Returns False if the client gave up sending the output, or if no delivery failed.
    """
    failed = record.failed_deliveries
    return bool(failed) and refusal_of(failed).fault is not Fault.GIVEN_UP


def _names(positions: Mapping[PartitionId, Committed], partition: Partition) -> bool:
    """Returns True if the partition is open and among these positions."""
    return partition.open and (partition.topic, partition.number) in positions
