"""The librdkafka properties of each kind of client: what kworker sets, the user's, what it owns."""

import re
import secrets
from collections.abc import Mapping
from typing import Literal

from kworker import host
from kworker.config.model import Config, Settings
from kworker.config.topics import NEVER_READ

Properties = dict[str, str | int | float | bool]
ClientSlot = int | Literal["delay", "spark"]
"""Which process of a service: a worker by its number, the delay process, or the Spark job."""

# Why these differ from the library's own defaults: prefetch is memory times the processes; the
# default back-off of a second, met whenever the prefetch queue is full, costs most of the speed;
# a killed worker should be missed for ten seconds, not 45; a fetch is unpacked whole, so one
# that compresses well would take many times its size; a partition that is assigned or resumed
# waits for the fetch that is under way for the others; and what a new topic or partition holds
# should not wait for five minutes (with the newer protocol brokers look for topics themselves).
CONSUMER_DEFAULTS: Mapping[str, str | int | bool] = {
    "queued.max.messages.kbytes": 16384,
    "fetch.queue.backoff.ms": 10,
    "session.timeout.ms": 10000,
    "fetch.message.max.bytes": 65536,
    "fetch.wait.max.ms": 100,
    "fetch.max.bytes": 4194304,
    "topic.metadata.refresh.interval.ms": 30000,
}
PRODUCER_DEFAULTS: Mapping[str, str | int | bool] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": 5,
    # With more, librdkafka's idempotent producer turns in a circle, a whole CPU of it, while a
    # partition has messages waiting and others on their way.
    "max.in.flight.requests.per.connection": 1,
    # As Java does, so that results stand beside other writers' records of the same key.
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65536,
    # Bytes are the limit that counts.
    "queue.buffering.max.messages": 1000000,
    # How long what is for a topic that was deleted keeps back the reports of all else: workers
    # write to topics that they have seen, so that those are new is no reason to wait for them.
    "topic.metadata.propagation.max.ms": 1000,
}
# Who takes a partition over from a host that died waits for the end of its transaction, too,
# for which brokers look every ten seconds: not much longer than for the end of its session.
_TRANSACTION_TIMEOUT_MS = 30_000
# What is prefetched of a partition whose head is not due is thrown away; a partition that is
# resumed waits for the fetch that is under way for the others; and a delay that is new has
# records as soon as it is configured.
_DELAY_DEFAULTS: Mapping[str, str | int | bool] = {
    "queued.max.messages.kbytes": 4096,
    "queued.min.messages": 2000,
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 10_000,
}
# A leader that is gone should be missed for ten seconds, as a worker; one whose broker was away
# for less is one still, if it does not wait ten seconds more before it connects again.
_LEADER_DEFAULTS: Mapping[str, str | int | bool] = {
    "session.timeout.ms": 10_000,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 5000,
}
# How long the Spark job's main thread may be busy: with the start of a JVM, or of many queries.
_LEADER_BUSY_MS = 600_000
# With the newer protocol the broker sets the session's length, and refuses a client that does.
_CLASSIC_ONLY = frozenset({"session.timeout.ms"})


def speaks_new_protocol(config: Settings) -> bool:
    """Whether the group's members speak KIP-848's protocol."""
    kafka = config.kafka
    protocol = {**kafka.common, **kafka.consumer}.get("group.protocol", "classic")
    return str(protocol).lower() == "consumer"


def consumer_defaults(config: Settings) -> Properties:
    """What a worker's consumer gets unless the file says otherwise."""
    new = speaks_new_protocol(config)
    return {k: v for k, v in CONSUMER_DEFAULTS.items() if not (new and k in _CLASSIC_ONLY)}


def consumer_properties(config: Config, *, slot: int) -> Properties:
    """For the consumer of the worker in `slot`, a member of the group `name`."""
    kafka = config.kafka
    return {
        "client.id": _client_id(config, slot),
        **consumer_defaults(config),
        **kafka.common,
        **kafka.consumer,
        **_owned_by_consumer(config, slot),
    }


def delay_group(config: Settings) -> str:
    """The group of the delay processes, one on each host."""
    return f"{config.name}.delay"


def delay_consumer_properties(config: Config) -> Properties:
    """For the consumer of the delay process, the only member of its group on this host."""
    owned = {**_owned_by_consumer(config, "delay"), "group.id": delay_group(config)}
    owned.pop("topic.blacklist", None)  # which names the very topics
    return {
        "client.id": _client_id(config, "delay"),
        **consumer_defaults(config),
        **_DELAY_DEFAULTS,
        **config.kafka.common,
        **config.kafka.consumer,
        **owned,
    }


