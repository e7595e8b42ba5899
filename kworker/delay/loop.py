"""The loop of the delay process: polls, forwards, pauses partitions, and queries the brokers.

This file has over 300 lines, since polling, forwarding and in-doubt transactions share one state.
"""

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

POLL_RECORDS = 500  # records a turn
IDLE_S = 0.1  # the longest wait in the client while nothing is due
GATHER_S = 0.02  # from one transaction to the next, while more comes due
TIDY_S = 2.0  # between transactions that only move positions past gaps
REST_S = 1.0  # of a partition that was refused alone; and the longest back-off before
AGAIN_S = 0.05  # the first back-off before another producer is made
ASK_S = 2.0


class DelayWatch(Protocol):
    """The methods of `KafkaWatch` that the loop calls."""

    @property
    def rejection(self) -> str: ...
    def ask_ends(self, partitions: Iterable[PartitionId]) -> None: ...
    def ends(self) -> dict[PartitionId, int] | None: ...
    def ask_partitions(self, topics: Iterable[str]) -> None: ...
    def partitions(self) -> dict[str, int] | None: ...
    def ask_facts(self, topics: Iterable[str]) -> None: ...
    def facts(self) -> tuple[dict[str, int], dict[str, int]] | None: ...


class DelayLoop:
    """The main loop of the delay process: forwards the records of delay topics when due.

    One thread runs it. A turn sleeps up to IDLE_S while nothing is due, and blocks in Kafka
    for the producer's time-out at most. The wall clock, which may jump, decides which records
    are due; the monotonic clock decides when a failed request is repeated.
    """

    def __init__(
        self,
        assignment: DelayAssignment,
        forwarder: Forwarder,
        watch: DelayWatch,
        routes: Routes,
        fences: FencingJudge,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`routes` has no partition counts yet: the loop asks `watch` for them."""
        self.assignment = assignment
        self.forwarded = self.dead = self.transactions = 0
        self._forwarder = forwarder
        self._watch = watch
        self._routes = routes
        self._clock = clock
        self._wall_ms = wall_ms
        self._refusals = RefusedPartitions(REST_S)
        self._again = Backoff(AGAIN_S, REST_S, calm_s=10.0)
        self._fences = fences
        # A process that takes our id again and again gets it back ever more slowly: records
        # here can wait, and of two services with one id, the second one ends meanwhile.
        self._fenced = Backoff(REST_S, 30.0, calm_s=60.0)
        self._id_taken = False  # by another process, from which a zombie must not take it back
        self._problems: dict[str, str] = {}
        self._ends: Mapping[PartitionId, int] = {}
        self.membership = Membership(MembershipPolicy(), clock())
        self._answering_since = inf  # the brokers
        # Without any delay topic, the client finds none to join the group for.
        self._needed = bool(routes.delays)
        self._in_doubt = True  # a transaction is, or there is no producer
        self._opened_at = 0.0
        self._try_at = self._forward_at = self._tidy_at = self._ask_at = 0.0

    def turn(self) -> None:
        """Runs one turn: polls, forwards due records, and pauses or resumes partitions.

        Every ASK_S seconds it also asks the brokers for partition counts, end offsets and the size
        limit of dead letters.
        """
        self._poll(self._idle_s(self._clock()))
        if self._resolve_doubt(self._clock()):
            self._forward(self._clock())
        self.assignment.adjust(self._wall_ms())
        self._ask_brokers(self._clock())
        self._forwarder.serve()
        self._check_membership(self._clock())

    @property
    def problems(self) -> list[str]:
        """The present problems of the delay process, one line each."""
        if self.assignment.problem is not None:  # the others are out of date until it ends
            return [self.assignment.problem]
        absent = self.membership.problem(self._clock(), self._answering_since)
        return [
            *self._problems.values(),
            *([absent] if absent else []),
            *self._refusals.problems,
            *self.assignment.problems.values(),
        ]

    def waiting(self) -> dict[str, tuple[int, int | None]]:
        """Returns, for each delay topic, how many records wait and when the first may leave.

        The time is in ms since 1970; it is None if no record is held in memory. Of the records that
        are not fetched yet, only the offsets are counted. Some offsets are transaction markers, so
        the number may be too high.
        """
        found: dict[str, tuple[int, int | None]] = dict.fromkeys(self._routes.delays, (0, None))
        for at, partition in self.assignment.partitions.items():
            count, first_ms = found.get(at[0], (0, None))
            leaves = [ms for ms in (first_ms, partition.leaves_ms) if ms is not None]
            found[at[0]] = (count + self._left(at, partition), min(leaves, default=None))
        return found

    def _left(self, at: PartitionId, partition: DelayPartition) -> int:
        taken = partition.ledger.end or 0  # nothing expires in a delay topic
        return len(partition.held) + max(0, self._ends.get(at, 0) - taken)

    # -- polling ----------------------------------------------------------------------

    def _poll(self, idle_s: float) -> None:
        self.assignment.poll(POLL_RECORDS, idle_s, self._wall_ms)
        if self.assignment.gone:
            self._refusals.accepted(self.assignment.gone)
            self.assignment.gone = set()

    def _idle_s(self, now: float) -> float:
        """Returns the seconds, IDLE_S at most, until the next record can be forwarded."""
        if self._in_doubt:
            return IDLE_S
        now_ms = self._wall_ms()
        waits = [
            max((partition.leaves_ms - now_ms) / 1000, self._refusals.rests_until(at) - now)
            for at, partition in self.assignment.partitions.items()
            if partition.leaves_ms is not None
        ]
        return min(IDLE_S, max(0.0, self._forward_at - now, min(waits, default=IDLE_S)))

    # -- forwarding -------------------------------------------------------------------

    def _resolve_doubt(self, now: float) -> bool:
        """Finds out whether a failed transaction was committed after all.

        Once the back-off has ended, opens a producer and reads the committed positions to find out.
        The first call does the same, because there is no producer yet. Returns True if no
        transaction is in doubt now, so that records may be forwarded.
        """
        may_try = now >= self._try_at
        if self._in_doubt and may_try and not (self._id_taken and not self._is_member()):
            try:
                self._forwarder.open()
                self.assignment.goes_on()  # beats: each of these calls may block for a while
                # Records that were committed after all were not refused.
                self._refusals.accepted(self.assignment.read_positions())
                self.assignment.goes_on()
            except KafkaRequestError as refused:
                self._back_off(refused)
            else:
                self._in_doubt = self._id_taken = False
                self._opened_at = self._clock()
                self._refusals.resumed(self._opened_at)
                self._problems.pop("producer", None)
        return not self._in_doubt

    def _back_off(self, refused: KafkaRequestError) -> None:
        """Sets the time of the next attempt, after Kafka has refused a request.

        Raises FencedByTwin if other processes with the same transactional id have fenced this
        process too often.
        """
        now = self._clock()
        foreign = self._fences.judge(refused, None, now)
        backoff = self._again if foreign is None else self._fenced
        rest_s = backoff.failed(now - self._opened_at)
        self._try_at = now + rest_s
        self._in_doubt, self._id_taken = True, foreign is not None
        why = str(refused)
        if foreign is not None:
            why = f"another process took the transactional id {self._fences.name}"
            _LOG.warning(
                f"another process took the transactional id {self._fences.name}; does another"
                " copy of the service run with the same `instance`? The delay process takes the id"
                f" back in {rest_s:g} s; due records wait until then"
            )
        self._problems["producer"] = f"cannot forward ({why}); due records wait"

    def _is_member(self) -> bool:
        """Returns True if this process is in the group.

        If it is not, another member may own its partitions.
        """
        try:
            self.assignment.consumer.group_metadata()
        except KafkaRequestError:
            return False
        return True

    def _forward(self, now: float) -> None:
        now_ms = self._wall_ms()
        ready = self._ready(now_ms)
        if now < self._forward_at or not (ready or now >= self._tidy_at):
            return
        batch = self._gather(self._refusals.choose(ready, now), now, now_ms)
        if positions := self._positions(batch, now):
            self._send(batch, positions)

    def _ready(self, now_ms: int) -> list[PartitionId]:
        """Returns the partitions whose first record is due, the longest overdue first."""
        due = [
            (partition.leaves_ms, at)
            for at, partition in self.assignment.partitions.items()
            if partition.leaves_ms is not None and partition.leaves_ms <= now_ms
        ]
        return [at for _, at in sorted(due)]

    def _gather(self, chosen: list[PartitionId], now: float, now_ms: int) -> DueBatch:
        batch = DueBatch()
        for at in chosen:
            for waiting in self.assignment.partitions[at].due(now_ms):
                target = self._routes.target(waiting, now_ms)
                if target not in self._routes.partitions:
                    self._refusals.rest(at, f"{target} does not exist; due records wait", now)
                    break
                other = batch.outputs and batch.outputs[-1].topic != target
                if batch.full or (other and self._refusals.is_alone(at)):
                    break
                batch.add(at, waiting, self._routes.output(waiting, target, now_ms))
        return batch

    def _positions(self, batch: DueBatch, now: float) -> dict[PartitionId, int]:
        """Returns the positions to commit: those after the records of the batch.

        Every TIDY_S seconds, also returns the positions of partitions that hold no record. So the
        group's positions move past offsets that have no record, such as transaction markers.
        """
        partitions = self.assignment.partitions
        moved = {at: partitions[at].position_after(count) for at, count in batch.counts.items()}
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            moved |= {at: each.ledger.end for at, each in partitions.items() if not each.held}
        return {
            at: position
            for at, position in moved.items()
            if position is not None and position != partitions[at].committed
        }

    def _send(self, batch: DueBatch, positions: Mapping[PartitionId, int]) -> None:
        try:
            metadata = self.assignment.consumer.group_metadata()
        except KafkaRequestError:
            self._forward_at = self._clock() + IDLE_S  # the client will report the loss
            return
        try:
            self._forwarder.forward(batch.outputs, positions, metadata)
        except KafkaRequestError as refused:
            self._refusals.refused(batch.counts, f"refused: {refused}")
            self._back_off(refused)
        else:
            self._record_forwarded(batch, positions)
        self._forward_at = self._clock() + GATHER_S

    def _record_forwarded(self, batch: DueBatch, positions: Mapping[PartitionId, int]) -> None:
        for at, position in positions.items():
            self.assignment.partitions[at].advance_to(position)
        self._refusals.accepted(batch.counts)
        self.forwarded += len(batch.outputs)
        self.dead += len(batch.forged)
        self.transactions += 1
        for waiting in batch.forged:
            raw, failure = waiting.raw, waiting.failure
            _LOG.error(
                f"a record of a delay topic becomes a dead letter ({failure.kind}): it has no valid"
                " kworker headers",
                record=f"{raw.topic()}:{raw.partition()}:{raw.offset()}",
                error=failure.message,
            )

    # -- asking -----------------------------------------------------------------------

    def _ask_brokers(self, now: float) -> None:
        if (ends := self._watch.ends()) is not None:
            self._ends = ends
        if (partitions := self._watch.partitions()) is not None:
            self._learn_partitions(partitions)
        if (facts := self._watch.facts()) is not None:
            self._learn_limit(facts[0].get(self._routes.dead))
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._watch.ask_ends(self.assignment.partitions)
            routes, here = self._routes, {topic for topic, _ in self.assignment.partitions}
            self._watch.ask_facts([routes.dead])
            self._watch.ask_partitions({routes.requeue, routes.dead, *routes.delays, *here})

    def _learn_limit(self, bytes_max: int | None) -> None:
        if bytes_max is not None:
            self._routes = replace(self._routes, dead_bytes_max=bytes_max)

    def _learn_partitions(self, partitions: Mapping[str, int]) -> None:
        """Stores each topic's partition count; keeps the earlier counts if no broker answered."""
        if partitions:
            self._problems.pop("kafka", None)
            self._answering_since = min(self._answering_since, self._clock())
            self._routes = self._routes.with_partitions(partitions)
        else:
            self._problems["kafka"] = self._watch.rejection or "no broker answers; due records wait"
            self._answering_since = inf

    def _check_membership(self, now: float) -> None:
        self._needed |= bool(self.assignment.partitions)
        self.membership.update(self.assignment.consumer.absence if self._needed else None, now)
        if self.membership.renewal_due(now, self._answering_since):
            self.membership.renewed(now)
            _LOG.warning(
                "the delay process was out of its consumer group for too long; it"
                " joins again with a new client"
            )
            self.assignment.rejoin()
