"""A service in memory: one worker and one delay process in one thread, on a virtual clock."""

import time
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.consumer import MemoryConsumer
from kworker.clients.memory.producer import MemoryProducer
from kworker.clients.memory.redis import MemoryRedis, MemoryRedisClaims
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.clients.memory.watch import MemoryWatch
from kworker.config.client_properties import delay_group
from kworker.config.model import Config
from kworker.config.topics import (
    HEADROOM_BYTES,
    delay_pattern,
    own_topics,
    written_topics,
)
from kworker.core.duration import format_duration
from kworker.core.headers import SOURCE, Source
from kworker.core.message import PartitionId, RawMessage
from kworker.delay.assembly import DelayPlatform, make_delay_loop
from kworker.delay.assignment import DelayAssignment
from kworker.delay.loop import DelayLoop
from kworker.instance.scoreboard import Scoreboard, hands_of
from kworker.testing.virtual_clock import VirtualClock
from kworker.worker.assembly import Platform, Role, make_intake, make_poll_loop
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.pool_factory import make_encoder, make_pool
from kworker.worker.handlers.tracing import UNTRACED, Tracing
from kworker.worker.publish.in_doubt import FencePolicy, FencingJudge
from kworker.worker.topic_limits import TopicLimits

STEADY_TURNS = 3  # without progress, in which the clock stands still; then a turn lasts
TURN_S = 0.01  # on the virtual clock
CALM_TURNS = 30  # without progress, after which the clock goes on to the next event
_LEAP_S = 1.0, 3600.0  # the first and the longest, where no next event is known
_FENCE_S = 60.0
_ASKING_S = 0.0002  # of true time, which the claims thread takes
_TOPIC_BYTES = 1_048_588  # the broker's default
_NAMED_MOST = 10


