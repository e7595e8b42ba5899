"""The poll thread of a worker: takes records, hands them over, settles, publishes, commits."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.membership import Absence, Membership, MembershipPolicy
from kworker.core.message import PartitionId
from kworker.core.outcome import (
    NO_RESULTS,
    DeadLettered,
    Publishable,
    Results,
    RetryScheduled,
    Skipped,
)
from kworker.core.record import Partition, Record, by_partition
from kworker.worker.assignment import Assignment, Identify
from kworker.worker.dispatch import Dispatch
from kworker.worker.intake import Intake, IntakePolicy, Taking
from kworker.worker.publish.at_least_once import DeliveryGuarantee
from kworker.worker.publish.committer import Committer, Committing
from kworker.worker.publish.outbox import Outbox, Undeliverable

_LOG = structlog.get_logger()

TAKE_MOST = 1_000  # records a turn
TAKE_LEAST = 250  # room for fewer may wait, for so long:
TAKE_EVERY_S = 0.02
IDLE_S = 0.1  # nothing in hand: wait in the client
BUSY_S = 0.002  # handlers at work: wait for one of them, and look after new records meanwhile
FLOW_EVERY_S = 0.02
_HELD_SHOWN = 3  # dead letters that their topic refuses


class WorkerConsumer(Taking, Committing, Protocol):
    """What the poller needs of `KafkaConsumer` or its twin."""

    @property
    def absence(self) -> Absence | None: ...
    def group_metadata(self) -> object: ...


@dataclass(slots=True)
class WorkerCounters:
    """What a worker has done since it began."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0