def leader_group(config: Settings) -> str:
    """The group of the Spark jobs, of which one leads."""
    return f"{config.name}.spark"


def leader_properties(config: Config) -> Properties:
    """For the member that a Spark job is of its group, which assigns partitions and reads none."""
    given = {**_LEADER_DEFAULTS, **config.kafka.common, **config.kafka.consumer}
    given.pop("group.remote.assignor", None)  # of the newer protocol
    return {
        "client.id": f"{_client_id(config, 'spark')}.{secrets.token_hex(4)}",
        **given,
        "group.id": leader_group(config),
        "group.protocol": "classic",
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 500,
        "max.poll.interval.ms": max(_LEADER_BUSY_MS, int(given["session.timeout.ms"])),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def worker_producer_properties(config: Config, *, slot: int) -> Properties:
    """For the producer of the worker in `slot`, as the guarantee asks."""
    properties = producer_properties(config, slot=slot)
    exactly_once = config.delivery.guarantee == "exactly-once"
    return transactional(properties) if exactly_once else properties


def transactional_id(config: Settings, slot: ClientSlot) -> str:
    """The same in every life of a process: the next one ends what this one leaves open."""
    return f"{config.name}-{config.instance}-{slot}"


def delay_producer_properties(config: Config) -> Properties:
    """For the transactional producer of the delay process."""
    return {
        **transactional(producer_properties(config, slot="delay")),
        # What came from a topic of ours fits into another; but one batch must, too.
        "message.max.bytes": 1_000_000_000,
        "batch.size": 65_536,
    }


def _owned_by_consumer(config: Config, slot: ClientSlot) -> Properties:
    owned: Properties = {
        "group.id": config.name,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    if speaks_new_protocol(config):
        owned["group.remote.assignor"] = "range"
    else:
        owned["partition.assignment.strategy"] = "range"
    if config.source.pattern:
        owned["topic.blacklist"] = ",".join([*NEVER_READ, *_other_requeues(config)])
    if config.workers.membership == "static":
        owned["group.instance.id"] = instance_id(config, slot)
    return owned


def producer_properties(config: Config, *, slot: ClientSlot) -> Properties:
    """For the producer of the process in `slot`."""
    return {
        "client.id": _client_id(config, slot),
        **PRODUCER_DEFAULTS,
        **config.kafka.common,
        **config.kafka.producer,
        "delivery.report.only.error": True,
    }


def transactional(properties: Properties) -> Properties:
    """A producer's properties, made fit for a transactional one.

    An open transaction stops every read_committed reader, so it must not live on for long
    after its producer; and the library wants the other time-outs to be no longer.
    """
    limit_ms = int(properties.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))
    # Another name for message.timeout.ms.
    left = {k: v for k, v in properties.items() if k != "delivery.timeout.ms"}
    timeouts = {
        "transaction.timeout.ms": limit_ms,
        "message.timeout.ms": limit_ms,
        "socket.timeout.ms": min(int(properties.get("socket.timeout.ms", limit_ms)), limit_ms // 2),
    }
    return {**left, **timeouts}


def admin_properties(config: Config) -> Properties:
    """For the short-lived clients of checks and commands."""
    return {"client.id": f"{config.name}-{config.instance}-admin", **config.kafka.common}


def own_member(config: Config, name: str) -> bool:
    """Whether a member of the group is a worker of this instance, by its client id."""
    own = re.escape(instance_id(config, "delay").removesuffix("delay"))
    return re.fullmatch(rf"{own}(\d+|delay)(\.[0-9a-f]+)?", name) is not None


def instance_id(config: Settings, slot: ClientSlot) -> str:
    """The name of a static member, in every life of its process."""
    return f"{config.name}-{config.instance}-{slot}"


def _client_id(config: Config, slot: ClientSlot) -> str:
    """By its end, those who see the group's members tell this host's from another's."""
    return f"{instance_id(config, slot)}.{host.fingerprint()}"


def _other_requeues(config: Config) -> list[str]:
    """Patterns of every requeue topic but this service's own, which its workers read.

    The library's patterns have no look-ahead: a name differs from ours at some first letter,
    or goes on where ours ends.
    """
    own, end = config.requeue_topic, r"\.requeue$"
    differing = [f"^{_literal(own[:i])}[^{letter}].*{end}" for i, letter in enumerate(own)]
    # Where the letter that differs is the dot of the end itself.
    shorter = [f"^{_literal(own[:i])}{end}" for i in range(len(config.name))]
    longer = [f"^{_literal(own[:i])}{end}" for i in range(len(config.name) + 1, len(own) + 1)]
    return [*differing, *shorter, *longer, f"^{_literal(own)}.+{end}"]


def _literal(text: str) -> str:
    return text.replace(".", r"\.")
