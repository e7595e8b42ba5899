"""The poll loop of a worker: takes records, hands them over, settles, publishes, commits.

One file over 300 lines, since one thread owns both the loop's state and the revocations.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import structlog

from kworker.clients.consumer import Listener
from kworker.core.durations import EndTimes
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.membership import Absence, Membership, MembershipPolicy
from kworker.core.message import PartitionId
from kworker.core.pauses import PausedTopics
from kworker.core.record import Partition
from kworker.worker.assignment import Assignment, Identify
from kworker.worker.dispatch import Dispatch
from kworker.worker.intake import Intake, IntakePolicy, Taking
from kworker.worker.publish.at_least_once import DeliveryGuarantee
from kworker.worker.publish.committer import Committer, Committing
from kworker.worker.publish.outbox import Outbox
from kworker.worker.rebalance_timer import RebalanceTimer
from kworker.worker.settlement import Settlement

_LOG = structlog.get_logger()

TAKE_MOST = 1_000  # records a turn
TAKE_LEAST = 250  # with less room than this, up to TAKE_EVERY_S may pass between two takes
TAKE_EVERY_S = 0.02
IDLE_S = 0.1  # with nothing in hand, the wait in the client
BUSY_S = 0.002  # with handlers at work, the wait for one of them
FLOW_EVERY_S = 0.02


class WorkerConsumer(Taking, Committing, Protocol):
    """The methods of `KafkaConsumer`, and of its in-memory twin, that the poll loop uses."""

    @property
    def absence(self) -> Absence | None: ...
    def group_metadata(self) -> object: ...


class WorkerStats(NamedTuple):
    """The counters of a worker. In the scoreboard, `done` is `Field.DONE`, and so on.

    `in_hand` is the number of delivered records that are not settled. `dropped` is the number of
    tombstones that were skipped. `unguarded` is the number of records that ran without a claim
    because Redis did not answer. `remembered` is the number of redelivered records that an offset
    map showed as done. `maps_ignored` is the number of offset maps that could not be used.
    """

    in_hand: int
    in_flight: int
    in_flight_bytes: int
    held: int
    consumed: int
    done: int
    failed: int
    retried: int
    dead: int
    duplicates: int
    dropped: int
    unguarded: int
    remembered: int
    maps_ignored: int
    stalled_ms: int
    suspects: int
    published: int
    commits: int
    rebalances: int
    rebalancing_us: int


class PollLoop:
    """Takes records, hands them to handlers, publishes outcomes and commits, for one worker.

    One thread runs the loop and owns all parts of it. `turn` waits for IDLE_S at most, also while
    paused or draining; only a rebalance inside it may take longer.
    """

    def __init__(
        self,
        *,
        consumer: Callable[[Listener], WorkerConsumer],
        identify: Identify,
        committer: Callable[[WorkerConsumer], Committer],
        outbox: Outbox,
        guarantee: Callable[
            [WorkerConsumer, Committer, Mapping[PartitionId, Partition]], DeliveryGuarantee
        ],
        lanes: Lanes,
        flow: Flow,
        dispatch: Dispatch,
        intake: IntakePolicy,
        revoke_timeout_s: float,
        had: Mapping[PartitionId, str],
        paused_by_operator: Callable[[float], PausedTopics],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`had` has the topic's id for each partition in which the group ever had a position.

        `paused_by_operator` returns the topics that operators have paused, at a monotonic time.
        """
        self.dispatch = dispatch
        self.assignment = Assignment(identify, self._finish, self._drop, self._calm, had)
        self._rebalance_timer = RebalanceTimer(self.assignment, clock)
        self._consumer = consumer(self._rebalance_timer)
        self.committer = committer(self._consumer)
        self.assignment.bind(self._consumer, self.committer)
        self._owned = self.assignment.partitions
        self._guarantee = guarantee(self._consumer, self.committer, self._owned)
        self.settlement = Settlement(dispatch, outbox, self._guarantee, self.committer, flow)
        self.flow = flow
        self._paused_by_operator = paused_by_operator
        self._revoke_timeout_s = revoke_timeout_s
        self._clock = clock
        self._intake = Intake(
            self._consumer, self.assignment, lanes, flow, intake, dispatch.endings.end_early, wall
        )
        self._silence = ""  # of the brokers: a line for the status
        self._answering_since = math.inf  # the brokers
        self.membership = Membership(MembershipPolicy(), clock())
        self._flow_at = 0.0
        self._took = 0
        self._take_at = 0.0
        self._full = False

    # -- one turn ---------------------------------------------------------------------

    def turn(self) -> None:
        """Does one round of the loop.

        Takes records, hands them to handlers, publishes and commits outcomes, and pauses or resumes
        partitions.
        """
        self._take(self._clock())
        self._work(self._waiting_s())
        self._settle(self._clock())
        self._adjust_flow(self._clock())
        self._watch_membership(self._clock())

    def rejoin(self, why: str) -> None:
        """Joins the group with a new client; records without a durable outcome are redelivered."""
        self.assignment.abandon()
        self.committer.answered(why)
        self._consumer.recreate()

    # -- state ------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        """The number of delivered records whose outcomes are not durable yet."""
        return sum(p.ledger.unsettled for p in self._owned.values())

    def stats(self) -> WorkerStats:
        """Returns the counters that the scoreboard shows."""
        dispatch, assignment, counters = self.dispatch, self.assignment, self.settlement.counters
        return WorkerStats(
            in_hand=self.in_hand,
            in_flight=self.flow.records,
            in_flight_bytes=self.flow.bytes,
            held=self.flow.held,
            consumed=self._intake.consumed,
            done=counters.done,
            failed=dispatch.endings.failed,
            retried=counters.retried,
            dead=counters.dead,
            duplicates=counters.duplicates,
            dropped=counters.dropped,
            unguarded=dispatch.unguarded,
            remembered=self._intake.remembered,
            maps_ignored=assignment.maps_ignored,
            stalled_ms=int(dispatch.stalled_s * 1000),
            suspects=dispatch.suspects,
            published=self._guarantee.published,
            commits=self.committer.commits,
            rebalances=assignment.rebalances,
            rebalancing_us=int(self._rebalance_timer.total_s * 1e6),
        )

    @property
    def transactions(self) -> EndTimes:
        """The numbers and durations of committed, and of aborted (failed), transactions."""
        return self._guarantee.transactions

    @property
    def problems(self) -> list[str]:
        """One line for each present problem of this worker."""
        if self.assignment.problem is not None:  # all else is as it was before that
            return [self.assignment.problem]
        absent = self.membership.problem(self._clock(), self._answering_since)
        return [
            *self._intake.problems,
            *([self._silence] if self._silence else []),
            *([absent] if absent else []),
            *self.settlement.problems,
            *self.dispatch.problems,
            *self.settlement.held,
            *map(_map_full, self.flow.crowded(self._clock())),
        ]

    @property
    def idle(self) -> bool:
        """True if no record runs or waits, and all outcomes are published and committed."""
        return self.flow.records == 0 and self.flow.held == 0 and self.settled

    @property
    def settled(self) -> bool:
        """True if nothing is left to publish or commit; handlers may still be running."""
        return self.settlement.is_complete(self._owned.values())

    @property
    def unfinished(self) -> int:
        """The number of records that are in flight, unpublished or not committed."""
        uncommitted = self.committer.uncommitted(self._owned.values())
        return self.flow.records + self.settlement.pending + uncommitted

    @property
    def joined(self) -> bool:
        """True once the group has answered this member, even if the member got no partition."""
        return self.assignment.joined or self.membership.is_member

    # -- a drain ----------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Stops taking and starting records; handlers that run already go on to their end."""
        self.flow.stopped = True
        self.dispatch.shed(list(self._owned.values()))

    def end(self, deadline: float) -> None:
        """Finishes publishing: commits or aborts an open transaction. Gives up at `deadline`."""
        while not self._guarantee.end() and self._clock() < deadline:
            self.assignment.beat()
            self._settle(self._clock())
            time.sleep(BUSY_S)

    def hand_over(self) -> None:
        """Leaves unpublished outcomes to the next owners of their partitions.

        Called at the end of a drain. After this call, this worker publishes nothing.
        """
        self.dispatch.hand_over(self._guarantee.unpublished())

    # -- answers of the brokers -------------------------------------------------------

    def take_end_offsets(self, ends: Mapping[PartitionId, int], rejection: str = "") -> None:
        """Stores the end offsets that brokers reported. `ends` is empty if no broker answered.

        `rejection` is the reason why brokers refuse this client; "" if they do not.
        """
        for at, end in ends.items():
            partition = self._owned.get(at)
            if partition and not self._intake.stopped(at):
                partition.end_offset = end
        self.note_brokers(answer=bool(ends), rejection=rejection)

    def note_brokers(self, *, answer: bool, rejection: str = "") -> None:
        """Notes whether the brokers answered the last request.

        `rejection` is the reason why brokers refuse this client; "" if they do not.
        """
        reason = rejection or "no broker answers; what is in hand waits"
        self._silence = "" if answer else reason
        if answer:
            now = self._clock()
            self._answering_since = min(self._answering_since, now)
            self._guarantee.brokers_answered(now, self._answering_since)
        else:
            self._answering_since = math.inf

    @property
    def topics_to_check(self) -> set[str]:
        """The topics whose ids `check_topic_ids` needs: those assigned, or not readable."""
        return self.assignment.topics | self._intake.unreadable

    def check_topic_ids(self, ids: Mapping[str, str]) -> None:
        """Rejoins the group if a source topic was deleted and created again.

        `ids` maps topics to their present ids. A topic that was created again has a new id, and
        other records at each offset. Without a rejoin, the client would go on at the old offset.
        Also stops reporting that a topic cannot be read, if the topic exists and this worker has no
        partition of it.
        """
        if ids:  # else no broker has answered
            self._intake.note_existing(ids)
        again = self.assignment.made_again(ids)
        if again and not self.flow.stopped:
            _LOG.warning(
                "source topics were deleted and created again; rejoining the group", topics=again
            )
            self._finish(list(self._owned.values()))
            self.rejoin("a topic was deleted and made again")

    def accept_dead(self) -> None:
        """Makes dead letters of the records that the dead-letter limit holds back."""
        self.settlement.accept_dead()

    def _watch_membership(self, now: float) -> None:
        self.membership.update(self._consumer.absence, now)
        if not self.flow.stopped and self.membership.renewal_due(now, self._answering_since):
            self.membership.renewed(now)
            _LOG.warning(
                "the worker was out of its consumer group for too long; it joins again with a"
                " new client"
            )
            self.rejoin("not a member of the group for too long")

    # -- taking -----------------------------------------------------------------------

    def _take(self, now: float) -> None:
        self.flow.blocked = self.settlement.full
        room = self.flow.room(TAKE_MOST)
        self._took = 0
        self._full = room == 0
        if self._full and len(self.flow.paused) < len(self._owned):
            return  # cheaper than pausing; flow will pause if this lasts
        little = 0 < room < min(TAKE_LEAST, self.flow.records // 8)
        if little and self.dispatch.busy and now < self._take_at:
            return  # one by one they would cost more than their handlers
        self._take_at = now + TAKE_EVERY_S
        self._took = self._intake.take(max(room, 1), self._idle_s(now))
        if self.assignment.fresh or self.assignment.changed:
            self._begin_fresh()

    def _idle_s(self, now: float) -> float:
        """Returns the seconds that a poll may wait: 0 while there is other work to do."""
        if self.dispatch.busy or self.dispatch.waiting:
            return 0.0
        if self.settlement.busy or self.dispatch.awaiting_others:
            return BUSY_S
        due = min(self.dispatch.next_due() or now + IDLE_S, now + IDLE_S)
        if self.settlement.outcomes:
            due = min(due, self.settlement.due_at())
        return max(0.0, due - now)

    def _begin_fresh(self) -> None:
        """Prepares the worker for new partitions, after the poll that assigned them has returned.

        The new partitions are paused until `_adjust_flow` resumes them.
        """
        assignment = self.assignment
        paused = {p for p in self.flow.paused if p.open}
        # A rebalance may forget what was paused; what it brought begins so.
        self._consumer.pause(_ids(paused))
        self.flow.paused = paused | assignment.fresh
        if assignment.fresh:
            self.dispatch.returned(self._owned.values())
        self._intake.rebalanced(assignment.fresh)
        assignment.fresh.clear()
        assignment.changed = False
        self.dispatch.rebalanced()
        if self.flow.stopped:
            self.dispatch.shed(list(self._owned.values()))
        self._flow_at = 0.0

    # -- handing over and settling ----------------------------------------------------

    def _waiting_s(self) -> float:
        """Returns the seconds to wait for an outcome: 0 while polls return records."""
        return BUSY_S if (self.dispatch.busy or self._full) and not self._took else 0.0

    def _work(self, wait_s: float) -> None:
        if wait_s and (slack_s := self.dispatch.slack_s()):
            # Many outcomes at once: to be woken by each costs more than it does.
            time.sleep(slack_s)
            wait_s = 0.0
        ended = self.dispatch.turn(wait_s)
        self.settlement.add(ended, self.dispatch.take_parts())

    def _settle(self, now: float) -> None:
        self.settlement.turn(now, self._owned.values())

    # -- flow -------------------------------------------------------------------------

    def _adjust_flow(self, now: float) -> None:
        if now < self._flow_at:
            return
        self._flow_at = now + FLOW_EVERY_S
        self.flow.by_operator = self._paused_by_operator(now)
        wanted = self.flow.to_pause(self._owned.values(), now)
        paused = self.flow.paused
        if pause := wanted - paused:
            self._consumer.pause(_ids(pause))
        if resume := paused - wanted:
            self._consumer.resume(_ids(resume))
        self.flow.paused = wanted

    # -- giving up partitions ---------------------------------------------------------

    def _finish(self, going: list[Partition]) -> None:
        """Lets running records of these partitions end, and publishes and commits their outcomes.

        Takes `revoke_timeout` at most. Does not poll, since it may run inside the client's
        rebalance callback, in which the group waits.
        """
        deadline = self._clock() + self._revoke_timeout_s
        before = self.dispatch.shedding
        self.dispatch.shed([*before, *(p for p in going if p not in before)])
        while any(p.in_flight for p in going) and self._may_wait(deadline):
            self._work(BUSY_S)
            self._settle(self._clock())
        while not self._guarantee.drained(going) and self._may_wait(deadline):
            self._guarantee.flush(self._clock())
            self._settle(self._clock())
            self._work(BUSY_S)
        self._guarantee.give_up(going)
        left = list(self._owned.values())
        self.dispatch.shed(left if self.flow.stopped else before)

    def _may_wait(self, deadline: float) -> bool:
        """Returns True if a wait inside a rebalance may go on.

        Also stops the taking of records, if the worker was told to drain.
        """
        left_s = self.assignment.beat()
        if left_s < math.inf and not self.flow.stopped:
            self.stop_taking()
        return self._clock() < deadline and left_s > 0

    def _drop(self, partition: Partition) -> None:
        """Gives up a revoked partition, and forgets those of its records that have not begun.

        Also leaves to the next owner the outcomes that this worker is still publishing. The next
        owner must not wait for this worker, which may be cut off from the brokers for long.
        """
        self.dispatch.close(partition)
        self.dispatch.hand_over(self._guarantee.drop(partition))

    def _calm(self) -> bool:
        """Returns True if the group's committed positions are readable.

        If a transaction of this worker hides them, first takes one step to end that transaction.
        """
        if not self._guarantee.positions_readable:
            self._settle(self._clock())
        return self._guarantee.positions_readable


def _map_full(partition: Partition) -> str:
    return (
        f"{partition.topic}/{partition.number} is paused: {partition.ledger.unsettled:,}"
        " unfinished records fill the offset map in its commit metadata; it resumes as they finish"
    )


def _ids(partitions: Mapping[Partition, object] | set[Partition]) -> list[PartitionId]:
    return [(p.topic, p.number) for p in partitions]
