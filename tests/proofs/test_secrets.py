"""A mark in every place for a secret, and a service that runs and fails: nothing shows the mark."""

import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from kworker.config.secrets import MASK
from tests.support.console import ConsoleClient
from tests.support.kafka import SEVERE, TIMEOUT_S, New, Writer, create_topic, messages
from tests.support.secured import SecuredKafka, secured_redis
from tests.support.service import Service
from tests.support.spark_service import SLOW_S

LOOKS_S = 0.05
MARK = f"canary{uuid.uuid4().hex[:8]}"
USER, KEYS, REDIS = f"{MARK}-user", f"{MARK}-keys", f"{MARK}-redis"
TOKEN, CONF, ENVIRONMENT = f"{MARK}-console-token", f"{MARK}-conf", f"{MARK}-environment"
GOOD = {"fine", "again", ""}
DEAD = {"reject", "fail", "kill", "{"}

# Spark's launchers are its scripts. They are gone before a look, so each tells its command line.
BASH = """#!/bin/sh
echo "bash $*" >> {commands}
exec {bash} "$@"
"""
# Every way in which a handler may end, each of which is told somewhere.
HANDLERS = """
import os, signal
from kworker import Reject, Retry
from tests.support.recorded import recorded

@recorded
def handle(message):
    match message.text():
        case "reject":
            raise Reject("it is bad")
        case "fail":
            raise ZeroDivisionError
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "again" if message.attempt == 1:
            raise Retry("later")
        case "{":
            message.json()
    return {"value": message.text()}
"""
# One table for each time at which Spark may fail: at the plan, and at a row.
TRANSFORMS = """
def planned_wrongly(rows):
    return rows.select("no_such_column")


def run_wrongly(rows):
    return rows.selectExpr("CAST(raise_error('no such row') AS STRING) AS value")
"""
TABLES = [
    {"name": "good", "path": "data/good"},
    {"name": "planned", "path": "data/planned", "transform": "transforms:planned_wrongly"},
    {"name": "run", "path": "data/run", "transform": "transforms:run_wrongly"},
]
VERBS = (
    "config show",
    "config show --json",
    "check --online",
    "check --online --json",
    "status",
    "status --json",
    "dump",
    "topics show",
    "offsets show",
    "dead list",
    "dead list --json",
    "reject --list",
    "spark status",
    "transactions list",
)


class CommandLines:
    """The command lines and titles of a process and its children, looked at all the time."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._look, args=(pid,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        assert self._thread
        self._thread.join(10)

    def _look(self, pid: int) -> None:
        parent = psutil.Process(pid)
        while not self._ended.wait(LOOKS_S):
            with suppress(psutil.Error):
                for process in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.Error):
                        self.seen.add(" ".join(process.cmdline()))


@dataclass
class Shown:
    """All that the run showed, by place."""

    text: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)
    given: str = ""
    """The configuration and the environment, which have every secret."""


class Rig(NamedTuple):
    """A service whose configuration has a secret in every place."""

    service: Service
    console: ConsoleClient
    redis_folder: Path
    commands: Path
    """A file with the command line of each script that bash ran."""


@contextmanager
def rig(folder: Path, kafka: SecuredKafka, free_port: Callable[[], int]) -> Iterator[Rig]:
    outside, port = folder / "outside", free_port()
    for each in (outside, folder / "service", folder / "service" / "tmp"):
        each.mkdir()
    (outside / "password").write_text(f"{USER}\n")
    commands = _telling_bash(outside)
    source = create_topic(kafka.bootstrap, f"secret-{uuid.uuid4().hex[:8]}", 2)
    rights = ["~*", "+@all"]
    with (
        secured_redis(folder / "redis", free_port(), kafka.authority, REDIS, rights) as redis,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PATH", str(outside), prepend=os.pathsep)
        patch.setenv("AWS_SECRET_ACCESS_KEY", ENVIRONMENT)
        patch.setenv("KWORKER_KAFKA__SSL_KEYSTORE_PASSWORD", KEYS)
        patch.setenv("TMPDIR", str(folder / "service" / "tmp"))
        login = kafka.login(outside, USER, keys=KEYS)
        settings = _settings(login, outside / "password", redis.url, f"127.0.0.1:{port}")
        made = Service(
            folder / "service", kafka.bootstrap, [source], handlers=HANDLERS, settings=settings
        )
        (made.folder / "transforms.py").write_text(TRANSFORMS)
        try:
            made.create_topics()
            yield Rig(made, ConsoleClient(port), folder / "redis", commands)
        finally:
            made.end()


def _telling_bash(folder: Path) -> Path:
    """A `bash` to be found first, and the file in which it writes."""
    found, shim, commands = shutil.which("bash"), folder / "bash", folder / "commands"
    assert found
    shim.write_text(BASH.format(bash=found, commands=commands))
    shim.chmod(0o755)
    return commands


def _settings(
    login: Mapping[str, str], password: Path, redis: str, listen: str
) -> dict[str, dict[str, Any]]:
    given = {name: value for name, value in login.items() if name != "ssl.keystore.password"}
    return {
        "kafka": {**given, "sasl.password": {"file": str(password)}, "debug": "conf,security"},
        "kafka.consumer": {"sasl.password": USER},
        "kafka.producer": {"sasl.password": USER, "ssl.key.password": KEYS},
        "idempotency": {"redis": redis, "key": "key"},
        "workers": {"processes": 2, "threads": 4},
        "retry": {"delays": ["1s"]},
        "dead_letter": {"breaker": ""},
        "console": {"listen": listen, "token": TOKEN},
        "log": {"level": "debug"},
        "spark": {
            "trigger": "1s",
            "tables": TABLES,
            "conf": {
                "spark.hadoop.fs.s3a.secret.key": CONF,
                "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": CONF,
            },
        },
    }


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory,
    secured_kafka: SecuredKafka,
    free_port: Callable[[], int],
) -> Shown:
    """One run: records of every fate, tables that fail, questions meanwhile, and a drain."""
    found, commands = Shown(), CommandLines()
    folder = tmp_path_factory.mktemp("secrets")
    with rig(folder, secured_kafka, free_port) as made:
        service = made.service
        writer = Writer(secured_kafka.bootstrap, folder / "produced")
        texts = enumerate(sorted(GOOD | DEAD))
        fates = [New(f"{text}-{n}", text.encode(), b"%d" % n) for n, text in texts]
        writer.write(service.topics[0], fates)
        service.start()
        commands.follow(service.pid)
        service.is_running()
        service.until(lambda: _dead(service) == DEAD, "four records are dead", SLOW_S)
        service.until(lambda: _rows(service) == GOOD, "three are in the good table", SLOW_S)
        service.until(lambda: _tables_failed(service), "the other two tables have failed", SLOW_S)
        _ask(made, found)
        found.given = f"{service.config.read_text()} {os.environ}"  # which it inherits
        found.files |= _files(service.folder, "while it runs")
        service.ends_well()
        commands.end()
        found.commands = {*commands.seen, *made.commands.read_text().splitlines()}
        found.text["its log"] = service.said()
        found.files |= _files(service.folder, "after it")
        found.files |= _files(made.redis_folder, "of Redis")
        found.records = _records(secured_kafka.bootstrap, service.name)
    return found


# The worker that is killed may have done others of its records, which are then done again: so these
# count values, not records.


def _dead(service: Service) -> set[str]:
    """The values of the dead letters."""
    return {each.value().decode() for each in messages(service.bootstrap, f"{service.name}.dead")}


def _rows(service: Service) -> set[str]:
    """The values in the good table."""
    good = str(service.folder / "data" / "good")
    if not DeltaTable.is_deltatable(good):
        return set()
    return {json.loads(row)["value"] for row in DeltaTable(good).to_pandas()["value"]}


def _tables_failed(service: Service) -> bool:
    return all(words in service.said() for words in ("no_such_column", "no such row"))


def _ask(made: Rig, found: Shown) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/page.js", "/page.json", "/status.json", "/metrics", "/readyz"):
        answer = made.console.get(path, **bearer)
        assert answer.status == 200 or path == "/readyz", path
        found.text[path] = f"{answer.headers} {answer.text}"
    found.text["without the token"] = made.console.get("/status.json").text
    for verb in VERBS:
        done = made.service.command(*verb.split())
        assert "Traceback" not in done.stderr, done.stderr
        found.text[f"kworker {verb}"] = done.stdout + done.stderr


def _files(folder: Path, when: str) -> dict[str, bytes]:
    """All files in a folder, but the configuration itself."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):  # a socket, or gone meanwhile
            if path.is_file() and path.name != "kworker.toml":
                found[f"{path} {when}"] = path.read_bytes()
    return found


