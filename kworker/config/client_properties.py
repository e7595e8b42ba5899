"""The librdkafka properties of each client: defaults, the user's, and those only kworker sets."""

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from kworker import host
from kworker.config.model import Config, Settings
from kworker.config.topics import NEVER_READ

Properties = dict[str, str | int | float | bool]
ClientSlot = int | Literal["delay", "spark"]
"""A process of a service: a worker by its number, the delay process, or the Spark job."""

# Reasons why these differ from the library's defaults. Every process has its own prefetch memory.
# The default back-off of a second, after each full prefetch queue, costs most of the speed. The
# partitions of a killed worker wait for the session time-out: ten seconds, not 45. A fetch is
# unpacked whole, so compressed records take many times its size. An assigned or resumed partition
# waits for the fetch that is under way for the others. Records of a new topic or partition must not
# wait five minutes (under the newer protocol the brokers look for topics themselves).
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
    # With more, librdkafka's idempotent producer spins on a whole CPU while a partition has both
    # waiting messages and messages in flight.
    "max.in.flight.requests.per.connection": 1,
    # As in Java, so that results share a partition with other writers' records of the same key.
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65536,
    # So high that bytes are the limit.
    "queue.buffering.max.messages": 1000000,
    # Records for a deleted topic delay the delivery reports of all others by this time. Workers
    # write only to topics that they have seen, so there is no new topic to wait for.
    "topic.metadata.propagation.max.ms": 1000,
}
# librdkafka's own defaults, and its range for message.max.bytes.
_BATCH_BYTES = 1_000_000
_QUEUE_KBYTES = 1_048_576
_RECORD_BYTES_MIN, _RECORD_BYTES_MAX = 1_000, 1_000_000_000
# The next owner of a dead host's partition waits for the end of its transaction, too, which
# brokers check every ten seconds. So this is not much longer than the session time-out.
_TRANSACTION_TIMEOUT_MS = 30_000
# Records prefetched of a partition whose head is not due are thrown away. A resumed partition
# waits for the fetch that is under way for the others. A new delay has records as soon as it is
# configured.
_DELAY_DEFAULTS: Mapping[str, str | int | bool] = {
    "queued.max.messages.kbytes": 4096,
    "queued.min.messages": 2000,
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 10_000,
}
_DELAY_BATCH_BYTES = 65_536
# A leader that died is replaced after ten seconds, like a worker. A leader whose broker was down
# for less stays leader, because it reconnects without a long back-off.
_LEADER_DEFAULTS: Mapping[str, str | int | bool] = {
    "session.timeout.ms": 10_000,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 5000,
}
# The longest time that the Spark job's main thread is busy, starting a JVM or many queries.
_LEADER_BUSY_MS = 600_000
# Under the newer protocol the broker sets the session time-out, and refuses clients that set it.
_CLASSIC_ONLY = frozenset({"session.timeout.ms"})


def speaks_new_protocol(config: Settings) -> bool:
    """Returns True if the group's members use the newer protocol (KIP-848)."""
    kafka = config.kafka
    protocol = {**kafka.common, **kafka.consumer}.get("group.protocol", "classic")
    return str(protocol).lower() == "consumer"


def consumer_defaults(config: Settings) -> Properties:
    """Returns kworker's default properties for a consumer. `kworker.toml` may override them.

    A fetch may have at least as many bytes as the user's `message.max.bytes`, since librdkafka
    refuses a lower limit.
    """
    new = speaks_new_protocol(config)
    left_out = _CLASSIC_ONLY if new else ()
    defaults: Properties = {k: v for k, v in CONSUMER_DEFAULTS.items() if k not in left_out}
    record = {**config.kafka.common, **config.kafka.consumer}.get("message.max.bytes", 0)
    with suppress(ValueError):  # the client reports a property that is not a number
        defaults["fetch.max.bytes"] = max(int(defaults["fetch.max.bytes"]), int(record))
    return defaults


def consumer_properties(config: Config, *, slot: int) -> Properties:
    """Returns all librdkafka properties of the consumer of worker number `slot`."""
    kafka = config.kafka
    return {
        "client.id": _client_id(config, slot),
        **consumer_defaults(config),
        **kafka.common,
        **kafka.consumer,
        **_owned_by_consumer(config, slot),
    }


def delay_group(config: Settings) -> str:
    """Returns the name of the delay processes' group. Each host has one delay process."""
    return f"{config.name}.delay"


def delay_consumer_properties(config: Config) -> Properties:
    """Returns all librdkafka properties of the delay process's consumer."""
    owned = {**_owned_by_consumer(config, "delay"), "group.id": delay_group(config)}
    owned.pop("topic.blacklist", None)  # it excludes the delay topics
    return {
        "client.id": _client_id(config, "delay"),
        **consumer_defaults(config),
        **_DELAY_DEFAULTS,
        **config.kafka.common,
        **config.kafka.consumer,
        **owned,
    }


def leader_group(config: Settings) -> str:
    """Returns the name of the group in which the service's Spark jobs elect their leader."""
    return f"{config.name}.spark"


def table_group(config: Settings, table: str) -> str:
    """Returns the name of the group to which the Spark job commits the positions of a table."""
    return f"{config.name}.spark.{table}"


