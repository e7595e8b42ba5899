"""Bad input of every kind: one clear line with the next step, the right exit code, no traceback."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from redis import Redis

from kworker.config import toml_file
from kworker.config.model import Config, IdempotencySettings
from kworker.errors import ExitCode
from kworker.instance.group_note import GroupNote
from kworker.preflight.findings import Finding
from kworker.preflight.imports import check_handlers
from kworker.preflight.kafka import check_topics
from kworker.preflight.positions import ensure_start_offsets
from kworker.preflight.preflight import before_start
from kworker.preflight.redis import check_redis
from kworker.preflight.spark import check_spark
from tests.e2e.conftest import Kworker
from tests.support.bare_service import python
from tests.support.kafka import commit, delete_topic, led
from tests.support.redis import own_redis
from tests.support.waiting import eventually

Configured = Callable[..., Path]

HANDLER = "def handle(message):\n    return None\n"


@pytest.fixture(scope="module")
def changed_redis(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[str]:
    """One whose settings change; services of other tests look at those of the session's."""
    with own_redis(tmp_path_factory.mktemp("redis"), free_port()) as server:
        yield server.url


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Writes a service's file and its handlers."""
    return partial(written, tmp_path)


def written(
    folder: Path,
    extra: str = "",
    *,
    servers: str = "127.0.0.1:1",  # where nobody serves
    topic: str = "cfg-nowhere",
    handlers: str = HANDLER,
    source: str = "",
) -> Path:
    file = folder / "kworker.toml"
    file.write_text(
        f'name = "cfg-{uuid.uuid4().hex[:8]}"\nhandler = "handlers:handle"\n'
        f'[source]\ntopics = ["{topic}"]\n{source}\n'
        f'[kafka]\nbootstrap.servers = "{servers}"\n{extra}\n'
    )
    (folder / "handlers.py").write_text(handlers)
    return file


def test_a_check_tells_the_ceiling_and_the_worst_case(
    kworker: Kworker, configured: Configured
) -> None:
    """Without --online no broker is asked."""
    done = kworker("check", "--config", configured())
    assert done.returncode == 0, done.stderr
    assert "✗" not in done.stdout
    assert "✓ handlers can be imported" in done.stdout
    assert "a worker uses at most 339MiB = 120 MB + 2 ×" in done.stdout
    assert "delays only later records of the same key in its partition" in done.stdout
    assert "when more than 2,263 records are unfinished" in done.stdout


def test_mistakes_in_the_file_are_a_line_each(kworker: Kworker, configured: Configured) -> None:
    """For a person, and for a program."""
    file = configured('[workers]\nthread = 3\nthreads = "many"')
    lines = [
        'workers.threads: expected a whole number of at least 1, got "many"',
        "workers.thread: unknown key; did you mean threads?",
    ]
    done = kworker("check", "--config", file)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [f"kworker: {line}" for line in lines]
    told = kworker("check", "--config", file, "--json")
    assert json.loads(told.stdout) == {"ok": False, "exit_code": 78, "problems": lines}
    assert told.returncode == 78


@pytest.mark.parametrize("verb", [["check"], ["config", "show"], ["start"], ["status"], ["stop"]])
def test_a_missing_file_is_one_line_for_every_verb(
    kworker: Kworker, tmp_path: Path, verb: list[str]
) -> None:
    """It says where was looked, and what writes a first one."""
    done = kworker(*verb, "--config", tmp_path / "none.toml")
    assert done.returncode == 78
    assert done.stderr == (
        f"kworker: the configuration file {tmp_path}/none.toml does not exist;"
        " write one with: kworker init\n"
    )


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("\n\nraise KeyError('x')\n", "KeyError: 'x' (handlers.py line 3)"),
        ("def handle(:\n", "SyntaxError: invalid syntax (handlers.py line 1)"),
        ("import sys\nsys.exit('no')\n", "SystemExit: no (handlers.py line 2)"),
        ("import os\nos._exit(3)\n", "ends the process that imports it (exit code 3)"),
        ("import os\nos.kill(os.getpid(), 11)\n", "ends the process that imports it (SIGSEGV)"),
        ("", "cannot be used: 'handlers' has nothing callable named 'handle'"),
        ("print('noise')\nhandle = 3\n", "nothing callable named 'handle'"),
    ],
)
def test_a_failed_handler_import_is_told_with_its_last_words(
    configured: Configured, handlers: str, words: str
) -> None:
    """Whatever its import does, the check survives and says where it was."""
    [found] = check_handlers(toml_file.load(configured(handlers=handlers)))
    assert (found.key, found.exit_code) == ("handler", ExitCode.CONFIG)
    assert words in found.problem


