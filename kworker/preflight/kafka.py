"""Checks of Kafka's clients, brokers and topics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from kworker.config.client_properties import (
    Properties,
    admin_properties,
    consumer_properties,
    worker_producer_properties,
)
from kworker.config.model import Config
from kworker.config.secrets import MASK, is_secret
from kworker.config.topics import (
    BYTES_MAX,
    SETTINGS,
    TopicInfo,
    differences,
    own_topics,
    plan,
    source_topics,
)
from kworker.core.offset_map import ids_untold
from kworker.errors import ClientRejected, ExitCode, KworkerError, Unreachable
from kworker.instance.group_note import GroupNote
from kworker.preflight.findings import Finding

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

BROKER_TIMEOUT_S = 5.0
ClientKind = Literal["consumer", "producer"]
_PEM_KEY = "give a key in PEM, and as ssl.key.password the password that it is encrypted with"
# The next step for properties whose errors come from OpenSSL, in its own words.
_STEPS = {
    "ssl.ca.location": "name a file with the certificates of authorities, in PEM",
    "ssl.ca.pem": "give the certificates of authorities, in PEM",
    "ssl.certificate.location": "name a file with a certificate in PEM",
    "ssl.certificate.pem": "give a certificate in PEM",
    "ssl.key.location": _PEM_KEY,
    "ssl.key.pem": _PEM_KEY,
    "ssl.keystore.location": "name a PKCS #12 file, and give its password as ssl.keystore.password",
}


def check_client_properties(config: Config) -> list[Finding]:
    """Checks, without a broker, that librdkafka accepts consumer and producer properties."""
    from kworker.clients.property_refusals import refusals

    step = "correct it: librdkafka's CONFIGURATION.md lists all properties"
    found: dict[str, Finding] = {}
    properties_of: dict[ClientKind, Properties] = {
        "consumer": consumer_properties(config, slot=0),
        "producer": worker_producer_properties(config, slot=0),
    }
    for kind, properties in properties_of.items():
        chosen = {*config.kafka.common, *getattr(config.kafka, kind)}
        for refusal in refusals(kind, properties, chosen):
            key = _property_key(config, kind, refusal.name)
            reason = _without_secret(config, key, properties.get(refusal.name), refusal.reason)
            found.setdefault(key, Finding(key, reason, _STEPS.get(refusal.name, step)))
    return list(found.values())


def _property_key(config: Config, kind: ClientKind, name: str) -> str:
    if not name:
        return "kafka"
    return f"kafka.{kind}.{name}" if name in getattr(config.kafka, kind) else f"kafka.{name}"


def _without_secret(config: Config, key: str, value: object, reason: str) -> str:
    """Returns `reason`, why librdkafka refuses `value`, with `value` masked if it is a secret."""
    secret = key in config.secret_keys or is_secret(key)
    return reason.replace(str(value), MASK) if secret and value else reason


def check_topics(config: Config) -> list[Finding]:
    """Checks that the brokers answer, and that all topics exist with the planned settings."""
    try:
        admin = admin_of(config)
        wanted = source_topics(config, admin.topic_names())
        names = [*wanted, *own_topics(config), *config.delivery.topics]
        topics = admin.topics(names, SETTINGS)
        read = [name for name in (*wanted, config.requeue_topic) if name in topics]
        untold = sorted({*read} - admin.identities(read).keys())
    except KworkerError as error:
        return [unanswered(error)]
    missing = [name for name in names if name not in topics]
    if not wanted:
        return [_no_match(config)]
    if missing:
        return [_missing_topics(config, missing)]
    if untold:
        return [_ids_untold(untold)]
    return _unlike_planned(config, topics, wanted)


def admin_of(config: Config, timeout_s: float = BROKER_TIMEOUT_S) -> "Admin":
    """Makes the Kafka admin client for the checks. Raises KworkerError for wrong properties."""
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=timeout_s)


def unanswered(error: KworkerError) -> Finding:
    """Returns the finding for brokers that did not answer, or refused a client or a request."""
    if isinstance(error, ClientRejected):
        return Finding(error.key, error.problem, error.next_step, ExitCode.UNREACHABLE)
    step = "start the brokers (kworker sandbox up, for development) or correct it"
    if not isinstance(error, Unreachable):
        step = "ask who runs the brokers"
    return Finding("kafka.bootstrap.servers", str(error), step, ExitCode.UNREACHABLE)


def _missing_topics(config: Config, missing: Sequence[str]) -> Finding:
    """Returns the finding that topics are missing.

    The finding's exit code is `CONFIG` until the group has started once. Later it is `UNREACHABLE`,
    since waiting may help.
    """
    return Finding(
        "source.topics" if set(missing) & set(config.source.topics) else "name",
        f"missing topics: {', '.join(missing)}",
        f"create with: kworker topics create --config {config.file}"
        + _source_advice(config, missing),
        ExitCode.UNREACHABLE if GroupNote(config.state_dir).exists else ExitCode.CONFIG,
    )


def _ids_untold(topics: Sequence[str]) -> Finding:
    step = "workers wait until the brokers tell them"
    return Finding("source.topics", ids_untold(topics), step, ExitCode.UNREACHABLE)


def _no_match(config: Config) -> Finding:
    return Finding(
        "source.topics",
        f"no topic matches {config.source.pattern}",
        "create the source topics, or correct source.pattern",
        ExitCode.UNREACHABLE if GroupNote(config.state_dir).exists else ExitCode.CONFIG,
    )


def _source_advice(config: Config, missing: Sequence[str]) -> str:
    sources = set(missing) & set(config.source.topics)
    if not sources:
        return ""
    return " --partitions N --replication M"


def _unlike_planned(
    config: Config, topics: Mapping[str, TopicInfo], sources: Sequence[str]
) -> list[Finding]:
    step = "change the topic, unless the difference is intended"
    found = [
        Finding(spec.name, f"the topic is not as kworker plans it: {difference}", step, ExitCode.OK)
        for spec in plan(config, {name: topics[name] for name in sources})
        for difference in differences(spec, topics[spec.name])
    ]
    return [*found, *_small_results(config, topics, sources), *_uneven(config, topics, sources)]


def _small_results(
    config: Config, topics: Mapping[str, TopicInfo], sources: Sequence[str]
) -> list[Finding]:
    results = int(topics[config.delivery.results].config[BYTES_MAX])
    records = max(int(topics[name].config[BYTES_MAX]) for name in sources)
    if results >= records:
        return []
    return [
        Finding(
            config.delivery.results,
            f"{BYTES_MAX} of this topic is {results}, less than the {records} of a source topic",
            f"raise it to {records}, if a result may be as large as the record that it comes from",
            ExitCode.OK,
        )
    ]


def _uneven(
    config: Config, topics: Mapping[str, TopicInfo], sources: Sequence[str]
) -> list[Finding]:
    """Returns a hint for each source topic with more or fewer partitions than the requeue topic.

    Returns none unless records are ordered by key.
    """
    requeue = topics[config.requeue_topic].partitions
    return [
        Finding(
            name,
            f"the topic has {topics[name].partitions} partitions, but {config.requeue_topic} has"
            f" {requeue}: a retried record, which returns by {config.requeue_topic}, may overtake"
            " other records of its key",
            "give both topics the same number of partitions, if the order matters",
            ExitCode.OK,
        )
        for name in sources
        if topics[name].partitions != requeue and config.workers.ordering == "key"
    ]