def leader_properties(config: Config) -> Properties:
    """Returns the properties of the consumer by which a service's Spark jobs elect a leader.

    Only the leader writes the tables.
    """
    given = {**_LEADER_DEFAULTS, **config.kafka.common, **config.kafka.consumer}
    given.pop("group.remote.assignor", None)  # a property of the newer protocol
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
    """Returns a worker's producer properties, transactional ones if delivery is exactly-once."""
    properties = producer_properties(config, slot=slot)
    exactly_once = config.delivery.guarantee == "exactly-once"
    return transactional(properties) if exactly_once else properties


def transactional_id(config: Settings, slot: ClientSlot) -> str:
    """Returns a process's transactional.id.

    A restarted process has the same id, so its predecessor's open transaction is aborted.
    """
    return f"{config.name}-{config.instance}-{slot}"


def delay_producer_properties(config: Config) -> Properties:
    """The properties of the delay process's transactional producer."""
    properties = transactional(producer_properties(config, slot="delay"))
    # Every record of a delay topic fits into requeue; batches stay small so that they fit, too. The
    # queue holds one transaction at most, whatever its limit.
    sizes = record_sizes(properties, largest=_RECORD_BYTES_MAX, smallest=_DELAY_BATCH_BYTES)
    return {**properties, **sizes}


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
    """Returns the properties of a producer without transactions, for the process in `slot`."""
    return {
        "client.id": _client_id(config, slot),
        **PRODUCER_DEFAULTS,
        **config.kafka.common,
        **config.kafka.producer,
        "delivery.report.only.error": True,
    }


def transactional(properties: Properties) -> Properties:
    """Returns a producer's properties with the changes that a transactional producer needs.

    An open transaction blocks every read_committed reader. If its producer has died, Kafka aborts
    the transaction after transaction.timeout.ms. So that time-out is short by default. It is also
    the upper limit that librdkafka sets for message.timeout.ms and socket.timeout.ms.
    """
    limit_ms = int(properties.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))
    # An alias of message.timeout.ms.
    left = {k: v for k, v in properties.items() if k != "delivery.timeout.ms"}
    timeouts = {
        "transaction.timeout.ms": limit_ms,
        "message.timeout.ms": limit_ms,
        "socket.timeout.ms": min(int(properties.get("socket.timeout.ms", limit_ms)), limit_ms // 2),
    }
    return {**left, **timeouts}


def record_sizes(properties: Properties, *, largest: int, smallest: int) -> Properties:
    """Returns the sizes that a producer with these properties needs for the topics that it writes.

    `largest` and `smallest` are the highest and the lowest size limit of these topics, in bytes.
    Kafka refuses a whole batch that exceeds the limit of its topic. So a batch is at most as large
    as `smallest`. The producer refuses a record that exceeds `message.max.bytes` or its queue. So
    each of these two is at least as large as `largest`, or as large as librdkafka allows.
    """
    record = max(_RECORD_BYTES_MIN, min(largest, _RECORD_BYTES_MAX))
    try:
        batch = int(properties.get("batch.size", _BATCH_BYTES))
        queue = int(properties.get("queue.buffering.max.kbytes", _QUEUE_KBYTES))
    except ValueError:
        # The client reports a property that is not a number.
        return {"message.max.bytes": record}
    return {
        "message.max.bytes": record,
        "batch.size": max(1, min(batch, smallest)),
        "queue.buffering.max.kbytes": max(queue, record // 1024 + 1),
    }


def admin_properties(config: Config) -> Properties:
    """The properties of the short-lived clients of checks and commands."""
    return {"client.id": f"{config.name}-{config.instance}-admin", **config.kafka.common}


def own_member(config: Config, name: str) -> bool:
    """Returns True if `name` belongs to a worker or the delay process of this instance.

    `name` may be a client id or a group.instance.id.
    """
    own = re.escape(instance_id(config, "delay").removesuffix("delay"))
    return re.fullmatch(rf"{own}(\d+|delay)(\.[0-9a-f]+)?", name) is not None


def instance_id(config: Settings, slot: ClientSlot) -> str:
    """Returns a process's group.instance.id, which stays the same after a restart."""
    return f"{config.name}-{config.instance}-{slot}"


def _client_id(config: Config, slot: ClientSlot) -> str:
    """Returns a process's client.id. The part after its last dot identifies the host."""
    return f"{instance_id(config, slot)}.{host.fingerprint()}"


def _other_requeues(config: Config) -> list[str]:
    """Returns patterns of other services' requeue topics; workers read only their own.

    librdkafka's patterns have no look-ahead, so one pattern cannot exclude a single name. These
    patterns match names that differ from this service's topic at some letter, or in length.
    """
    own, end = config.requeue_topic, r"\.requeue$"
    differing = [f"^{_literal(own[:i])}[^{letter}].*{end}" for i, letter in enumerate(own)]
    # Names whose first different letter is the dot of `.requeue`.
    shorter = [f"^{_literal(own[:i])}{end}" for i in range(len(config.name))]
    longer = [f"^{_literal(own[:i])}{end}" for i in range(len(config.name) + 1, len(own) + 1)]
    return [*differing, *shorter, *longer, f"^{_literal(own)}.+{end}"]


def _literal(text: str) -> str:
    return text.replace(".", r"\.")