@pytest.mark.parametrize(
    ("handlers", "problem", "step"),
    [
        (
            "def handle(): ...\n",
            "has no parameter for the record",
            "write: def handle(message: Mes",
        ),
        (
            "def handle(order: int): ...\n",
            "takes order: int, a type that",
            "write: def handle(mes",
        ),
        (
            "class handle:\n    def __init__(self, url): ...\n    def __call__(self, m): ...\n",
            "is a class whose __init__ needs url",
            "give defaults",
        ),
        (
            "from kworker import batch\n@batch(size=9999)\ndef handle(messages): ...\n",
            "never gets a full batch of 9999 records, because workers.in_flight is 2000",
            "raise it, or lower",
        ),
    ],
)
def test_a_handler_that_no_record_fits_is_told_what_to_write(
    configured: Configured, handlers: str, problem: str, step: str
) -> None:
    """Before a start, which would fail on each record, or try for ever to create the class."""
    [found] = check_handlers(toml_file.load(configured(handlers=handlers)))
    assert (found.key, found.exit_code) == ("handler", ExitCode.CONFIG)
    assert found.problem.startswith(f"the Python reference handlers:handle {problem}")
    assert found.next_step.startswith(step)


def test_handlers_of_two_kinds_are_told_by_the_key_of_one(configured: Configured) -> None:
    handlers = HANDLER + "async def settle(message): ...\n"
    file = configured('[handlers]\n"cfg-nowhere" = "handlers:settle"', handlers=handlers)
    [found] = check_handlers(toml_file.load(file))
    assert found.key == "handlers.cfg-nowhere"
    assert "is `async def`, and handlers:handle is `def`" in found.problem


def test_a_check_creates_no_handler_and_calls_none(configured: Configured) -> None:
    """Its `__init__` opens connections, perhaps to what is there only in production."""
    handlers = (
        "class handle:\n    def __init__(self): raise OSError\n    def __call__(self, m): ...\n"
    )
    assert check_handlers(toml_file.load(configured(handlers=handlers))) == []


def test_the_function_of_an_event_id_is_no_handler(configured: Configured) -> None:
    """What fits a handler need not fit it."""
    file = configured(
        '[idempotency]\nredis = "redis://127.0.0.1:1"\nkey = "handlers:event"',
        handlers=HANDLER + "def event(record: object, *, prefix: int): ...\n",
    )
    assert check_handlers(toml_file.load(file)) == []


def test_a_check_shows_an_import_error_without_a_traceback(
    kworker: Kworker, configured: Configured
) -> None:
    """The whole way through the command."""
    done = kworker("check", "--config", configured(handlers="import no_such_module\n"))
    assert done.returncode == 78
    assert "✗ handlers can be imported" in done.stdout
    assert "(handlers.py line 1)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_import_that_never_ends_is_given_up(configured: Configured) -> None:
    """It may be the machine, so this alone is no reason to refuse a start for ever."""
    config = toml_file.load(configured(handlers="import threading\nthreading.Event().wait()\n"))
    [found] = check_handlers(config, timeout_s=2)
    assert found.exit_code is ExitCode.UNREACHABLE
    assert "not imported within 2 s" in found.problem


def test_handlers_that_cannot_fit_in_memory_are_refused(configured: Configured) -> None:
    """Every worker would be over its limit before its first record."""
    file = configured("[workers]\nmemory = '400MiB'", handlers="x = b'x' * (500 << 20)\n" + HANDLER)
    [found] = check_handlers(toml_file.load(file))
    assert (found.key, found.exit_code) == ("workers.memory", ExitCode.CONFIG)
    assert found.problem.startswith(
        "the limit is 400MiB, but the imports of the handlers alone take 5"
    )


def test_handlers_that_leave_no_room_for_records_are_told(configured: Configured) -> None:
    file = configured("[workers]\nmemory = '400MiB'", handlers="x = b'x' * (200 << 20)\n" + HANDLER)
    [found] = check_handlers(toml_file.load(file))
    assert (found.key, found.exit_code) == ("workers.memory", ExitCode.OK)
    assert "it would be replaced often" in found.problem


def test_a_handler_of_one_topic_is_named_by_its_own_key(configured: Configured) -> None:
    """With several, the reader must know which."""
    file = configured('[handlers]\n"cfg-nowhere" = "elsewhere:handle"')
    [found] = check_handlers(toml_file.load(file))
    assert found.key == "handlers.cfg-nowhere"


