"""Checks before a start: each returns what it found, and none changes anything but the last.

Those that ask Kafka import its client, so the supervisor runs them in a child that ends.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kworker.config.client_properties import (
    Properties,
    admin_properties,
    consumer_properties,
    speaks_new_protocol,
    worker_producer_properties,
)
from kworker.config.model import Config, format_size
from kworker.config.rules import WORKER_BYTES, memory_ceiling
from kworker.config.topics import (
    BYTES_MAX,
    SETTINGS,
    TopicInfo,
    delay_pattern,
    differences,
    own_topics,
    plan,
    source_topics,
)
from kworker.core.idempotency import names_function
from kworker.distribution import how_to_install
from kworker.errors import ConfigError, ExitCode, KworkerError, Unreachable
from kworker.instance.group_note import GroupNote, lost_partitions
from kworker.jars import find_java

if TYPE_CHECKING:
    from kworker.clients.admin import Admin
    from kworker.clients.redis import RedisServerInfo

IMPORT_TIMEOUT_S = 40.0
BROKER_TIMEOUT_S = 5.0
# The first group of a new cluster waits until the brokers have made its topic of positions.
GROUP_TIMEOUT_S = 30.0

ClientKind = Literal["consumer", "producer"]


@dataclass(frozen=True)
class Finding:
    """Something a check found, and what to do about it.

    `CONFIG`: waiting will not help. `ALREADY_RUNNING`: nor against another copy. `UNREACHABLE`:
    it may. `OK`: good to know, no more.
    """

    key: str
    problem: str
    next_step: str
    exit_code: ExitCode = ExitCode.CONFIG

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}; {self.next_step}"


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """The one that tells the worst of them."""
    codes = {finding.exit_code for finding in findings}
    worst = (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING, ExitCode.UNREACHABLE)
    return next((code for code in worst if code in codes), ExitCode.OK)


def before_start(config: Config) -> list[Finding]:
    """All that `start` needs to know; at the group's first start, its positions are committed."""
    found = [*handlers(config), *clients(config)]
    if exit_code(found) is ExitCode.OK:
        found += [*online(config), *redis(config)]
    if exit_code(found) is ExitCode.OK:
        found += ensure_start_offsets(config)
    return found


def handlers(config: Config, *, timeout_s: float = IMPORT_TIMEOUT_S) -> list[Finding]:
    """Whether every handler can be imported, tried in a process of its own, and fits in memory."""
    keys = {config.handler: "handler"} if config.handler else {}
    for topic, reference in config.handlers.items():
        keys.setdefault(reference, f"handlers.{topic}")
    if config.idempotency and names_function(config.idempotency.key):
        keys.setdefault(config.idempotency.key, "idempotency.key")
    imported = _imports(config, keys, timeout_s)
    return imported.findings or _unfit_for_memory(config, imported.rss_bytes)


class _Imported(NamedTuple):
    """References to Python, as a process found them that has imported all; 0: not known."""

    findings: list[Finding]
    rss_bytes: int


def _unfit_for_memory(config: Config, rss_bytes: int) -> list[Finding]:
    """A worker that is too large before its first record would be so after each replacement."""
    most, step = config.workers.memory, "raise it, or import less"
    takes = f"{rss_bytes >> 20} MiB are taken by a process that has only imported the handlers"
    if rss_bytes > most:
        return [Finding("workers.memory", f"{format_size(most)}, and {takes}", step)]
    ceiling = memory_ceiling(config)
    records = ceiling.total - WORKER_BYTES if ceiling else 0
    if rss_bytes + records <= most:
        return []
    text = f"{takes}, which leaves less of {format_size(most)} than its records may take"
    text += f" ({records >> 20} MiB): it would be replaced often"
    return [Finding("workers.memory", text, f"{step}, or lower in_flight_bytes", ExitCode.OK)]


