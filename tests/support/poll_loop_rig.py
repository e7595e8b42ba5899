"""A whole worker but for its threads: the real poll loop on the twin, a pool stepped by tests."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from kworker.clients.errors import KafkaRequestError
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.consumer import MemoryConsumer
from kworker.clients.memory.producer import MemoryProducer
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.duration import format_duration
from kworker.core.flow import Flow, FlowPolicy
from kworker.core.lanes import Lanes, Ordering
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed
from kworker.core.outcome import Failed, Outcome, Output
from kworker.core.record import Partition, Record
from kworker.instance.pause_file import PauseFile, WatchedPauses
from kworker.instance.rejections import Rejections
from kworker.replay.ranges import OffsetRanges, RangeConsumer
from kworker.worker.assignment import Identify
from kworker.worker.dispatch import Dispatch
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.pool import Pool, Take
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.intake import IntakePolicy
from kworker.worker.poll_loop import PollLoop
from kworker.worker.publish.at_least_once import AtLeastOnce, DeliveryGuarantee
from kworker.worker.publish.committer import CommitPolicy, Committer
from kworker.worker.publish.exactly_once import ExactlyOnce, RunInBackground
from kworker.worker.publish.in_doubt import FencePolicy, FencingJudge
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.producer_sizes import SizedProperties
from kworker.worker.publish.publisher import Publisher, ReportPolicy
from kworker.worker.publish.transactor import TransactionPolicy
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.dead_letter_limit import DeadLetterLimit, DeadLetterLimitPolicy
from kworker.worker.retries.decider import RetryDecider
from kworker.worker.retries.outputs import FailureOutputs
from kworker.worker.retries.policy import RetryPolicy
from kworker.worker.topic_limits import TopicLimits
from tests.support.records import outcome_of

GROUP = "orders"
RESULTS = "orders.results"
REQUEUE = "orders.requeue"
DEAD = "orders.dead"
REPLAY = "0a1b2c"  # the id of a replay
DELAYS_S = (1.0, 10.0)
HOLD = RetryPolicy((1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0), hold=True)
REVOKE_TIMEOUT_S = 5.0
LIMIT_S = 30.0  # of a transaction
TURN_S = 0.25  # longer than the commit interval: what is settled is committed in the same turn


def retry_topic(delay_s: float) -> str:
    return f"orders.retry.{format_duration(delay_s)}"


OWN = (REQUEUE, DEAD, *map(retry_topic, DELAYS_S))


class Clock:
    """Goes on when the test, or a wait, says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SteppedEnded(CompletionQueue):
    """Waiting for an outcome takes no time but the clock's, and lets the test act meanwhile."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.meanwhile: Callable[[], None] = lambda: None

    def take(self, wait_s: float) -> list[Record]:
        if ended := super().take(0.0):
            return ended
        if wait_s:
            self._clock.now += wait_s
            self.meanwhile()
        return super().take(0.0)


class SteppedPool:
    """Begins what it is handed, and ends it when told so."""

    runs_in_order: ClassVar[bool] = False
    one_is_enough: ClassVar[bool] = False
    runs_chunks: ClassVar[bool] = False

    def __init__(self, clock: Clock, hands: int) -> None:
        self.completed = SteppedEnded(clock)
        self.held: list[Record] = []  # begun and not ended
        self.runs: list[Record] = []  # every begin, in order
        self.computing = False
        self.flush: Callable[[], None] = lambda: None  # what the test does when it hears of it
        self.waiting: deque[Record] | None = None  # instead of beginning them, if the test says so
        self.given_back: list[Record] = []  # of those, at the next turn
        self._hands = hands

    def feed(self, take: Take) -> int:
        fed = 0
        while (room := self._hands - len(self.held)) > 0 and (run := take(room)):
            fed += len(run)
            self._begin(run)
        return fed

    @property
    def has_work(self) -> bool:
        return bool(self.held or self.waiting)

    def slack_s(self) -> float:
        return 0.0

    def begin_waiting(self) -> None:
        """What was handed over and did not begin."""
        waiting, self.waiting = self.waiting, None
        self._begin(waiting or deque())

    def _begin(self, run: deque[Record]) -> None:
        if self.waiting is not None:
            self.waiting += run
            return
        for record in run:
            if record.partition.open:
                self.held.append(record)
                self.runs.append(record)
            else:
                record.outcome = NOT_ATTEMPTED
                self.completed.add(record)

    def reclaim(self, now: float) -> list[Record]:
        back, self.given_back = self.given_back, []
        return back

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        back = list(self.waiting or ())
        if self.waiting:
            self.waiting.clear()
        return back

    def end(self, record: Record, outcome: Outcome | list[Output] | None = None) -> None:
        self.held.remove(record)
        record.outcome = outcome_of(outcome)
        self.completed.add(record)


class Straggling(MemoryConsumer):
    """A client that hands over, once, what it had fetched before it was told otherwise."""

    unstable: Callable[[], None] = staticmethod(lambda: None)  # asked before it reads positions
    late: Sequence[RawMessage] = ()
    late_by_assignment: Sequence[RawMessage] = ()

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:
        batch = super().poll(most, timeout_s)
        late, self.late = self.late, ()
        return [*late, *batch]

    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]:
        if self._group.pending:
            self.unstable()
        return super().positions(partitions, timeout_s)

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        super().assign(positions)
        self.late, self.late_by_assignment = self.late_by_assignment, ()


def at_once(call: Callable[[], Any]) -> "Future[Any]":
    """Runs what would run aside."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except KafkaRequestError as refused:
        future.set_exception(refused)
    return future