def test_a_transform_that_will_not_import_is_told_with_its_table(configured: Configured) -> None:
    """It would fail only after Spark has started."""
    table = '[[spark.tables]]\nname = "t"\npath = "p"\ntransform = "transforms:gone"'
    [found] = check_spark(toml_file.load(configured(table)))
    assert found.key == "spark.tables[t].transform"
    assert "No module named 'transforms'" in found.problem


@pytest.mark.parametrize("verb", ["check", "start"])
def test_tracing_without_its_extra_is_refused(configured: Configured, verb: str) -> None:
    """Nobody would miss the spans before they are needed."""
    file = configured("[tracing]\nenabled = true")
    hidden = "import sys; sys.modules['opentelemetry'] = None"
    main = f"{hidden}; from kworker.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, verb, "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78, done.stderr
    told = done.stdout + done.stderr
    assert "tracing.enabled: OpenTelemetry is not installed" in told
    assert "install it: pip install" in told


def test_a_pattern_without_topics_is_told(
    configured: Configured, bootstrap: str, tmp_path: Path
) -> None:
    """Nothing could be created for it."""
    file = configured(servers=bootstrap, topic="^cfg-nothing-like-this")
    [found] = check_topics(toml_file.load(file))
    assert (found.exit_code, found.key) == (ExitCode.CONFIG, "source.topics")
    assert found.problem == "no topic matches ^cfg-nothing-like-this"


def test_a_misspelt_property_is_told_where_it_stands(
    kworker: Kworker, configured: Configured
) -> None:
    """librdkafka alone knows its properties."""
    file = configured('sesion.timeout.ms = 1\n[kafka.producer]\nlingerms = 5\n"acks" = "some"')
    done = kworker("check", "--config", file, "--json")
    assert done.returncode == 78
    found = {
        f["key"]: f["problem"] for c in json.loads(done.stdout)["checks"] for f in c["findings"]
    }
    assert found["kafka.sesion.timeout.ms"] == (
        'No such configuration property: "sesion.timeout.ms"'
    )
    assert "lingerms" in found["kafka.producer.lingerms"]
    assert found["kafka.producer.acks"].startswith("Invalid value for configuration property")


def test_the_properties_of_a_transactional_producer_are_tried(
    kworker: Kworker, configured: Configured
) -> None:
    """It takes fewer than any other: the worker would end at each start."""
    file = configured('[kafka.producer]\n"acks" = "1"\n[delivery]\nguarantee = "exactly-once"')
    done = kworker("check", "--config", file)
    assert done.returncode == 78
    assert "    kafka.producer.acks: " in done.stdout


def test_missing_topics_are_told_with_the_command_to_type(
    kworker: Kworker, configured: Configured, bootstrap: str, topic: Callable[..., str]
) -> None:
    """And once it has been typed, all is well."""
    file = configured(servers=bootstrap, topic=topic("cfg-source"))
    done = kworker("check", "--online", "--config", file)
    assert done.returncode == 78
    assert f"→ create with: kworker topics create --config {file}\n" in done.stdout
    assert kworker("topics", "create", "--config", file).returncode == 0
    done = kworker("check", "--online", "--config", file)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_source_with_other_partitions_than_requeue_is_named(
    kworker: Kworker, configured: Configured, bootstrap: str, topic: Callable[..., str]
) -> None:
    """There a record that comes again may not meet its lane; it is no reason not to start."""
    small, large = topic("cfg-small", partitions=2), topic("cfg-large", partitions=3)
    file = configured(servers=bootstrap, topic=f'{small}", "{large}')
    assert kworker("topics", "create", "--config", file).returncode == 0
    done = kworker("check", "--online", "--config", file)
    assert done.returncode == 0
    assert f"{small}: the topic has 2 partitions, but " in done.stdout
    assert f"{large}: the topic has 3 partitions" not in done.stdout


def test_redis_that_does_not_answer_is_told_without_its_password(
    configured: Configured, redis_url: str, free_port: Callable[[], int]
) -> None:
    """The same check is content with one that does."""
    idempotency = '[idempotency]\nkey = "key"\nredis = '
    address = f"redis://:s3cret@127.0.0.1:{free_port()}/0"
    [found] = check_redis(toml_file.load(configured(f'{idempotency}"{address}"')))
    assert found.exit_code is ExitCode.UNREACHABLE
    assert "s3cret" not in str(found)
    assert check_redis(toml_file.load(configured(f'{idempotency}"{redis_url}"'))) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_may_forget_is_refused(
    kworker: Kworker,
    configured: Configured,
    bootstrap: str,
    topic: Callable[..., str],
    changed_redis: str,
    policy: str,
) -> None:
    """Evicted marks are repeated effects; the line says what to type."""
    idempotency = f'[idempotency]\nkey = "key"\nredis = "{changed_redis}"'
    file = configured(idempotency, servers=bootstrap, topic=topic("cfg-source"))
    with Redis.from_url(changed_redis) as redis:
        redis.config_set("maxmemory-policy", policy)
        try:
            done = kworker("check", "--online", "--config", file)
        finally:
            redis.config_set("maxmemory-policy", "noeviction")
    assert done.returncode == 78
    assert f"idempotency.redis: maxmemory-policy is {policy}: " in done.stdout
    assert "redis-cli config set maxmemory-policy noeviction" in done.stdout


