"""The loop of the delay process: takes, forwards what is due, pauses, asks."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Protocol

import structlog

from kworker.clients.errors import KafkaRequestError
from kworker.clock import now_ms
from kworker.core.membership import Membership, MembershipPolicy
from kworker.core.message import PartitionId
from kworker.core.restart import Backoff
from kworker.delay.assignment import DelayAssignment
from kworker.delay.due_batch import DueBatch
from kworker.delay.forwarder import Forwarder
from kworker.delay.partitions import DelayPartition
from kworker.delay.refused import RefusedPartitions
from kworker.delay.routes import Routes
from kworker.worker.publish.in_doubt import FencingJudge

_LOG = structlog.get_logger()

TAKE_MOST = 500  # records a turn
IDLE_S = 0.1  # nothing due: wait in the client
GATHER_S = 0.02  # from one transaction to the next, while more comes due
TIDY_S = 2.0  # between transactions that only take positions past what is no record
REST_S = 1.0  # of a partition, after a refusal; and the most before
AGAIN_S = 0.05  # another producer is made: at first
ASK_S = 2.0


class DelayWatch(Protocol):
    """What the loop needs of `KafkaWatch`."""

    def ask_ends(self, partitions: Iterable[PartitionId]) -> None: ...
    def ends(self) -> dict[PartitionId, int] | None: ...
    def ask_partitions(self, topics: Iterable[str]) -> None: ...
    def partitions(self) -> dict[str, int] | None: ...
    def ask_facts(self, topics: Iterable[str]) -> None: ...
    def facts(self) -> tuple[dict[str, int], dict[str, int]] | None: ...


class DelayLoop:
    """Owns the consumer, the producer and all that waits of one delay process.

    One thread runs it. A turn waits for IDLE_S while nothing is due, and in Kafka no
    longer than the producer's time-out. What is due is a matter of the wall clock, which
    may jump; how often something is tried, of the monotonic one.
    """

    def __init__(
        self,
        heads: DelayAssignment,
        forwarder: Forwarder,
        watch: DelayWatch,
        routes: Routes,
        fences: FencingJudge,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`routes` without the partitions, which the watch tells."""
        self.heads = heads
        self.forwarded = self.dead = self.transactions = 0
        self._forwarder = forwarder
        self._watch = watch
        self._routes = routes
        self._clock = clock
        self._wall_ms = wall_ms
        self._refusals = RefusedPartitions(REST_S)
        self._again = Backoff(AGAIN_S, REST_S, calm_s=10.0)
        self._fences = fences
        # Who takes our id again and again is answered ever more slowly, for what waits here
        # can wait: of two services with one id, the one that came second has ended by then.
        self._fenced = Backoff(REST_S, 30.0, calm_s=60.0)
        self._taken = False  # our id, by another process, which shall not have it from a zombie
        self._troubles: dict[str, str] = {}
        self._ends: Mapping[PartitionId, int] = {}
        self.membership = Membership(MembershipPolicy(), clock())
        self._answering_since = inf  # the brokers
        self._doubt = True  # what was forwarded is not known, or nobody can forward
        self._opened_at = 0.0
        self._try_at = self._forward_at = self._tidy_at = self._ask_at = 0.0

    def turn(self) -> None:
        """One round of everything."""
        self._take(self._idle_s(self._clock()))
        if self._settled(self._clock()):
            self._forward(self._clock())
        self.heads.adjust(self._wall_ms())
        self._ask(self._clock())
        self._forwarder.serve()
        self._mind_membership(self._clock())

    @property
    def reasons(self) -> list[str]:
        """What is wrong now, a line each."""
        if self.heads.waits_for is not None:  # all else is as it was before that
            return [self.heads.waits_for]
        absent = self.membership.problem(self._clock(), self._answering_since)
        return [
            *self._troubles.values(),
            *([absent] if absent else []),
            *self._refusals.reasons,
            *self.heads.reasons.values(),
        ]

    def waiting(self) -> dict[str, tuple[int, int | None]]:
        """By delay topic: how many records are not forwarded, and when the first may leave (ms).

        What was not taken yet is counted by offsets, markers included.
        """
        found: dict[str, tuple[int, int | None]] = dict.fromkeys(self._routes.delays, (0, None))
        for at, head in self.heads.heads.items():
            count, first_ms = found.get(at[0], (0, None))
            leaves = [ms for ms in (first_ms, head.leaves_ms) if ms is not None]
            found[at[0]] = (count + self._left(at, head), min(leaves, default=None))
        return found

    def _left(self, at: PartitionId, head: DelayPartition) -> int:
        taken = head.ledger.end or 0  # nothing expires in a delay topic
        return len(head.held) + max(0, self._ends.get(at, 0) - taken)

    # -- taking -----------------------------------------------------------------------

    def _take(self, idle_s: float) -> None:
        self.heads.take(TAKE_MOST, idle_s, self._wall_ms)
        if self.heads.gone:
            self._refusals.accepted(self.heads.gone)
            self.heads.gone = set()

    def _idle_s(self, now: float) -> float:
        """How long nothing will be due."""
        if self._doubt:
            return IDLE_S
        now_ms = self._wall_ms()
        waits = [
            max((head.leaves_ms - now_ms) / 1000, self._refusals.rests_until(at) - now)
            for at, head in self.heads.heads.items()
            if head.leaves_ms is not None
        ]
        return min(IDLE_S, max(0.0, self._forward_at - now, min(waits, default=IDLE_S)))

    # -- forwarding -------------------------------------------------------------------

    def _settled(self, now: float) -> bool:
        """Whether it is known what was forwarded; else asks, now and then."""
        if self._doubt and now >= self._try_at and not (self._taken and not self._is_member()):
            try:
                self._forwarder.open()
                self.heads.goes_on()  # as alive: each of these calls may take its time
                # What was in doubt and went all the same was not refused.
                self._refusals.accepted(self.heads.read_back())
                self.heads.goes_on()
            except KafkaRequestError as refused:
                self._hold(refused)
            else:
                self._doubt = self._taken = False
                self._opened_at = self._clock()
                self._troubles.pop("producer", None)
        return not self._doubt

    def _hold(self, refused: KafkaRequestError) -> None:
        """Raises FencedByTwin."""
        now = self._clock()
        foreign = self._fences.judge(refused, None, now)
        backoff = self._again if foreign is None else self._fenced
        rest_s = backoff.failed(now - self._opened_at)
        self._try_at = now + rest_s
        self._doubt, self._taken = True, foreign is not None
        why = str(refused)
        if foreign is not None:
            why = f"another process took the transactional id {self._fences.name}"
            _LOG.warning(f"{why}: it is taken back in {rest_s:g} s, what is due waits")
        self._troubles["producer"] = f"cannot forward ({why}); what is due waits"

    def _is_member(self) -> bool:
        """Whether the group still knows us: else who took the id may own our partitions, too."""
        try:
            self.heads.consumer.group_metadata()
        except KafkaRequestError:
            return False
        return True

    def _forward(self, now: float) -> None:
        now_ms = self._wall_ms()
        ready = self._ready(now_ms)
        if now < self._forward_at or not (ready or now >= self._tidy_at):
            return
        run = self._gather(self._refusals.chosen(ready, now), now, now_ms)
        if positions := self._positions(run, now):
            self._send(run, positions)

    def _ready(self, now_ms: int) -> list[PartitionId]:
        """Partitions whose first record is due, the longest overdue first."""
        due = [
            (head.leaves_ms, at)
            for at, head in self.heads.heads.items()
            if head.leaves_ms is not None and head.leaves_ms <= now_ms
        ]
        return [at for _, at in sorted(due)]

    def _gather(self, chosen: list[PartitionId], now: float, now_ms: int) -> DueBatch:
        run = DueBatch()
        for at in chosen:
            for waiting in self.heads.heads[at].due(now_ms):
                target = self._routes.target(waiting, now_ms)
                if target not in self._routes.partitions:
                    self._refusals.rest(at, f"{target} is not there; what is due waits", now)
                    break
                other = run.outputs and run.outputs[-1].topic != target
                if run.full or (other and self._refusals.alone(at)):
                    break
                run.add(at, waiting, self._routes.output(waiting, target, now_ms))
        return run

    def _positions(self, run: DueBatch, now: float) -> dict[PartitionId, int]:
        """Behind what goes; and now and then, the ends of partitions in which nothing waits."""
        heads = self.heads.heads
        moved = {at: heads[at].position(count) for at, count in run.counts.items()}
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            moved |= {at: head.ledger.end for at, head in heads.items() if not head.held}
        return {
            at: position
            for at, position in moved.items()
            if position is not None and position != heads[at].committed
        }

    def _send(self, run: DueBatch, positions: Mapping[PartitionId, int]) -> None:
        try:
            metadata = self.heads.consumer.group_metadata()
        except KafkaRequestError:
            self._forward_at = self._clock() + IDLE_S  # the client will tell of the loss
            return
        try:
            self._forwarder.forward(run.outputs, positions, metadata)
        except KafkaRequestError as refused:
            self._refusals.refused(run.counts, f"refused: {refused}", self._clock())
            self._hold(refused)
        else:
            self._went(run, positions)
        self._forward_at = self._clock() + GATHER_S

    def _went(self, run: DueBatch, positions: Mapping[PartitionId, int]) -> None:
        for at, position in positions.items():
            self.heads.heads[at].reached(position)
        self._refusals.accepted(run.counts)
        self.forwarded += len(run.outputs)
        self.dead += len(run.forged)
        self.transactions += 1
        for waiting in run.forged:
            raw, failure = waiting.raw, waiting.failure
            _LOG.error(
                f"dead letter: {failure.kind}; a record in a delay topic without kworker's headers",
                record=f"{raw.topic()}/{raw.partition()}/{raw.offset()}",
                error=failure.message,
            )

    # -- asking -----------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        if (ends := self._watch.ends()) is not None:
            self._ends = ends
        if (partitions := self._watch.partitions()) is not None:
            self._hear(partitions)
        if (facts := self._watch.facts()) is not None:
            self._hear_of_dead(facts[0].get(self._routes.dead))
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._watch.ask_ends(self.heads.heads)
            routes, here = self._routes, {topic for topic, _ in self.heads.heads}
            self._watch.ask_facts([routes.dead])
            self._watch.ask_partitions({routes.requeue, routes.dead, *routes.delays, *here})

    def _hear_of_dead(self, bytes_max: int | None) -> None:
        if bytes_max is not None:
            self._routes = replace(self._routes, dead_bytes_max=bytes_max)

    def _hear(self, partitions: Mapping[str, int]) -> None:
        """When nobody answers, what was known is still the best guess."""
        if partitions:
            self._troubles.pop("kafka", None)
            self._answering_since = min(self._answering_since, self._clock())
            self._routes = self._routes.of(partitions)
        else:
            self._troubles["kafka"] = "no broker answers; what is due waits"
            self._answering_since = inf

    def _mind_membership(self, now: float) -> None:
        self.membership.update(self.heads.consumer.absence, now)
        if self.membership.renewal_due(now, self._answering_since):
            self.membership.renewed(now)
            _LOG.warning("not a member of the group for too long; another client joins it")
            self.heads.rejoin()
