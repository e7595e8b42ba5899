"""Which parts a worker is made of, as its configuration asks."""

import re
from collections.abc import Callable
from typing import Any

from kworker.clients.kafka import KafkaConsumer, KafkaProducer
from kworker.clients.properties import consumer_properties, producer_properties
from kworker.config import Config
from kworker.core.breaker import Breaker, BreakerPolicy
from kworker.core.flow import Flow, FlowPolicy
from kworker.core.lanes import Lanes
from kworker.core.retry import RetryPolicy
from kworker.supervisor.instance import StateFolder
from kworker.supervisor.refusals import Refusals
from kworker.supervisor.scoreboard import Slot
from kworker.topics import of_a_service
from kworker.worker.committer import CommitPolicy, Committer
from kworker.worker.handler import Handlers
from kworker.worker.intake import IntakePolicy
from kworker.worker.letters import Letters
from kworker.worker.loop_pool import LoopPool
from kworker.worker.poller import Poller
from kworker.worker.pool import ThreadPool
from kworker.worker.publisher import Publisher, PublishPolicy
from kworker.worker.results import Results
from kworker.worker.topic_facts import TopicFacts
from kworker.worker.triage import Triage
from kworker.worker.work import async_work, work

_BATCH_BYTES = 1_000_000  # the library's own default


def make_pool(
    config: Config, slot: Slot, handlers: Handlers, facts: TopicFacts
) -> ThreadPool | LoopPool:
    """The pool that the handlers' kind asks for."""
    results = Results(config.delivery.results, config.delivery.topics, facts)
    timeout_s = config.workers.handler_timeout
    if handlers.is_async:
        hands = [slot.hand(i) for i in range(config.workers.concurrency)]
        return LoopPool(async_work(handlers, results, timeout_s), hands)
    hands = [slot.hand(i) for i in range(config.workers.threads)]
    return ThreadPool(work(handlers, results, timeout_s), hands)


def make_poller(
    config: Config, slot: int, pool: ThreadPool | LoopPool, facts: TopicFacts
) -> tuple[Poller, KafkaConsumer]:
    """The poller and the consumer inside it."""
    workers, delivery = config.workers, config.delivery
    # One record over a topic's limit would fail the whole batch that it is in.
    producer = producer_properties(config, slot=slot)
    producer["message.max.bytes"] = facts.largest
    producer["batch.size"] = min(int(producer.get("batch.size", _BATCH_BYTES)), facts.smallest)
    made: list[KafkaConsumer] = []

    def consumer(listener: Any) -> KafkaConsumer:
        made.append(KafkaConsumer(consumer_properties(config, slot=slot), listener))
        return made[0]

    commits = CommitPolicy(delivery.commit_interval, delivery.commit_records)
    backlog = PublishPolicy(workers.in_flight_bytes, 2 * delivery.commit_records)
    poller = Poller(
        consumer=consumer,
        committer=lambda client: Committer(client, commits),
        publisher=Publisher(lambda: KafkaProducer(producer), backlog),
        pool=pool,
        lanes=Lanes(workers.ordering),
        flow=Flow(
            FlowPolicy(
                workers.in_flight,
                workers.in_flight_bytes,
                config.retry.held,
                config.retry.held_bytes,
            )
        ),
        triage=make_triage(config, facts),
        refusals=Refusals(StateFolder(config.state_dir).rejected),
        intake=IntakePolicy(config.requeue_topic, _is_source(config), config.source.max_age),
        revoke_timeout_s=workers.revoke_timeout,
    )
    return poller, made[0]


def make_triage(config: Config, facts: TopicFacts) -> Triage:
    """What decides about failed runs."""
    retry = config.retry
    breaker = BreakerPolicy.of(config.dead_letter.breaker)
    return Triage(
        RetryPolicy(tuple(retry.delays), frozenset(retry.never), retry.mode == "hold"),
        Letters(config.retry_topic, config.dead_letter.topic, facts),
        Breaker(breaker) if breaker else None,
        config.route,
    )


def _is_source(config: Config) -> Callable[[str], bool]:
    """Of which topics a record that comes again may be."""
    if config.source.pattern:
        pattern = re.compile(config.source.pattern)
        return lambda topic: bool(pattern.match(topic)) and not of_a_service(topic)
    return frozenset(config.source.topics).__contains__