def test_a_redis_without_a_disk_is_told_and_start_goes_on(
    configured: Configured, changed_redis: str
) -> None:
    """Only its restart would repeat effects; snapshots now and then are something."""
    file = configured(f'[idempotency]\nkey = "key"\nredis = "{changed_redis}"')
    config = toml_file.load(file)
    with Redis.from_url(changed_redis) as redis:
        redis.config_set("appendonly", "no")
        [found] = check_redis(config)
        redis.config_set("save", "60 1")
        assert check_redis(config) == []
        redis.config_set("save", "")
        redis.config_set("appendonly", "yes")
    assert found.exit_code is ExitCode.OK
    assert "Redis keeps nothing on disk" in found.problem


def test_an_idempotency_function_that_will_not_import_is_told(configured: Configured) -> None:
    """Else no record would have an id."""
    file = configured('[idempotency]\nkey = "handlers:order_id"\nredis = "redis://127.0.0.1:1"')
    [found] = check_handlers(toml_file.load(file))
    assert found.key == "idempotency.key"
    assert "nothing callable named 'order_id'" in found.problem


def offsets(bootstrap: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(30).topic_partitions or ()
    return {tp.partition: tp.offset for tp in found}


@pytest.fixture
def service(
    kworker: Kworker, configured: Configured, bootstrap: str, topic: Callable[..., str]
) -> Callable[..., Config]:
    """A service whose topics exist, with three records in partition 0 of its source."""

    def make(**settings: Any) -> Config:
        source = topic("cfg-source", partitions=2)
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(3):
            producer.produce(source, str(number), partition=0)
        assert producer.flush(30) == 0
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        file = configured(servers=bootstrap, topic=source, source=lines)
        assert kworker("topics", "create", "--config", file).returncode == 0
        return toml_file.load(file)

    return make


@pytest.mark.parametrize(("start", "first"), [("earliest", {0: 0, 1: 0}), ("latest", {0: 3, 1: 0})])
def test_the_first_start_commits_where_the_group_begins(
    service: Callable[..., Config], bootstrap: str, start: str, first: dict[int, int]
) -> None:
    """So that what `source.start` means is settled once; the second start changes nothing."""
    config = service(start=start)
    assert before_start(config) == []
    assert offsets(bootstrap, config.name) == first
    note = json.loads((config.state_dir / "group.json").read_text())
    assert note["group"] == config.name
    assert (config.state_dir.stat().st_mode & 0o777) == 0o700
    assert before_start(config) == []
    assert offsets(bootstrap, config.name) == first


def test_a_first_start_that_must_not_choose_fails(service: Callable[..., Config]) -> None:
    """`fail` is for groups whose positions somebody brings along."""
    [found] = before_start(service(start="fail"))
    assert (found.key, found.exit_code) == ("source.start", ExitCode.CONFIG)


def test_a_group_that_brings_its_positions_keeps_them(
    service: Callable[..., Config], bootstrap: str
) -> None:
    """Another consumer's group may be taken over, whatever `start` says."""
    config = service(start="fail")
    position = TopicPartition(config.source.topics[0], 0, 2)
    brought = ConsumerGroupTopicPartitions(config.name, [position])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.alter_consumer_group_offsets([brought])[config.name].result(30)
    assert before_start(config) == []
    assert offsets(bootstrap, config.name) == {0: 2}


def test_a_group_that_lost_its_positions_waits_for_a_decision(
    service: Callable[..., Config], bootstrap: str
) -> None:
    """Neither beginning is right: one repeats everything, the other skips it."""
    config = service()
    assert before_start(config) == []
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([config.name])[config.name].result(30)
    [found] = before_start(config)
    assert found.exit_code is ExitCode.UNREACHABLE
    assert "ran before and has no positions now" in found.problem
    assert "kworker offsets reset" in found.next_step
    assert offsets(bootstrap, config.name) == {}


def test_a_partition_that_lost_its_position_waits_for_a_decision(
    service: Callable[..., Config], bootstrap: str
) -> None:
    """It would begin at its beginning, and do all of it again, while the others go on."""
    config = service()
    assert before_start(config) == []
    [source] = config.source.topics
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([config.name])[config.name].result(30)
    commit(bootstrap, config.name, [TopicPartition(source, 0, 3)])
    [found] = before_start(config)
    assert found.exit_code is ExitCode.UNREACHABLE
    assert f"ran before and has no positions of {source}/1 now" in found.problem
    assert "goes on in each of these partitions (--topic, --partition)" in found.next_step
    assert offsets(bootstrap, config.name) == {0: 3}
    commit(bootstrap, config.name, [TopicPartition(source, 1, 0)])
    assert before_start(config) == []


def test_a_partition_that_never_had_a_position_is_new(
    service: Callable[..., Config], bootstrap: str
) -> None:
    """It begins at the earliest, and is noted once it has one; so is a topic made again."""
    config = service()
    assert ensure_start_offsets(config) == []
    [source] = config.source.topics
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(source, 3)])[source].result(30)
    eventually(lambda: led(admin, source) == 3, what="the third")
    assert ensure_start_offsets(config) == []
    assert GroupNote(config.state_dir).positions().keys() == {(source, 0), (source, 1)}
    commit(bootstrap, config.name, [TopicPartition(source, 2, 0)])
    assert ensure_start_offsets(config) == []
    assert GroupNote(config.state_dir).positions().keys() == {(source, n) for n in range(3)}