class MemoryService:
    """Runs handlers over records in Kafka in memory.

    One thread uses it; the handlers have their own threads or event loop.
    """

    def __init__(
        self,
        config: Config,
        handlers: Handlers,
        records: Iterable[RawMessage],
        tracing: Tracing = UNTRACED,
    ) -> None:
        self.clock = VirtualClock()
        self.kafka = MemoryKafka(self.clock.wall)
        self._config = config
        self._sources = self._write(list(records))
        self._watch = MemoryWatch(self.kafka)
        self._limits = limits = self._make_topics()
        redis = MemoryRedis(self.clock.monotonic)
        platform = Platform(
            producer=lambda properties: MemoryProducer(self.kafka, properties),
            transactor=self._transactor,
            claims=lambda _url, **options: MemoryRedisClaims(redis, **options),
            clock=self.clock.monotonic,
            wall=self.clock.wall,
        )
        consumers: list[MemoryConsumer] = []

        def reader(listener: Any) -> MemoryConsumer:
            properties = {"group.id": config.name, "enable.partition.eof": True}
            consumers.append(MemoryConsumer(self.kafka, properties, listener))
            return consumers[0]

        role = Role(
            0,
            reader,
            self.kafka.identities,
            make_intake(config),
            isolates=False,
            platform=platform,
        )
        slot = Scoreboard(1, hands_of(config.workers)).slots[0]
        encoder = make_encoder(config, limits)
        self._pool = make_pool(config, slot, handlers, encoder, self.clock.monotonic, tracing)
        self._loop = make_poll_loop(config, role, self._pool, handlers, limits)
        self._delay = self._make_delay_loop() if config.retry.delays else None
        consumers[0].subscribe([*self._sources, config.requeue_topic])

    def run(self, limit_s: float, timeout_s: float) -> None:
        """Runs the service until all records have ended. Raises AssertionError if they do not.

        `limit_s` is the limit on the virtual clock, `timeout_s` the limit on the true one.
        """
        began = before = time.monotonic()
        self._pool.start()
        self._loop.dispatch.start()
        calm, leap_s, seen = 0, _LEAP_S[0], self._progress()
        while not self._is_done():
            self._turn()
            now = time.monotonic()
            passed_s, before = now - before, now
            if now - began > timeout_s:
                raise AssertionError(self._unfinished(f"after {timeout_s:g} s"))
            if self._pool.has_work:
                self.clock.go_on(passed_s)  # a handler takes true time
                continue
            if self._loop.dispatch.asking:
                time.sleep(_ASKING_S)
                continue
            calm = calm + 1 if seen == (seen := self._progress()) else 0
            if not calm:
                leap_s = _LEAP_S[0]
            if calm < CALM_TURNS:
                self.clock.go_on(TURN_S if calm > STEADY_TURNS else 0.0)
                continue
            calm = 0
            self.clock.go_on(min(self._next_event_s() or inf, leap_s))
            leap_s = min(2 * leap_s, _LEAP_S[1])
            if self.clock.passed_s > limit_s:
                limit = format_duration(limit_s)
                raise AssertionError(self._unfinished(f"after {limit} on the service's clock"))

    def stop(self) -> None:
        """Ends the threads of handlers and claims; a handler that runs is not waited for."""
        self._pool.stop()
        self._loop.dispatch.end(time.monotonic() + 1.0)

    def committed(self) -> dict[PartitionId, int]:
        """Returns the committed position of each source partition."""
        found = self.kafka.committed(self._config.name)
        return {at: position for at, position in found.items() if at[0] in self._sources}

    def _write(self, records: list[RawMessage]) -> list[str]:
        """Writes the records to their topics, which it creates; returns the topics' names."""
        topics = list(dict.fromkeys([*self._config.source.topics, *(r.topic() for r in records)]))
        for topic in topics:
            own = [record.partition() for record in records if record.topic() == topic]
            self.kafka.create(topic, max(own, default=0) + 1)
        for record in records:
            size = len(record.key() or b"") + len(record.value() or b"")
            if size > _TOPIC_BYTES:
                raise AssertionError(f"a record has {size:,} bytes; its topic takes 1 MiB at most")
            self.kafka.append(
                record.topic(),
                record.partition(),
                value=record.value(),
                key=record.key(),
                headers=tuple(record.headers() or ()),
                timestamp=record.timestamp()[1],
            )
        return topics

    def _make_topics(self) -> TopicLimits:
        results = {self._config.delivery.results, *self._config.delivery.topics}
        for name in {*own_topics(self._config), *written_topics(self._config)}:
            more = 0 if name in results else HEADROOM_BYTES
            self.kafka.create(name, max_message_bytes=_TOPIC_BYTES + more)
        limits = TopicLimits(written_topics(self._config))
        self._refresh(limits)
        return limits

    def _refresh(self, limits: TopicLimits) -> None:
        """Updates `limits` from the topics in memory, as a worker's status reporter does."""
        limits.stale = False
        self._watch.ask_facts(limits.topics)
        if facts := self._watch.facts():
            limits.update(*facts)

    def _make_delay_loop(self) -> DelayLoop:
        group = {"group.id": delay_group(self._config), "enable.partition.eof": True}
        consumers: list[MemoryConsumer] = []

        def consumer(assignment: DelayAssignment) -> MemoryConsumer:
            consumers.append(MemoryConsumer(self.kafka, group, assignment))
            return consumers[0]

        name = "delay"
        platform = DelayPlatform(
            consumer,
            lambda: self._transactor({}, name, 0.0),
            MemoryWatch(self.kafka),
            FencingJudge(name, FencePolicy(_FENCE_S), -inf),
            clock=self.clock.monotonic,
            wall_ms=self.clock.wall_ms,
        )
        loop, _ = make_delay_loop(self._config, platform)
        consumers[0].subscribe([delay_pattern(self._config)])
        return loop

    def _transactor(
        self, properties: Mapping[str, Any], name: str, timeout_s: float
    ) -> MemoryTransactor:
        return MemoryTransactor(self.kafka, properties, name, timeout_s)

    def _turn(self) -> None:
        self._loop.turn()
        if self._limits.stale:
            self._refresh(self._limits)
        if self._delay:
            self._delay.turn()

    def _progress(self) -> tuple[int, ...]:
        """Returns the topics' ends, the groups' positions and the number of records in flight.

        While none of these changes, the service makes no progress.
        """
        topics = [*self._sources, *written_topics(self._config), self._config.requeue_topic]
        ends = (log.high for name in topics if (t := self.kafka.topic(name)) for log in t.logs)
        groups = (self._config.name, delay_group(self._config))
        positions = (sum(self.kafka.committed(group).values()) for group in groups)
        return (*ends, *positions, self._loop.flow.records)

    def _is_done(self) -> bool:
        waiting = [*self._sources, self._config.requeue_topic]
        delays = [self._config.retry_topic(delay) for delay in self._config.retry.delays]
        return self._is_read(self._config.name, waiting) and self._is_read(
            delay_group(self._config), delays
        )

    def _is_read(self, group: str, topics: Iterable[str]) -> bool:
        """Returns True if the group's committed positions are past all records of the topics."""
        committed = self.kafka.committed(group)
        logs = (log for name in topics if (t := self.kafka.topic(name)) for log in t.logs)
        last = (log.records[-1] for log in logs if log.records)
        return all(
            record.offset() < committed.get((record.topic(), record.partition()), 0)
            for record in last
        )

    def _next_event_s(self) -> float | None:
        """Returns the seconds until the next record is due; None if no time is known."""
        due = [self._loop.dispatch.next_due() or inf]
        if self._delay:
            waiting = [due_ms for _, due_ms in self._delay.waiting().values() if due_ms is not None]
            due += [ms / 1000 - self.clock.wall() + self.clock.monotonic() for ms in waiting]
        left_s = min(due) - self.clock.monotonic()
        return left_s + TURN_S if 0 < left_s < inf else None

    def _unfinished(self, when: str) -> str:
        """Returns a text that says which records have not ended, and why, as far as is known."""
        groups = [(self._config.name, [*self._sources, self._config.requeue_topic])]
        delays = [self._config.retry_topic(delay) for delay in self._config.retry.delays]
        groups.append((delay_group(self._config), delays))
        left = dict.fromkeys(
            self._source_of(record)
            for group, topics in groups
            for topic in topics
            for record in self.kafka.records(topic)
            if record.offset()
            >= self.kafka.committed(group).get((record.topic(), record.partition()), 0)
        )
        named = ", ".join(list(left)[:_NAMED_MOST])
        more = f" and {len(left) - _NAMED_MOST} more" if len(left) > _NAMED_MOST else ""
        why = "; ".join(self._loop.problems)
        return f"{named}{more} did not end {when}{f': {why}' if why else ''}"

    def _source_of(self, record: RawMessage) -> str:
        headers = dict(record.headers() or ())
        at = (record.topic(), record.partition(), record.offset())
        if at[0] not in self._sources and (source := headers.get(SOURCE)):
            at = Source.parse(source).place
        return ":".join(map(str, at))
