"""Puts the parts of a worker together, as its configuration says."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kworker.clients.producer import KafkaProducer
from kworker.clients.transactions import KafkaTransactor
from kworker.config.client_properties import transactional_id, worker_producer_properties
from kworker.config.model import Config
from kworker.config.topics import of_a_service
from kworker.core.flow import Flow, FlowPolicy
from kworker.core.lanes import Lanes
from kworker.core.message import PartitionId
from kworker.core.pauses import EVERYTHING_PAUSED, NOTHING_PAUSED, PausedTopics
from kworker.core.record import Partition
from kworker.instance.crash_journal import CrashJournal, WatchedJournal
from kworker.instance.pause_file import PauseFile, WatchedPauses
from kworker.instance.process_identity import LocalProcesses, own_identity
from kworker.instance.rejections import Rejections
from kworker.instance.state_folder import StateFolder
from kworker.worker.assignment import Identify
from kworker.worker.dispatch import Dispatch
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.pool_factory import HandlerPool, runs_at_once
from kworker.worker.idempotency import key
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.claim_thread import ClaimPolicy, Claims, ClaimThread, SharedState
from kworker.worker.idempotency.prefetch import ClaimPrefetch
from kworker.worker.idempotency.redis_outbox import RedisOutbox
from kworker.worker.idempotency.shared_pauses import SharedPauses, make_shared_pauses
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.intake import IntakePolicy
from kworker.worker.poll_loop import PollLoop, WorkerConsumer
from kworker.worker.publish.at_least_once import AtLeastOnce, DeliveryGuarantee
from kworker.worker.publish.committer import CommitPolicy, Committer
from kworker.worker.publish.exactly_once import ExactlyOnce
from kworker.worker.publish.in_doubt import FencePolicy, FencingJudge
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.producer_sizes import SizedProperties
from kworker.worker.publish.publisher import Producer, Publisher
from kworker.worker.publish.transactor import TransactionPolicy, Transactor
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.quarantine.shared_suspects import SharedSuspects
from kworker.worker.retries.dead_letter_limit import DeadLetterLimit, DeadLetterLimitPolicy
from kworker.worker.retries.decider import RetryDecider
from kworker.worker.retries.outputs import FailureOutputs
from kworker.worker.retries.policy import RetryPolicy
from kworker.worker.topic_limits import TopicLimits

_TRANSACTION_S = 10.0  # for each step of one


def _redis_claims(url: str, *, prefix: str, owner: str, ttl_s: float) -> Claims:
    from kworker.clients.redis import RedisClaims  # megabytes, for those who use it

    return RedisClaims(url, prefix=prefix, owner=owner, ttl_s=ttl_s)


@dataclass(frozen=True, slots=True)
class Platform:
    """The clients and clocks of a worker; `kworker.testing` replaces them by simulated ones.

    `clock` returns monotonic seconds, `wall` seconds since 1970.
    """

    producer: Callable[[Mapping[str, Any]], Producer] = KafkaProducer
    transactor: Callable[[Mapping[str, Any], str, float], Transactor] = KafkaTransactor
    claims: Callable[..., Claims] = _redis_claims
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Role:
    """The differences between a worker and a replay.

    `reader` makes the consumer, given its rebalance listener. `replay` is the id that the outputs
    of a replay carry. Only a worker runs suspected records in a separate process (`isolates`).
    `had` maps each partition in which the group has ever had a position to the id of its topic.
    `began` is the service's start, in monotonic seconds.
    """

    slot: int
    reader: Callable[[Any], WorkerConsumer]
    identify: Identify
    intake: IntakePolicy
    replay: str = ""
    isolates: bool = True
    had: Mapping[PartitionId, str] = field(default_factory=dict)
    began: float = -math.inf
    platform: Platform = Platform()


@dataclass(frozen=True, slots=True)
class SharedStates:
    """State that the instances of a service share in Redis; None for a state not shared."""

    pauses: SharedPauses | None = None
    suspects: SharedSuspects | None = None

    def __iter__(self) -> Iterator[SharedState]:
        yield from filter(None, (self.pauses, self.suspects))


def make_intake(config: Config) -> IntakePolicy:
    """Makes the rules for taking records: requeue topic, source topics, maximum age, tombstones."""
    source = config.source
    skips = source.tombstones == "skip"
    return IntakePolicy(config.requeue_topic, _is_source(config), source.max_age, skips)


def make_poll_loop(
    config: Config, role: Role, pool: HandlerPool, handlers: Handlers, limits: TopicLimits
) -> PollLoop:
    """Assembles the poll loop of a worker, or of a replay."""
    workers, delivery, retry = config.workers, config.delivery, config.retry
    commits = CommitPolicy(delivery.commit_interval, delivery.commit_records)
    outbox = Outbox(OutboxPolicy(workers.in_flight_bytes, 2 * delivery.commit_records), limits)
    lanes = Lanes(workers.ordering)
    flow = Flow(
        FlowPolicy(workers.in_flight, workers.in_flight_bytes, retry.held, retry.held_bytes)
    )
    folder = StateFolder(config.state_dir)
    at_once = runs_at_once(workers, handlers)
    shared = make_shared(config, folder) if role.isolates else SharedStates()
    dispatch = Dispatch(
        pool=pool,
        lanes=lanes,
        flow=flow,
        decider=make_decider(config, limits, role),
        rejections=Rejections(folder.rejected, removes=not role.replay),
        quarantine=(
            Quarantine(config, folder.suspects, limits, shared.suspects)
            if role.isolates
            else NoQuarantine()
        ),
        claims=(
            make_claims(config, folder, at_once, shared, role.platform)
            if config.idempotency
            else Unclaimed(lanes)
        ),
        tells_dead=lambda topic: handlers.on_dead_of(topic) is not None,
        clock=role.platform.clock,
    )
    return PollLoop(
        consumer=role.reader,
        identify=role.identify,
        committer=lambda client: Committer(client, commits),
        outbox=outbox,
        guarantee=make_guarantee(config, role, limits, outbox),
        dispatch=dispatch,
        lanes=lanes,
        flow=flow,
        intake=role.intake,
        revoke_timeout_s=workers.revoke_timeout,
        had=role.had,
        paused_by_operator=make_paused(role, folder, shared.pauses),
        clock=role.platform.clock,
        wall=role.platform.wall,
    )


def make_guarantee(
    config: Config, role: Role, limits: TopicLimits, outbox: Outbox
) -> Callable[[WorkerConsumer, Committer, Mapping[PartitionId, Partition]], DeliveryGuarantee]:
    """Returns a function that makes the configured delivery guarantee for a consumer."""
    properties = worker_producer_properties(config, slot=role.slot)
    sized = SizedProperties(properties, limits)

    def at_least_once(
        _client: WorkerConsumer, committer: Committer, owned: Mapping[PartitionId, Partition]
    ) -> DeliveryGuarantee:
        publisher = Publisher(
            lambda: role.platform.producer(sized.properties()), outbox, outdated=sized.outdated
        )
        return AtLeastOnce(publisher, committer, owned, outbox)

    def exactly_once(
        client: WorkerConsumer, committer: Committer, owned: Mapping[PartitionId, Partition]
    ) -> DeliveryGuarantee:
        name = transactional_id(config, role.slot)
        limit_s = int(properties["transaction.timeout.ms"]) / 1000
        return ExactlyOnce(
            lambda: role.platform.transactor(sized.properties(), name, _TRANSACTION_S),
            client,
            committer,
            owned,
            outbox,
            TransactionPolicy(),
            FencingJudge(name, FencePolicy(limit_s), role.began),
            outdated=sized.outdated,
        )

    return exactly_once if config.delivery.guarantee == "exactly-once" else at_least_once


def make_decider(config: Config, limits: TopicLimits, role: Role) -> RetryDecider:
    """Makes the object that decides whether a failed record is retried or becomes a dead letter."""
    retry = config.retry
    breaker = DeadLetterLimitPolicy.of(config.dead_letter.breaker)
    return RetryDecider(
        RetryPolicy(tuple(retry.delays), frozenset(retry.never), retry.mode == "hold"),
        FailureOutputs(
            config.retry_topic, config.dead_letter.topic, limits, role.replay, config.requeue_topic
        ),
        DeadLetterLimit(breaker) if breaker else None,
        config.route,
        role.platform.wall,
    )


def make_shared(config: Config, folder: StateFolder) -> SharedStates:
    """Makes the state that the instances share in Redis, if Redis is configured.

    This state is the pauses, and the list of records that may have killed workers of any host.
    """
    chosen = config.idempotency
    if chosen is None:
        return SharedStates()
    from kworker.clients.redis import RedisTexts  # megabytes, for those who use it

    suspects = RedisTexts(chosen.redis, kind="suspects", prefix=chosen.prefix)
    return SharedStates(
        make_shared_pauses(config.name, chosen, PauseFile(folder.pauses)),
        SharedSuspects(suspects, WatchedJournal(CrashJournal(folder.suspects))),
    )


def make_paused(
    role: Role, folder: StateFolder, shared: SharedPauses | None
) -> Callable[[float], PausedTopics]:
    """Returns a function of the monotonic time, which returns the topics paused by operators.

    Where pauses are shared, everything is paused until Redis has been asked once, even in vain:
    another host may have paused a topic while this instance did not run. A replay does not heed
    pauses.
    """
    if role.replay:
        return lambda _now: NOTHING_PAUSED
    watched = WatchedPauses(PauseFile(folder.pauses), role.platform.wall)
    if shared is None:
        return watched.refresh
    return lambda now: watched.refresh(now) if shared.asked else EVERYTHING_PAUSED


def make_claims(
    config: Config,
    folder: StateFolder,
    at_once: int,
    shared: SharedStates,
    platform: Platform,
) -> ClaimClient:
    """Makes the client that claims records in Redis.

    `at_once` is the number of records that handlers may run at the same time.
    """
    chosen = config.idempotency
    assert chosen is not None
    owner = own_identity(config.instance)
    claiming = ClaimThread(
        platform.claims(chosen.redis, prefix=chosen.prefix, owner=owner, ttl_s=chosen.ttl),
        owner=owner,
        id_of=key.load(chosen.key),
        policy=ClaimPolicy(chosen.lease, chosen.missing, chosen.unavailable),
        gone=LocalProcesses(config.instance).has_ended,
        outbox=RedisOutbox(folder.marks, owner),
        shared=list(shared),
        clock=platform.clock,
    )
    return ClaimClient(claiming, ClaimPrefetch(at_once), chosen.unavailable)


def _is_source(config: Config) -> Callable[[str], bool]:
    """Returns a function that tells whether a topic is one of this service's source topics."""
    if config.source.pattern:
        pattern = re.compile(config.source.pattern)
        return lambda topic: bool(pattern.match(topic)) and not of_a_service(topic)
    return frozenset(config.source.topics).__contains__
