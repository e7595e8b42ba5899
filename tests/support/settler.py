"""A worker over either Kafka: the poll loop is real, and handlers end when they are told to."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kworker.core.flow import Flow, FlowPolicy
from kworker.core.lanes import Lanes
from kworker.core.message import PartitionId
from kworker.core.outcome import Output
from kworker.core.pauses import NOTHING_PAUSED
from kworker.core.record import Partition, Record
from kworker.instance.rejections import Rejections
from kworker.worker.dispatch import Dispatch
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.intake import IntakePolicy
from kworker.worker.poll_loop import PollLoop
from kworker.worker.publish.at_least_once import AtLeastOnce, DeliveryGuarantee
from kworker.worker.publish.committer import CommitPolicy, Committer
from kworker.worker.publish.exactly_once import ExactlyOnce
from kworker.worker.publish.in_doubt import FencePolicy, FencingJudge
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.publisher import Publisher
from kworker.worker.publish.transactor import TransactionPolicy
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.retries.decider import RetryDecider
from kworker.worker.retries.outputs import FailureOutputs
from kworker.worker.retries.policy import RetryPolicy
from kworker.worker.topic_limits import TopicLimits
from tests.support.kafka_and_twin import Cluster
from tests.support.poll_loop_rig import LIMIT_S, Clock, SteppedPool

HANDS = 100
REVOKE_TIMEOUT_S = 2.0
FENCES = FencePolicy(LIMIT_S, most=4, rest_s=0.05)


class WallClock(Clock):
    """Goes on by itself."""

    def __call__(self) -> float:
        return time.monotonic()


class Settler:
    """One member of a group, which settles exactly once, or, with `once` false, at least once.

    `wrap` may stand before each transactor that it uses. Of two with one `name`, a `young` one
    has only just begun.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: str,
        *,
        group: str,
        name: str,
        interval_s: float = 0.1,
        wrap: Callable[[Any], Any] = lambda transactor: transactor,
        fences: FencePolicy = FENCES,
        young: bool = False,
        once: bool = True,
        dead: str = "dead",
        **properties: Any,
    ) -> None:
        clock = WallClock()
        facts = TopicLimits([dead])
        facts.update({dead: 1_000_000}, {dead: 1})
        self.pool = SteppedPool(clock, HANDS)
        lanes, flow = Lanes("key"), Flow(FlowPolicy(HANDS, 1 << 20))
        dispatch = Dispatch(
            pool=self.pool,
            lanes=lanes,
            flow=flow,
            decider=RetryDecider(
                RetryPolicy(()),
                FailureOutputs(lambda _: "retry", dead, facts),
                None,
                lambda topic: topic,
            ),
            rejections=Rejections(Path("/nonexistent")),
            quarantine=NoQuarantine(),
            claims=Unclaimed(lanes),
            tells_dead=lambda _topic: False,
            clock=clock,
        )
        outbox = Outbox(OutboxPolicy(1 << 24, records_max=1000, retry_s=0.3))
        made: list[Any] = []

        def consumer(listener: Any) -> Any:
            made.append(cluster.consumer(listener, group, **properties))
            return made[0]

        def guarantee(
            client: Any, committer: Committer, owned: Mapping[PartitionId, Partition]
        ) -> DeliveryGuarantee:
            def make() -> Any:
                return wrap(cluster.transactor(name))

            if not once:
                publisher = Publisher(cluster.producer, outbox)
                return AtLeastOnce(publisher, committer, owned, outbox)
            fencing = FencingJudge(name, fences, clock() if young else -math.inf)
            policy = TransactionPolicy()
            return ExactlyOnce(make, client, committer, owned, outbox, policy, fencing)

        self.poll_loop = PollLoop(
            consumer=consumer,
            identify=cluster.identities,
            committer=lambda client: Committer(
                client, CommitPolicy(interval_s, 10_000, resting_s=interval_s)
            ),
            outbox=outbox,
            guarantee=guarantee,
            lanes=lanes,
            flow=flow,
            dispatch=dispatch,
            intake=IntakePolicy(),
            had={},
            paused_by_operator=lambda _now: NOTHING_PAUSED,
            revoke_timeout_s=REVOKE_TIMEOUT_S,
        )
        self.consumer = made[0]
        self.consumer.subscribe([source])

    @property
    def owned(self) -> list[PartitionId]:
        return sorted(self.poll_loop.assignment.partitions)

    def turn(self) -> None:
        self.poll_loop.turn()

    def in_hand(self) -> list[bytes | None]:
        """Values of what has begun and not ended."""
        return [record.raw.value() for record in self.pool.held]

    def begun(self) -> list[bytes | None]:
        """Offsets of all that ever began, and where."""
        return [record.offset for record in self.pool.runs]

    def end(
        self,
        *values: bytes,
        topic: str = "",
        result: bytes | None = None,
        key: bytes | None = None,
    ) -> None:
        """Handlers end: with a result for `topic`, which is the record's value unless given."""
        for value in values:
            record: Record = next(r for r in self.pool.held if r.raw.value() == value)
            outputs = [Output(topic, key, result or value, [])] if topic else None
            self.pool.end(record, outputs)