def test_a_topic_that_goes_missing_later_is_waited_for(
    service: Callable[..., Config], bootstrap: str
) -> None:
    """At the first start it is a mistake; once the group has run, somebody is at work there."""
    config = service()
    assert before_start(config) == []
    delete_topic(bootstrap, config.requeue_topic)
    [found] = before_start(config)
    assert found.exit_code is ExitCode.UNREACHABLE
    assert config.requeue_topic in found.problem


def test_a_start_waits_for_redis(
    service: Callable[..., Config],
    redis_url: str,
    free_port: Callable[[], int],
    bootstrap: str,
) -> None:
    """As for the brokers; and nothing is committed before it is there."""
    config = service()

    def found(url: str) -> list[Finding]:
        asked = IdempotencySettings(redis=url, key="key")
        return before_start(config.model_copy(update={"idempotency": asked}))

    [away] = found(f"redis://127.0.0.1:{free_port()}/0")
    assert (away.key, away.exit_code) == ("idempotency.redis", ExitCode.UNREACHABLE)
    assert not (config.state_dir / "group.json").exists()
    assert found(redis_url) == []
    assert offsets(bootstrap, config.name) == {0: 0, 1: 0}


def test_usage_errors_are_one_line(kworker: Kworker) -> None:
    """With the word that was not understood."""
    done = kworker("check", "--on-line")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("kworker: No such option: --on-line")


def test_help_teaches_the_first_steps(kworker: Kworker) -> None:
    """In the order in which they are typed."""
    done = kworker("--help")
    assert done.returncode == 0
    steps = ("kworker init", "kworker sandbox up", "kworker topics create", "kworker check")
    places = [done.stdout.find(step) for step in steps]
    assert -1 < places[0] < places[1] < places[2] < places[3]


def test_help_breaks_its_lines_where_the_terminal_ends(kworker: Kworker) -> None:
    """Not where they end in the source as well."""
    done = kworker("spark", "reset", "--help")
    prose = done.stdout[done.stdout.index("The job must be") : done.stdout.index("╭")]
    *full, _last = filter(None, map(str.strip, prose.splitlines()))
    assert len(full) >= 3
    assert min(map(len, full)) > 60


def test_the_command_loads_no_client_before_it_needs_one() -> None:
    """A command that takes seconds to say how it is used is not asked."""
    clients = "{'confluent_kafka', 'pyspark', 'redis'}"
    all_verbs = "import sys; from kworker.cli.verbs import command_for; command_for()"
    loaded = f"{all_verbs}; print({clients} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_init_writes_what_check_accepts_and_never_twice(
    kworker: Kworker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thing that a new user sees must work."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    assert kworker("init").returncode == 0
    assert kworker("check").returncode == 0
    assert ".kworker/" in (tmp_path / ".gitignore").read_text()
    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    again = kworker("init")
    assert again.returncode == 2
    assert again.stderr == f"kworker: {tmp_path}/kworker.toml exists already; nothing was written\n"