class PollLoop:
    """Owns the consumer, the producer, ledgers, lanes, flow and commits of one worker.

    One thread runs it. `turn` never waits for longer than IDLE_S, whatever happens:
    not while paused, not while draining.
    """

    def __init__(
        self,
        *,
        consumer: Callable[[Assignment], WorkerConsumer],
        identify: Identify,
        committer: Callable[[WorkerConsumer], Committer],
        backlog: Outbox,
        settling: Callable[
            [WorkerConsumer, Committer, Mapping[PartitionId, Partition]], DeliveryGuarantee
        ],
        lanes: Lanes,
        flow: Flow,
        dispatch: Dispatch,
        intake: IntakePolicy,
        revoke_timeout_s: float,
        had: Mapping[PartitionId, str],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.dispatch = dispatch
        self.assignment = Assignment(identify, self._finish, self._drop, self._calm, had)
        self._consumer = consumer(self.assignment)
        self.committer = committer(self._consumer)
        self.assignment.bind(self._consumer, self.committer)
        self.backlog = backlog
        owned = self.assignment.partitions
        self.settling = settling(self._consumer, self.committer, owned)
        self.lanes = lanes
        self.flow = flow
        self._revoke_timeout_s = revoke_timeout_s
        self._clock = clock
        self._intake = Intake(
            self._consumer, self.assignment, lanes, flow, intake, self.dispatch.doom, wall
        )
        self.counters = WorkerCounters()
        self._troubles: dict[str, str] = {}
        self._outcomes = 0  # since the last settling
        self._answering_since = math.inf  # the brokers
        self.membership = Membership(MembershipPolicy(), clock())
        self._flow_at = 0.0
        self._took = 0
        self._take_at = 0.0
        self._full = False

    # -- one turn ---------------------------------------------------------------------

    def turn(self) -> None:
        """One round of everything."""
        self._take(self._clock())
        self._work(self._waiting_s())
        self._publish(self._clock())
        self._adjust_flow(self._clock())
        self._mind_membership(self._clock())

    def rejoin(self, why: str) -> None:
        """Another member in place of this one: what it had is done again."""
        self.assignment.abandon()
        self.committer.answered(why)
        self._consumer.recreate()

    @property
    def in_hand(self) -> int:
        """Records taken and not settled."""
        return sum(p.ledger.unsettled for p in self.assignment.partitions.values())

    @property
    def consumed(self) -> int:
        """Records taken, ever."""
        return self._intake.consumed

    @property
    def remembered(self) -> int:
        """Of those that came, how many had been done before, as a map told, ever."""
        return self._intake.remembered

    @property
    def reasons(self) -> list[str]:
        """What is wrong now, a line each."""
        if self.assignment.waits_for is not None:  # all else is as it was before that
            return [self.assignment.waits_for]
        troubles = [*self.backlog.problems, *self.settling.problems]
        waiting = [f"{trouble}; what is not acknowledged waits" for trouble in troubles]
        absent = self.membership.problem(self._clock(), self._answering_since)
        return [
            *self._intake.reasons.values(),
            *self._troubles.values(),
            *([absent] if absent else []),
            *waiting,
            *self.dispatch.reasons,
            *_held(self.backlog.held),
            *map(_crowded, self.flow.crowded(self._clock())),
        ]

    @property
    def idle(self) -> bool:
        """Nothing in flight, and all of it settled."""
        return self.flow.records == 0 and self.flow.held == 0 and self.settled

    @property
    def settled(self) -> bool:
        """Nothing to publish, nothing to commit: only handlers may be at work."""
        return not self.backlog.pending and self.settling.nothing_pending(
            self.assignment.partitions.values()
        )

    @property
    def unfinished(self) -> int:
        """Records that have begun, and of which the group does not know yet how they ended."""
        uncommitted = self.committer.uncommitted(self.assignment.partitions.values())
        return self.flow.records + self.backlog.pending + uncommitted

    def stop_taking(self) -> None:
        """From now on what is in hand ends, and nothing new begins."""
        self.flow.stopped = True
        self.dispatch.shed(list(self.assignment.partitions.values()))

    def end(self, deadline: float) -> None:
        """Publishes no more: what is open is ended, or aborted."""
        while not self.settling.end() and self._clock() < deadline:
            self.assignment.beat()
            self._publish(self._clock())
            time.sleep(BUSY_S)

    def hear_of_ends(self, ends: Mapping[PartitionId, int]) -> None:
        """How far partitions reach, as the brokers told; nothing when they did not answer."""
        for at, end in ends.items():
            partition = self.assignment.partitions.get(at)
            if partition and not self._intake.stopped(at):
                partition.reaches = end
        self.hear_of_brokers(answer=bool(ends))

    def hear_of_brokers(self, *, answer: bool) -> None:
        """Whether they answered when they were asked last."""
        if answer:
            self._troubles.pop("kafka", None)
            now = self._clock()
            self._answering_since = min(self._answering_since, now)
            self.settling.brokers_answered(now, self._answering_since)
        else:
            self._troubles["kafka"] = "no broker answers; what is in hand waits"
            self._answering_since = math.inf

    def hear_of_topics(self, ids: Mapping[str, str]) -> None:
        """Which topics these are now: one that was made again has other records at each offset.

        The client goes on at the offset of the one before, as if nothing had happened.
        """
        again = self.assignment.made_again(ids)
        if again and not self.flow.stopped:
            _LOG.warning("source topics were deleted and made again; joins anew", topics=again)
            self._finish(list(self.assignment.partitions.values()))
            self.rejoin("a topic was deleted and made again")

    @property
    def joined(self) -> bool:
        """Whether the group has answered, be it that there is no partition for it."""
        return self.assignment.joined or self.membership.is_member

    def _mind_membership(self, now: float) -> None:
        self.membership.update(self._consumer.absence, now)
        if not self.flow.stopped and self.membership.renewal_due(now, self._answering_since):
            self.membership.renewed(now)
            _LOG.warning("not a member of the group for too long; another client joins it")
            self.rejoin("not a member of the group for too long")

    # -- taking -----------------------------------------------------------------------

    def _take(self, now: float) -> None:
        self.flow.blocked = self.backlog.full
        room = self.flow.room(TAKE_MOST)
        self._took = 0
        self._full = room == 0
        if self._full and len(self.flow.paused) < len(self.assignment.partitions):
            return  # cheaper than pausing; flow will pause if this lasts
        little = 0 < room < min(TAKE_LEAST, self.flow.records // 8)
        if little and self.dispatch.busy and now < self._take_at:
            return  # one by one they would cost more than their handlers
        self._take_at = now + TAKE_EVERY_S
        self._took = self._intake.take(max(room, 1), self._idle_s(now))
        if self.assignment.fresh or self.assignment.changed:
            self._begin_fresh()

    def _idle_s(self, now: float) -> float:
        """How long to wait in the client: only when nothing else can happen."""
        if self.dispatch.busy or self.dispatch.waiting:
            return 0.0
        if self.backlog.pending or self.settling.busy or self.dispatch.restless:
            return BUSY_S
        due = min(self.dispatch.next_due() or now + IDLE_S, now + IDLE_S)
        if self._outcomes:
            due = min(due, self.committer.due_at(self._outcomes, resting=not self.flow.records))
        return max(0.0, due - now)

    def _begin_fresh(self) -> None:
        """The call that brought the assignment is over: what comes now is of its epoch."""
        assignment = self.assignment
        paused = {p for p in self.flow.paused if p.open}
        # A rebalance may forget what was paused; what it brought begins so.
        self._consumer.pause(_ats(paused))
        self.flow.paused = paused | assignment.fresh
        if assignment.fresh:
            self.dispatch.returned(assignment.partitions.values())
        self._intake.rebalanced(assignment.fresh)
        assignment.fresh.clear()
        assignment.changed = False
        self.dispatch.rebalanced()
        if self.flow.stopped:
            self.dispatch.shed(list(assignment.partitions.values()))
        self._flow_at = 0.0

    # -- handing over and settling ----------------------------------------------------

    def _waiting_s(self) -> float:
        """How long to wait for an outcome: not while records keep coming."""
        return BUSY_S if (self.dispatch.busy or self._full) and not self._took else 0.0

    def _work(self, wait_s: float) -> None:
        if wait_s and (slack_s := self.dispatch.slack_s()):
            # Look at many outcomes at once: being woken by each costs more than it does.
            time.sleep(slack_s)
            wait_s = 0.0
        if ended := self.dispatch.turn(wait_s):
            self._settle(ended)
        if self.dispatch.large:
            large, self.dispatch.large = self.dispatch.large, []
            self._outcomes += len(large)
            self.backlog.add_large(large)

    def _settle(self, ended: list[Record]) -> None:
        self._outcomes += len(ended)
        if [record.outcome for record in ended].count(NO_RESULTS) == len(ended):
            self._done(ended)
            return
        done, publishable, skipped = [], [], []
        for record in ended:
            match record.outcome:
                case Results(()):
                    done.append(record)
                case Publishable():
                    publishable.append(record)
                case Skipped():
                    skipped.append(record)
        self._done(done)
        self.counters.duplicates += len(skipped)
        self._settle_ledgers(skipped)
        self.backlog.add(publishable)

    def _published(self, records: list[Record]) -> None:
        """What they led to is in Kafka."""
        done, retried, dead = [], [], []
        for record in records:
            match record.outcome:
                case Results():
                    done.append(record)
                case RetryScheduled():
                    retried.append(record)
                case DeadLettered():
                    dead.append(record)
        self._done(done)
        if retried or dead:
            self.counters.retried += len(retried)
            self.counters.dead += len(dead)
            self._settle_ledgers([*retried, *dead])
            self.dispatch.settled_letters(retried, dead)

    def _done(self, records: list[Record]) -> None:
        self.counters.done += len(records)
        self._settle_ledgers(records)
        self.dispatch.settled(records)

    def _settle_ledgers(self, records: list[Record]) -> None:
        """All that they led to is durable."""
        for partition, own in by_partition(records):
            partition.settled += len(own)
            partition.ledger.settle([record.offset for record in own])

    def accept_dead(self) -> None:
        """What the breaker holds may die after all."""
        self._settle(self.dispatch.accept_dead())

    # -- publishing and committing ----------------------------------------------------

    def _publish(self, now: float) -> None:
        settled = self.settling.turn(now)
        self._published(settled)
        if dropped := self.settling.take_dropped():
            self.dispatch.outlived(dropped)
        if self.backlog.undeliverable:
            self._condemn(now)
        due = self.committer.due(now, self._outcomes, resting=not self.flow.records)
        if due:
            self.committer.start_interval(now)
            self._outcomes = 0
            self.settling.flush(now)
            self.dispatch.tidy()
            if self.dispatch.refusing:
                self._withdraw_rejected()
        if due or settled:
            self.settling.commit(now)
        self._tell_trouble()

    def _condemn(self, now: float) -> None:
        """What topics refused for good becomes a dead letter; a dead letter can only wait.

        A letter that cannot be cut waits, too, until the topic's limit is known for sure.
        """
        condemned, self.backlog.undeliverable = self.backlog.undeliverable, []
        held = []
        for each in condemned:
            record = each.record
            if not record.partition.open:
                self.backlog.let_go([record])
                self.dispatch.outlived([record])
                continue
            match record.outcome:
                case RetryScheduled() | DeadLettered() if self.dispatch.shorten(record):
                    self.backlog.write(record)
                case DeadLettered():
                    held.append(each)
                case RetryScheduled() if not each.again:
                    held.append(each)
                case RetryScheduled():
                    self._refuse(record, f"{each.topic} does not take its retry: {each.why}")
                case _:
                    self._refuse(record, f"{each.topic} does not take a result: {each.why}")
        if held:
            self.backlog.hold(held, now)

    def _withdraw_rejected(self) -> None:
        """What waits for a topic to take it need not, where a person has decided."""
        for record in self.backlog.withdraw(self.dispatch.is_rejected):
            self._refuse(record, "rejected")

    def _refuse(self, record: Record, why: str) -> None:
        self.backlog.let_go([record])
        self.dispatch.refused(record, why)

    def _tell_trouble(self) -> None:
        if self.committer.problem is not None and self.settled:
            self.committer.problem = None  # what it was about is gone, with its partition
        if (trouble := self.committer.problem) is None:
            self._troubles.pop("commit", None)
        else:
            self._troubles["commit"] = f"commit: {trouble}; what is not acknowledged waits"

    # -- flow -------------------------------------------------------------------------

    def _adjust_flow(self, now: float) -> None:
        if now < self._flow_at:
            return
        self._flow_at = now + FLOW_EVERY_S
        wanted = self.flow.to_pause(self.assignment.partitions.values(), now)
        paused = self.flow.paused
        if pause := wanted - paused:
            self._consumer.pause(_ats(pause))
        if resume := paused - wanted:
            self._consumer.resume(_ats(resume))
        self.flow.paused = wanted

    # -- giving up partitions ---------------------------------------------------------

    def _finish(self, going: list[Partition]) -> None:
        """Within `revoke_timeout`: what has begun ends, is published and committed.

        Called from inside `take`, so nothing here polls; the group waits.
        """
        deadline = self._clock() + self._revoke_timeout_s
        before = self.dispatch.shedding
        self.dispatch.shed([*before, *(p for p in going if p not in before)])
        while any(p.in_flight for p in going) and self._waits(deadline):
            self._work(BUSY_S)
            self._publish(self._clock())
        while not self.settling.drained(going) and self._waits(deadline):
            self.settling.flush(self._clock())
            self._publish(self._clock())
            self._work(BUSY_S)
        self.settling.give_up(going)
        left = list(self.assignment.partitions.values())
        self.dispatch.shed(left if self.flow.stopped else before)

    def _waits(self, deadline: float) -> bool:
        """Whether a loop inside a callback may go on; a drain that began meanwhile begins here."""
        left_s = self.assignment.beat()
        if left_s < math.inf and not self.flow.stopped:
            self.stop_taking()
        return self._clock() < deadline and left_s > 0

    def _drop(self, partition: Partition) -> None:
        """It has gone: what is left of it counts no more."""
        self.dispatch.close(partition)
        self.settling.drop(partition)

    def _calm(self) -> bool:
        """Whether the positions of an assignment may be read; what hides them moves on."""
        if not self.settling.positions_readable:
            self._publish(self._clock())
        return self.settling.positions_readable


def _held(letters: list[Undeliverable]) -> list[str]:
    """A line for each of the first, and one for the rest."""
    lines = []
    for letter in letters[:_HELD_SHOWN]:
        source = letter.record.source
        what = "dead letter" if isinstance(letter.record.outcome, DeadLettered) else "retry"
        lines.append(
            f"{letter.topic} refuses the {what} of {source.topic}:{source.partition}"
            f":{source.offset} ({letter.why}): it waits and is tried again every 10 s, all others"
            " go on"
        )
    if len(letters) > _HELD_SHOWN:
        lines.append(f"{len(letters) - _HELD_SHOWN} more are refused like that")
    return lines


def _crowded(partition: Partition) -> str:
    return (
        f"{partition.topic}/{partition.number} takes no more: {partition.ledger.unsettled:,}"
        " unfinished records lie so far apart that a commit could not tell what is done between"
        " more of them; it goes on as they end"
    )


def _ats(partitions: Mapping[Partition, object] | set[Partition]) -> list[PartitionId]:
    return [(p.topic, p.number) for p in partitions]
