"""Assembles and runs a replay, in which settled records go through the handler once more."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import structlog

from kworker.clients.consumer import KafkaConsumer, Listener
from kworker.clients.errors import Fenced, KafkaRequestError
from kworker.clients.leaving import leave
from kworker.clients.watch import KafkaWatch
from kworker.config.client_properties import Properties, admin_properties, consumer_properties
from kworker.config.model import Config
from kworker.config.topics import BYTES_MAX, TopicInfo, source_topics
from kworker.core.failure import Failure
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, Settled, TopicIdentity, ids_untold
from kworker.core.times import TimeRange
from kworker.errors import ConfigError, KworkerError
from kworker.instance.scoreboard import Scoreboard, hands_of
from kworker.replay.ranges import OffsetRanges, RangeConsumer, settled_ranges
from kworker.worker.assembly import Role, make_intake, make_poll_loop
from kworker.worker.handlers import loader
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.pool_factory import make_encoder, make_pool
from kworker.worker.topic_limits import TopicLimits

_LOG = structlog.get_logger()

_ASK_EVERY_S = 2.0  # the brokers
_LOG_EVERY_S = 5.0  # problems
_MARKS_S = 2.0  # for marks not yet in Redis


class ReplayAdmin(Protocol):
    """The methods of `Admin` that a replay calls."""

    def topic_names(self) -> list[str]: ...
    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]: ...
    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]: ...
    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId]
    ) -> dict[PartitionId, Committed]: ...
    def list_offsets(
        self, partitions: Iterable[PartitionId], which: Literal["earliest", "latest"] | int
    ) -> dict[PartitionId, int]: ...


class ReplaySurvey(NamedTuple):
    """The offset ranges to be read for a replay, and the offsets that the service has settled."""

    spans: dict[PartitionId, range]
    settled: dict[PartitionId, Settled]


def survey(config: Config, admin: ReplayAdmin, time_range: TimeRange) -> ReplaySurvey:
    """Finds the offsets that the service has settled, and the ranges to be read for a replay.

    The service will not read the settled offsets again. They follow from the committed positions
    and the offset maps of the service's group. Raises ConfigError if no source topic exists,
    Unreachable if no broker answers, and KworkerError if a broker refuses a request or does not
    tell the ids of topics.
    """
    topics = admin.topics(source_topics(config, admin.topic_names()))
    if not topics:
        named = config.source.pattern or ", ".join(config.source.topics)
        raise ConfigError(
            f"source.topics: the brokers have no topic that matches {named}; check"
            " the name, or create it"
        )
    every = [(name, number) for name in topics for number in range(topics[name].partitions)]
    held = admin.group_offsets(config.name, every)
    ids = admin.identities(topics)
    if untold := sorted(topics.keys() - ids.keys()):
        raise KworkerError(ids_untold(untold))
    settled = {at: Settled.of(each, ids.get(at[0]), at) for at, each in held.items()}
    begin: Literal["earliest"] | int = (
        "earliest" if time_range.from_ms is None else time_range.from_ms
    )
    return ReplaySurvey(settled_ranges(admin.list_offsets(settled, begin), settled), settled)


def load_topic_limits(config: Config, admin: ReplayAdmin) -> TopicLimits:
    """Loads size limits and numbers of partitions of the topics that a replay writes to.

    Raises ConfigError if a topic is missing, and Unreachable if no broker answers.
    """
    delivery = config.delivery
    limits = TopicLimits(
        list(dict.fromkeys([delivery.results, *delivery.topics, config.dead_letter.topic]))
    )
    found = admin.topics(limits.topics, [BYTES_MAX])
    limits.update(
        {name: int(info.config[BYTES_MAX]) for name, info in found.items()},
        {name: info.partitions for name, info in found.items()},
    )
    if not limits.complete:
        raise ConfigError(
            f"topics missing on the brokers: {limits.missing}; create them with: kworker topics"
            f" create --config {config.file}"
        )
    return limits


def replay_config(config: Config, group: str, *, force: bool) -> Config:
    """Returns the service's configuration, changed for a replay that commits to `group`.

    Retries wait in memory, since the service would take the records of a delay topic.
    `source.max_age` is off, and `force` turns idempotency off as well. Delivery is at least once,
    because a replay is no group member, so transactions cannot commit its positions. The
    dead-letter limit is off: `kworker resume --accept-dead` could not lift it in a replay.
    """
    retry = config.retry.model_copy(update={"mode": "hold"})
    workers = config.workers.model_copy(update={"membership": "dynamic", "processes": 1})
    source = config.source.model_copy(update={"max_age": None})
    # Without membership only the classic protocol takes positions.
    consumer = {**config.kafka.consumer, "group.protocol": "classic"}
    kafka = config.kafka.model_copy(update={"consumer": consumer})
    delivery = config.delivery.model_copy(update={"guarantee": "at-least-once"})
    dead_letter = config.dead_letter.model_copy(update={"breaker": ""})
    changed: dict[str, Any] = {
        "name": group,
        "delivery": delivery,
        "dead_letter": dead_letter,
        "source": source,
        "kafka": kafka,
        "workers": workers,
        "retry": retry,
    }
    if force:
        changed["idempotency"] = None
    return config.model_copy(update=changed)


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """The counts of a replay so far: `failed` counts failed runs, the other fields records."""

    replayed: int
    skipped: int  # done before
    dead: int
    failed: int
    dropped: int  # tombstones, as `source.tombstones` says


class Replay:
    """A replay of offset ranges in this process, without a supervisor; `run` polls Kafka.

    Nothing monitors the handlers. A handler that does not return keeps the replay from ending;
    a handler that kills the process ends only the replay, not the service.
    """

    def __init__(
        self, config: Config, identity: str, ranges: OffsetRanges, limits: TopicLimits
    ) -> None:
        """`config` must come from `replay_config`.

        Raises ConfigError for wrong settings of the handler or of Kafka's clients, and
        KworkerError when the handler cannot be made.
        """
        self._config = config
        self._ranges = ranges
        self._limits = limits
        self._watch = KafkaWatch(admin_properties(config))
        self._handlers = _load(config)
        [slot] = Scoreboard(1, hands_of(config.workers)).slots
        results = make_encoder(config, limits, identity)
        self._pool = make_pool(config, slot, self._handlers, results)
        identify = self._watch.identities
        role = Role(0, self._reader, identify, make_intake(config), identity, isolates=False)
        try:
            self._loop = make_poll_loop(config, role, self._pool, self._handlers, limits)
        except KafkaRequestError as refused:
            raise ConfigError(f"kafka: the clients cannot be created: {refused}") from None
        self._ask_at = self._log_at = time.monotonic()

    @property
    def counts(self) -> ReplayCounts:
        counters = self._loop.settlement.counters
        failed = self._loop.dispatch.endings.failed
        dropped = counters.dropped
        return ReplayCounts(counters.done, counters.duplicates, counters.dead, failed, dropped)

    @property
    def in_hand(self) -> int:
        """The number of records read and not settled: they wait, run or are being published."""
        loop = self._loop
        return loop.flow.records + loop.flow.held + loop.settlement.pending

    def run(self, interrupts: Callable[[], int], report: Callable[["Replay"], None]) -> None:
        """Runs until all records are finished; calls `report` after each turn of the poll loop.

        `interrupts` returns how often Ctrl-C was pressed. After the first, the replay reads no
        more records and finishes those it has; after the second, it ends at once. Raises
        KworkerError if another process takes over this replay's identity in Kafka.
        """
        self._loop.assignment.beat = lambda: 0.0 if interrupts() else math.inf
        self._pool.start()
        self._loop.dispatch.start()
        try:
            while not (self._ranges.finished and self._loop.idle) and not interrupts():
                self._turn()
                report(self)
            if interrupts():
                self._drain(interrupts, report)
        except Fenced as fenced:
            raise KworkerError(
                f"another process uses the transactional id of this replay ({fenced}): end it, then"
                " replay again"
            ) from None
        finally:
            self._end()

    def _reader(self, listener: Listener) -> RangeConsumer:
        self._client = KafkaConsumer(_consumer_properties(self._config), listener)
        return RangeConsumer(self._client, listener, self._ranges)

    def _turn(self) -> None:
        self._loop.turn()
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + _ASK_EVERY_S
            self._watch.ask_ends(self._ranges.starts)
            # A result over its topic's limit waits until the limit is known to stand.
            self._watch.ask_facts(self._limits.topics)
        if (facts := self._watch.facts()) is not None:
            self._limits.update(*facts)
        if (ends := self._watch.ends()) is not None:
            # Only the fact that brokers answer counts; the ends are known.
            self._loop.take_end_offsets(self._ranges.ends if ends else {})
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            for reason in self._loop.problems:
                _LOG.warning(reason)

    def _drain(self, interrupts: Callable[[], int], report: Callable[["Replay"], None]) -> None:
        deadline = time.monotonic() + self._config.workers.drain_timeout
        self._loop.stop_taking()
        while not self._loop.idle and interrupts() < 2 and time.monotonic() < deadline:
            self._turn()
            report(self)

    def _end(self) -> None:
        self._pool.stop()
        self._loop.hand_over()
        self._loop.dispatch.end(time.monotonic() + _MARKS_S)
        if not self._loop.flow.records:
            _close(self._handlers)
        leave(self._client, lambda: None, for_good=False)


def _load(config: Config) -> Handlers:
    try:
        handlers = loader.load(config)
        handlers.open(config.workers.handler_timeout).result()
        return handlers
    except ConfigError:
        raise
    except Exception as error:  # __init__ and open may raise anything
        raise KworkerError(
            f"the handler's __init__ or open() failed: {Failure.of(error)}"
        ) from error


def _close(handlers: Handlers) -> None:
    try:
        handlers.close()
    except Exception as error:  # noqa: BLE001 - the user's code; the replay is done
        problem = str(Failure.of(error))
        _LOG.warning("the handler's close() failed; the result of the replay stands", error=problem)


def _consumer_properties(config: Config) -> Properties:
    properties = consumer_properties(config, slot=0)
    # Records that retention erases meanwhile are passed over: a person could decide nothing.
    return {**properties, "auto.offset.reset": "earliest"}