class Bench:
    """One worker of the group; with a course, a replay beside it."""

    def __init__(
        self,
        kafka: MemoryKafka,
        topics: list[str],
        *,
        clock: Clock | None = None,
        hands: int = 100,
        in_flight: int = 1000,
        ordering: Ordering = "key",
        static: str = "",
        retry: RetryPolicy | None = None,
        breaker: DeadLetterLimitPolicy | None = None,
        held: int = 5000,
        max_age_s: float | None = None,
        skips_tombstones: bool = False,
        state_dir: Path | None = None,
        claims: ClaimClient | None = None,
        tells_dead: bool = False,
        course: OffsetRanges | None = None,
        transactional: str = "",
        transactor: Callable[[MemoryTransactor], Any] = lambda transactor: transactor,
        begin: RunInBackground = at_once,
        identify: Identify | None = None,
        had: Mapping[PartitionId, str] | None = None,
        crowded_records: int = 250,
        pool: Pool | None = None,
        quarantine: Quarantine | None = None,
        began: float = -math.inf,
        pauses: Path | None = None,
        reports: ReportPolicy | None = None,
    ) -> None:
        """`transactional` is the id of one that settles exactly once; `pool` runs by itself.

        `transactor` may stand before each that it uses; `begin` runs what would run aside.
        """
        self.kafka = kafka
        self.name = transactional
        self.clock = clock or Clock()
        for own in OWN:
            if kafka.topic(own) is None:
                kafka.create(own, 2)
        self.facts = TopicLimits([RESULTS, *OWN])
        self.learn()
        sized = SizedProperties({}, self.facts)
        self.pool = SteppedPool(self.clock, hands)
        self.group = GROUP if course is None else f"{GROUP}.replay.{REPLAY}"
        properties = {"group.id": self.group, "enable.partition.eof": True}
        if static:
            properties["group.instance.id"] = static
        made: list[Straggling] = []

        def consumer(listener: Any) -> Any:
            made.append(Straggling(kafka, properties, listener))
            return RangeConsumer(made[0], listener, course) if course else made[0]

        lanes, flow = (
            Lanes(ordering),
            Flow(FlowPolicy(in_flight, 1 << 20, held_max=held, crowded_records=crowded_records)),
        )
        dispatch = Dispatch(
            pool=pool or self.pool,
            lanes=lanes,
            flow=flow,
            decider=RetryDecider(
                retry or RetryPolicy(DELAYS_S),
                FailureOutputs(retry_topic, DEAD, self.facts, REPLAY if course else "", REQUEUE),
                DeadLetterLimit(breaker) if breaker else None,
                lambda topic: topic,
                self.clock,
            ),
            rejections=Rejections(state_dir or Path("/nonexistent"), removes=course is None),
            quarantine=quarantine or NoQuarantine(),
            claims=claims or Unclaimed(lanes),
            tells_dead=lambda _topic: tells_dead,
            clock=self.clock,
        )
        outbox = Outbox(OutboxPolicy(1 << 20, records_max=1000), self.facts)

        def guarantee(
            client: Any, committer: Committer, owned: Mapping[PartitionId, Partition]
        ) -> DeliveryGuarantee:
            if not transactional:
                publisher = Publisher(
                    lambda: MemoryProducer(kafka, sized.properties()),
                    outbox,
                    reports,
                    outdated=sized.outdated,
                )
                return AtLeastOnce(publisher, committer, owned, outbox)

            def make() -> Any:
                made = MemoryTransactor(kafka, sized.properties(), transactional, 10.0)
                return transactor(made)

            policy = TransactionPolicy(again_s=(0.0, 0.0), rest_s=0.0)
            fences = FencingJudge(transactional, FencePolicy(LIMIT_S, rest_s=0.0), began)
            return ExactlyOnce(
                make, client, committer, owned, outbox, policy, fences, begin, sized.outdated
            )

        self.paused = WatchedPauses(PauseFile(pauses or Path("/nonexistent")), self.wall)
        self.poll_loop = PollLoop(
            consumer=consumer,
            identify=identify or kafka.identities,
            committer=lambda client: Committer(client, CommitPolicy(0.2, 10_000)),
            outbox=outbox,
            guarantee=guarantee,
            lanes=lanes,
            flow=flow,
            dispatch=dispatch,
            had=had or {},
            paused_by_operator=self.paused.refresh,
            intake=IntakePolicy(
                REQUEUE, lambda topic: not topic.startswith(GROUP), max_age_s, skips_tombstones
            ),
            revoke_timeout_s=REVOKE_TIMEOUT_S,
            clock=self.clock,
            wall=self.wall,
        )
        self.consumer = made[0]
        if topics:
            self.consumer.subscribe(topics)

    def wall(self) -> float:
        return 1_700_000_000.0 + self.clock.now

    def learn(self) -> None:
        """What the brokers tell of the topics that it writes."""
        topics = {name: topic for name in self.facts.topics if (topic := self.kafka.topic(name))}
        self.facts.update(
            {name: topic.max_message_bytes for name, topic in topics.items()},
            {name: len(topic.logs) for name, topic in topics.items()},
        )
        self.facts.stale = False

    @property
    def owned(self) -> list[PartitionId]:
        return sorted(self.poll_loop.assignment.partitions)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.now += TURN_S
            self.poll_loop.turn()
            if self.facts.stale and self.kafka.up:
                self.learn()

    def in_hand(self) -> list[bytes | None]:
        """Values of what has begun and not ended."""
        return [record.raw.value() for record in self.pool.held]

    def holds(self, value: bytes) -> Record:
        return next(record for record in self.pool.held if record.raw.value() == value)

    def end(self, *values: bytes) -> None:
        for value in values:
            self.pool.end(self.holds(value))

    def end_with_result(self, value: bytes) -> None:
        record = self.holds(value)
        self.pool.end(record, [Output(RESULTS, None, b"result of " + value, [])])

    def fail(self, value: bytes) -> None:
        self.pool.end(self.holds(value), Failed(ValueError(f"no {value.decode()}")))

    def drain(self) -> None:
        """What has begun may end meanwhile; raises if that is not enough."""
        self.poll_loop.stop_taking()
        for _ in range(200):
            if self.poll_loop.idle:
                return
            for record in list(self.pool.held):
                self.pool.end(record)
            self.turn()
        raise AssertionError("the drain does not end")

    def die(self) -> None:
        """As by SIGKILL: nothing is said to anybody; the group notices in its time."""
        self.consumer.expire()


def take_turns(*benches: Bench, count: int = 6) -> None:
    for _ in range(count):
        for bench in benches:
            bench.turn()


def two_partitions(records: int = 4) -> MemoryKafka:
    """A topic of two partitions, each with records `partition-offset` of as many keys."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo", 2)
    kafka.create(RESULTS)
    for partition in (0, 1):
        for i in range(records):
            kafka.append("foo", partition, value=b"%d-%d" % (partition, i), key=b"%d" % i)
    return kafka