def _imports(config: Config, keys: Mapping[str, str], timeout_s: float) -> _Imported:
    """What is wrong with references to Python, each told at its key."""
    step = "correct it, or the module"
    try:
        problems, rss_bytes = _probed(config.file.parent, list(keys), timeout_s)
    except subprocess.TimeoutExpired:
        # A loaded machine, perhaps: the next try may be in time.
        text = f"{', '.join(keys)} not imported within {timeout_s:g} s"
        step = "see what the module waits for"
        late = Finding(next(iter(keys.values())), text, step, ExitCode.UNREACHABLE)
        return _Imported([late], 0)
    found = [Finding(keys[name], f"{name} {text}", step) for name, text in problems.items()]
    return _Imported(found, rss_bytes)


def _probed(
    folder: Path, references: Sequence[str], timeout_s: float
) -> tuple[Mapping[str, str], int]:
    """What is wrong with each reference, and the size with all of them; raises `TimeoutExpired`."""
    receive, send = os.pipe()
    with os.fdopen(receive, "rb") as answers:
        # -P and our own path: what a worker can import, and nothing from the working directory.
        probe = "kworker.preflight.import_probe"
        command = [sys.executable, "-P", "-m", probe, str(send), str(folder)]
        try:
            done = subprocess.run(
                [*command, *references],
                pass_fds=[send],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        finally:
            os.close(send)
        words = answers.read()
    if not words:
        end = f"ends the process that imports it ({_end(done)})"
        return dict.fromkeys(references[:1], end), 0
    found = json.loads(words)
    return found["problems"], found["rss_bytes"]


def _end(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return f"exit code {done.returncode}"


def clients(config: Config) -> list[Finding]:
    """Whether librdkafka takes the properties of every client; asks no broker."""
    from kworker.clients.property_refusals import refusals

    found: dict[str, Finding] = {}
    properties_of: dict[ClientKind, Properties] = {
        "consumer": consumer_properties(config, slot=0),
        "producer": worker_producer_properties(config, slot=0),
    }
    for kind, properties in properties_of.items():
        chosen = {*config.kafka.common, *getattr(config.kafka, kind)}
        for refusal in refusals(kind, properties, chosen):
            key = _property_key(config, kind, refusal.name)
            found.setdefault(key, Finding(key, refusal.reason, "see librdkafka's CONFIGURATION.md"))
    return list(found.values())


def _property_key(config: Config, kind: ClientKind, name: str) -> str:
    if not name:
        return "kafka"
    return f"kafka.{kind}.{name}" if name in getattr(config.kafka, kind) else f"kafka.{name}"


def online(config: Config) -> list[Finding]:
    """Whether brokers answer and the topics are there, and what about them is not as planned."""
    try:
        admin = admin_of(config)
        wanted = source_topics(config, admin.topic_names())
        names = [*wanted, *own_topics(config), *config.delivery.topics]
        topics = admin.topics(names, SETTINGS)
    except KworkerError as error:
        return [unanswered(error)]
    missing = [name for name in names if name not in topics]
    if not wanted:
        return [_no_match(config)]
    if missing:
        return [_missing_topics(config, missing)]
    return _unlike_planned(config, topics, wanted)


def admin_of(config: Config, timeout_s: float = BROKER_TIMEOUT_S) -> "Admin":
    """An administrator's client for checks. Raises KworkerError."""
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=timeout_s)


def unanswered(error: KworkerError) -> Finding:
    """The brokers did not answer, or said no."""
    step = "start the brokers (kworker sandbox up, for development) or correct it"
    if not isinstance(error, Unreachable):
        step = "ask who runs the brokers"
    return Finding("kafka.bootstrap.servers", str(error), step, ExitCode.UNREACHABLE)


def _missing_topics(config: Config, missing: Sequence[str]) -> Finding:
    """Nothing to wait for at a group's first start; later somebody is at work on the cluster."""
    are = "topic is" if len(missing) == 1 else "topics are"
    return Finding(
        "source.topics" if set(missing) & set(config.source.topics) else "name",
        f"{are} missing: {', '.join(missing)}",
        f"create with: kworker topics create --config {config.file}"
        + _source_advice(config, missing),
        ExitCode.UNREACHABLE if GroupNote(config.state_dir).exists else ExitCode.CONFIG,
    )


def _no_match(config: Config) -> Finding:
    return Finding(
        "source.topics",
        f"no topic matches {config.source.pattern}",
        "create the source topics, or correct it",
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
    found = [
        Finding(spec.name, difference, "change the topic if that is not meant", ExitCode.OK)
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
            f"{BYTES_MAX} {results}, and the source's is {records}",
            "raise it, if a result may be as large as its record",
            ExitCode.OK,
        )
    ]


def _uneven(
    config: Config, topics: Mapping[str, TopicInfo], sources: Sequence[str]
) -> list[Finding]:
    """Where partition p of requeue does not sit with partition p of the source."""
    requeue = topics[config.requeue_topic].partitions
    return [
        Finding(
            name,
            f"{topics[name].partitions} partitions, and {config.requeue_topic} has {requeue}",
            "a record that comes again may overtake others of its key",
            ExitCode.OK,
        )
        for name in sources
        if topics[name].partitions != requeue and config.workers.ordering == "key"
    ]


def positions(config: Config) -> list[Finding]:
    """Whether the groups' positions are told, and how long a killed member keeps its partitions."""
    try:
        admin = admin_of(config)
        existing = admin.topic_names()
    except KworkerError:
        return []  # which is what `online` is about
    try:
        pattern = re.compile(delay_pattern(config))
        groups = {
            config.name: [*source_topics(config, existing), config.requeue_topic],
            f"{config.name}.delay": [name for name in existing if pattern.match(name)],
        }
        found = [
            _hidden(group, hidden)
            for group, topics in groups.items()
            if (hidden := admin.hidden_positions(group, _partitions(admin, topics)))
        ]
        return [*found, *_long_sessions(config, admin)]
    except KworkerError as error:
        return [unanswered(error)]


def _partitions(admin: "Admin", topics: Sequence[str]) -> list[tuple[str, int]]:
    known = admin.topics(topics)
    return [(name, number) for name in known for number in range(known[name].partitions)]


def _hidden(group: str, hidden: Sequence[tuple[str, int]]) -> Finding:
    names = ", ".join(f"{topic}/{number}" for topic, number in hidden)
    return Finding(
        group,
        f"the committed position of {names} is hidden by a transaction that has not ended, though"
        " the brokers answer",
        "wait for its end; kworker transactions list says if it hangs, and"
        " kworker transactions abort ends it then",
        ExitCode.UNREACHABLE,
    )


_SESSION = "group.consumer.session.timeout.ms"
_SESSION_MS = 15_000  # a killed worker should not be missed for much longer than ten seconds


def _long_sessions(config: Config, admin: "Admin") -> Iterator[Finding]:
    """With the newer protocol the broker decides."""
    if not speaks_new_protocol(config):
        return
    session_ms = int(admin.broker_setting(_SESSION) or 0)
    if session_ms > _SESSION_MS:
        yield Finding(
            "kafka.consumer.group.protocol",
            f"{_SESSION} of the brokers is {session_ms}: for so long nobody has the partitions of"
            " a worker that was killed",
            f"set {_SESSION} to 10000 on the brokers, or, where kafka-configs is at hand, for this"
            " group alone: kafka-configs --alter --entity-type groups --entity-name"
            f" {config.name} --add-config consumer.session.timeout.ms=10000 (not below"
            " group.consumer.min.session.timeout.ms of the brokers)",
            ExitCode.OK,
        )


def redis(config: Config) -> list[Finding]:
    """Whether Redis answers, where it is configured, and keeps what it is given."""
    if config.idempotency is None:
        return []
    from kworker.clients.redis import describe

    key = "idempotency.redis"
    try:
        server = describe(config.idempotency.redis, timeout_s=BROKER_TIMEOUT_S)
    except Unreachable as error:
        return [Finding(key, str(error), "start Redis, or correct it", ExitCode.UNREACHABLE)]
    except ValueError as error:
        return [Finding(key, str(error), "correct it")]
    return [*_unfit(key, server)]


def _unfit(key: str, server: "RedisServerInfo") -> Iterator[Finding]:
    """A Redis that forgets lets effects be repeated."""
    if server.eviction != "noeviction":
        yield Finding(
            key,
            f"maxmemory-policy is {server.eviction}: with its memory full, it would forget what"
            " is done, and effects would be repeated",
            "set it to noeviction (redis-cli config set maxmemory-policy noeviction, and in its"
            " configuration), or give kworker a Redis of its own",
        )
    if server.cluster:
        yield Finding(key, "it is a Redis Cluster, which is not supported", "name a single Redis")
    if server.keeps is False:
        yield Finding(
            key,
            "it keeps nothing on disk: restarted, it has forgotten what is done",
            "turn on appendonly, if effects must not be repeated then",
            ExitCode.OK,
        )


def spark(config: Config) -> list[Finding]:
    """Whether the Spark job could start here, where `start` launches it."""
    if config.spark is None or config.spark.run == "elsewhere":
        return []
    found = []
    try:
        find_java()
    except ConfigError as error:
        found.append(Finding("spark", str(error), 'or set spark.run = "elsewhere"'))
    if importlib.util.find_spec("pyspark") is None:
        found.append(
            Finding("spark", "pyspark is not installed", f"install it: {how_to_install('spark')}")
        )
        return found
    transforms = {
        table.transform: f"spark.tables[{table.name}].transform"
        for table in config.spark.tables
        if table.transform
    }
    if transforms:
        found += _imports(config, transforms, IMPORT_TIMEOUT_S).findings
    return found


def ensure_start_offsets(config: Config) -> list[Finding]:
    """At the group's first start, commits where it begins, before the first record is taken.

    So what `source.start` means is settled once, and no later loss of positions can silently
    skip or repeat a topic: a group that is noted in `state_dir` and has none is an error, and
    so is a partition.
    """
    note = GroupNote(config.state_dir)
    try:
        admin = admin_of(config, GROUP_TIMEOUT_S)
        topics = admin.topics(source_topics(config, admin.topic_names()))
        partitions = [(name, n) for name, info in topics.items() for n in range(info.partitions)]
        if hidden := admin.hidden_positions(config.name, partitions):
            return [_hidden(config.name, hidden)]
        held = set(admin.group_offsets(config.name, partitions))
        ids = admin.identities(topics)
        if gone := lost_partitions(
            note.positions(), [at for at in partitions if at not in held], ids
        ):
            return [_lost_offsets(config, gone if held else [])]
        if not held:
            if note.exists:
                return [_lost_offsets(config, [])]
            if config.source.start == "fail":
                return [_must_not_choose(config)]
            positions = admin.list_offsets(partitions, config.source.start)
            admin.set_group_offsets(config.name, positions)
            held = set(positions)
        note.write(config.name, admin.cluster_id(), held, ids)
    except KworkerError as error:
        return [unanswered(error)]
    return []


def _lost_offsets(config: Config, gone: Sequence[tuple[str, int]]) -> Finding:
    """Of some partitions, or of all."""
    where = f" of {', '.join(f'{topic}/{number}' for topic, number in gone)}" if gone else ""
    each = "; for each of them, with --topic and --partition" if gone else ""
    return Finding(
        "source.start",
        f"the group {config.name} ran before and has no positions{where} now: they expired,"
        " somebody deleted them, or its source topics were deleted and made again",
        f"choose where to go on with kworker offsets reset{each}, or, to begin as at a first start,"
        f" remove {GroupNote(config.state_dir).path}",
        ExitCode.UNREACHABLE,
    )


def _must_not_choose(config: Config) -> Finding:
    return Finding(
        "source.start",
        f'the group {config.name} has no positions yet, and start = "fail"',
        "set earliest or latest, or give the group its positions",
    )
