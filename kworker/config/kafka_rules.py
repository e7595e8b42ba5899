"""Rules over `[kafka]`: properties that kworker owns, or that exclude each other. Pure."""

from collections.abc import Iterator, Mapping

from kworker.config.client_properties import speaks_new_protocol, transactional
from kworker.config.keys import Key
from kworker.config.model import Settings
from kworker.config.validation import Problem
from kworker.core.duration import format_duration

_OWNED = {
    "group.id": "set name instead",
    "group.instance.id": "set instance and workers.membership instead",
    "enable.auto.commit": "set delivery.commit_interval instead",
    "auto.commit.interval.ms": "set delivery.commit_interval instead",
    "enable.auto.offset.store": "set delivery.commit_interval instead",
    "auto.offset.reset": "set source.start instead",
    "transactional.id": "set delivery.guarantee instead",
    "isolation.level": "it is always read_committed",
    "enable.partition.eof": "it is always true, which kworker needs",
    "delivery.report.only.error": "it is always true",
    "partition.assignment.strategy": "it is always range, which spreads each topic over workers",
    "group.remote.assignor": "it is always range, which spreads each topic over workers",
    "topic.blacklist": "set source.topics instead",
    "on_delivery": "a callback cannot be configured",
    "on_commit": "a callback cannot be configured",
}
_WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_BROKER_DECIDES = ("session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type")


def properties(config: Settings) -> Iterator[Problem]:
    """Checks that brokers are given.

    Also checks that the file has no property that kworker itself sets, and no `acks` of 0.
    """
    kafka = config.kafka
    if not str(kafka.common.get("bootstrap.servers", "")).strip():
        yield Problem(
            ("kafka", "bootstrap.servers"), 'missing; give "bootstrap.servers" = "host:9092"'
        )
    for at, table in _property_tables(config):
        for name, value in table.items():
            if reason := _owned(name):
                yield Problem((*at, name), f"kworker sets this property itself: {reason}")
            elif name in ("acks", "request.required.acks") and str(value) == "0":
                text = 'expected "all", got "0", with which a record that no broker stored is lost'
                yield Problem((*at, name), text)


def _owned(name: str) -> str:
    if name.endswith("_cb"):
        return "a callback cannot be configured"
    return _OWNED.get(name, "")


def _property_tables(config: Settings) -> Iterator[tuple[Key, dict[str, str | int | float | bool]]]:
    yield ("kafka",), config.kafka.common
    yield ("kafka", "consumer"), config.kafka.consumer
    yield ("kafka", "producer"), config.kafka.producer


def sasl(config: Settings) -> Iterator[Problem]:
    """Checks that a client that logs in by SASL has a mechanism, and what the mechanism needs.

    Without a mechanism librdkafka takes GSSAPI, which the usual build of it does not have.
    """
    kafka = config.kafka
    clients = [{**kafka.common, **own} for own in (kafka.consumer, kafka.producer)]
    missing = {name: text for client in clients for name, text in _missing_for_sasl(client)}
    for name, text in missing.items():
        yield Problem(("kafka", name), text)


def _missing_for_sasl(client: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if not str(client.get("security.protocol", "")).upper().startswith("SASL"):
        return
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))
    if not mechanism:
        yield "sasl.mechanism", 'missing; give "sasl.mechanism" = "SCRAM-SHA-512", or another'
    if str(mechanism) in _WITH_PASSWORD:
        for name in ("sasl.username", "sasl.password"):
            if client.get(name, "") == "":
                yield name, f'missing; {mechanism} needs it; give "{name}" = {{ env = "…" }}'


def group_protocol(config: Settings) -> Iterator[Problem]:
    """Checks the setting of the group protocol, and what the newer one (KIP-848) excludes.

    The newer protocol excludes static members. It also excludes some properties, because the
    brokers decide these.
    """
    tables = [(at, table) for at, table in _property_tables(config) if at[-1] != "producer"]
    for at, table in tables:
        protocol = table.get("group.protocol", "classic")
        if str(protocol).lower() not in ("classic", "consumer"):
            text = f'expected "classic" or "consumer", got "{protocol}"'
            yield Problem((*at, "group.protocol"), text)
    if not speaks_new_protocol(config):
        return
    if config.workers.membership == "static":
        yield Problem(
            ("workers", "membership"),
            'group.protocol = "consumer" has no static members; set membership = "dynamic"',
        )
    for at, table in tables:
        for name in _BROKER_DECIDES:
            if name in table:
                text = 'with group.protocol = "consumer" the broker decides this; leave it out'
                yield Problem((*at, name), text)


def transactions(config: Settings) -> Iterator[Problem]:
    """Checks that a commit interval takes at most half of transaction.timeout.ms.

    A transaction is open for a whole commit interval; after transaction.timeout.ms Kafka aborts it.
    """
    if config.delivery.guarantee != "exactly-once":
        return
    own = {**config.kafka.common, **config.kafka.producer}
    try:
        limit_s = int(transactional(own)["transaction.timeout.ms"]) / 1000
    except (ValueError, OverflowError):
        return  # the client reports a property that is not a number, or too large
    if 2 * config.delivery.commit_interval > limit_s:
        yield Problem(
            ("delivery", "commit_interval"),
            f"{format_duration(config.delivery.commit_interval)} is more than half of"
            f" transaction.timeout.ms ({format_duration(limit_s)}), after which Kafka"
            " aborts a transaction; lower commit_interval, or raise transaction.timeout.ms",
            (("delivery", "guarantee"), ("kafka",)),
        )