def _records(bootstrap: str, name: str) -> dict[str, bytes]:
    """What Kafka keeps: records of the service's topics, and of positions and transactions."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    own = [topic for topic in topics if topic.startswith((f"{name}.", "__"))]
    return {
        f"{topic}/{each.partition()}/{each.offset()}": repr(
            (each.key(), each.value(), each.headers())
        ).encode()
        for topic in own
        for each in messages(bootstrap, topic)
    }


# -- what it showed ---------------------------------------------------------------------


def test_no_log_line_and_no_view_has_a_secret(shown: Shown) -> None:
    """At debug, with what librdkafka says at its own; the page, the verbs, the metrics, a dump."""
    assert [place for place, text in shown.text.items() if MARK in text] == []
    log = shown.text["its log"]
    for told in ("ZeroDivisionError", "SIGKILL", "no_such_column", "no such row"):
        assert told in log, f"an invalid run: {told}"
    assert MASK in shown.text["kworker config show"]


def test_no_command_line_has_a_secret(shown: Shown) -> None:
    """Of no process at any time, the launchers of Java among them."""
    assert [line for line in shown.commands if MARK in line] == []
    for process in ("worker 0", "console", "bin/spark-submit", "SparkSubmit", "import_probe"):
        assert any(process in line for line in shown.commands), f"an invalid run: {process}"
    assert any(re.search(r"isolated|quarantine", line) for line in shown.commands)


def test_no_file_has_a_secret(shown: Shown) -> None:
    """State, checkpoints, tables, temporary files, while it runs and after; and Redis's."""
    assert [place for place, data in shown.files.items() if MARK.encode() in data] == []
    places = " ".join(shown.files)
    for place in ("state/", "data/_checkpoints", "data/good/_delta_log", "appendonly.aof"):
        assert place in places, f"an invalid run: {place}"


def test_no_record_has_a_secret(shown: Shown) -> None:
    """Dead letters with their tracebacks, retries, results, and the group's positions."""
    assert [place for place, data in shown.records.items() if MARK.encode() in data] == []
    for topic in (".dead/", ".results/", ".retry.1s/", "__consumer_offsets/"):
        assert any(topic in place for place in shown.records), f"an invalid run: {topic}"


def test_the_run_had_every_secret(shown: Shown) -> None:
    """Else the others say nothing. The user's password is in a file of its own, too."""
    secrets = (USER, KEYS, REDIS, TOKEN, CONF, ENVIRONMENT)
    assert [secret for secret in secrets if secret not in shown.given] == []
