"""`kworker sandbox`: real servers that start, are found again, fail aloud and stop."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

from kworker.errors import KworkerError
from kworker.sandbox import Sandbox
from kworker.sandbox.process import Process, kill, start
from tests.e2e.conftest import Kworker
from tests.support.waiting import eventually

# So that a killed broker's leaders move, and it may come back, within less than nine seconds.
SOON_MISSED = {"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500"}


def processes_of(folder: Path) -> list[int]:
    """Whatever still runs and writes its output there: titles can change, this cannot."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if output.readlink().is_relative_to(folder):
                found.append(int(output.parts[2]))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    """Returns when every replica in sync has them all."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    refused: list[KafkaError] = []

    def reported(error: KafkaError | None, _: Message) -> None:
        if error:
            refused.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=reported)
    assert producer.flush(60) == 0
    assert refused == []


def records(bootstrap: str, topic: str) -> list[bytes | None]:
    """What stands in partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        partition = TopicPartition(topic, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(end, timeout=30)] if end else []
    finally:
        consumer.close()


def create(bootstrap: str, topic: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(30)


def test_a_second_up_finds_the_first(sandbox: Sandbox, kworker: Kworker) -> None:
    """A developer types it again without thinking; nothing may start twice."""
    before = sandbox.status()
    again = kworker("sandbox", "up", "--dir", sandbox.folder)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "already running")
    assert sandbox.status() == before


def test_a_second_up_does_not_change_the_running_brokers(
    sandbox: Sandbox, kworker: Kworker
) -> None:
    """Else the command would claim a port on which nothing listens."""
    refused = kworker("sandbox", "up", "--dir", sandbox.folder, "--brokers", 3)
    assert refused.returncode == 2
    assert "runs with other options (brokers" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_init_takes_the_address_of_a_sandbox_that_runs_here(
    sandbox: Sandbox, kworker: Kworker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".sandbox").symlink_to(sandbox.folder)
    told = kworker("init")
    assert told.returncode == 0, told.stderr
    assert f"Kafka is {sandbox.bootstrap}, of the sandbox" in told.stdout
    assert f'"bootstrap.servers" = "{sandbox.bootstrap}"' in Path("kworker.toml").read_text()


def test_status_tells_programs_what_runs_where(sandbox: Sandbox, kworker: Kworker) -> None:
    """Scripts take the addresses from it."""
    told = kworker("sandbox", "status", "--dir", sandbox.folder, "--json")
    status = json.loads(told.stdout)
    assert told.returncode == 0
    assert (status["running"], status["bootstrap"]) == (True, sandbox.bootstrap)
    assert status["redis"] == sandbox.redis_url
    assert [server["name"] for server in status["servers"]] == ["broker-1", "redis"]
    assert all(server["pid"] for server in status["servers"])


def test_status_of_nothing_says_how_to_start(tmp_path: Path, kworker: Kworker) -> None:
    """The exit code is 3, as for everything that does not run."""
    told = kworker("sandbox", "status", "--dir", tmp_path)
    assert told.returncode == 3
    assert "kworker sandbox up" in told.stdout


def test_down_leaves_no_process_and_the_data_survives(
    sandbox_folder: Path, free_port: Callable[[], int], kworker: Kworker
) -> None:
    """A day's work may go on tomorrow, and a laptop is not kept warm at night."""
    ports = ("--kafka-port", free_port(), "--redis-port", free_port())
    assert kworker("sandbox", "up", "--dir", sandbox_folder, *ports).returncode == 0
    sandbox = Sandbox(sandbox_folder)
    create(sandbox.bootstrap, "kept", replicas=1)
    produce(sandbox.bootstrap, "kept", b"one", b"two")
    Redis.from_url(sandbox.redis_url).set("kept", "three")

    assert kworker("sandbox", "down", "--dir", sandbox_folder).returncode == 0
    assert processes_of(sandbox_folder) == []
    assert kworker("sandbox", "status", "--dir", sandbox_folder).returncode == 3

    # Without a port: as it was.
    assert kworker("sandbox", "up", "--dir", sandbox_folder).returncode == 0
    assert records(sandbox.bootstrap, "kept") == [b"one", b"two"]
    assert Redis.from_url(sandbox.redis_url).get("kept") == b"three"

    assert kworker("sandbox", "down", "--dir", sandbox_folder, "--wipe").returncode == 0
    assert processes_of(sandbox_folder) == []
    assert not sandbox_folder.exists()


def test_up_restarts_only_what_died(own_sandbox: Callable[..., Sandbox]) -> None:
    """What goes on serving keeps its clients."""
    sandbox = own_sandbox()
    broker = sandbox.broker_pid(1)
    sandbox.stop_redis(kill=True)
    assert sandbox.up() == ["redis"]
    assert sandbox.broker_pid(1) == broker
    assert Redis.from_url(sandbox.redis_url).ping()


def test_a_process_lives_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """Until then its port is taken: of a killed one, too, for a moment."""
    first_ends = (
        "import ctypes, threading, time;"
        " threading.Thread(target=time.sleep, args=(60,)).start();"
        " ctypes.CDLL(None).pthread_exit(None)"
    )
    process = start([sys.executable, "-c", first_ends], tmp_path / "output")
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: ") Z " in stat.read_text(), what="its first thread has ended")
        assert process.alive()
    finally:
        kill([process])
    assert not process.alive()


def test_a_port_in_use_is_one_line(sandbox_folder: Path, kworker: Kworker) -> None:
    """It names the port and the option that chooses another; nothing is left behind."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = kworker("sandbox", "up", "--dir", sandbox_folder, "--redis-port", port, "--no-kafka")
    assert told.returncode == 1
    assert f"port {port} of redis is taken by process {os.getpid()}" in told.stderr
    assert "--redis-port" in told.stderr
    assert told.stderr.count("\n") == 1
    assert processes_of(sandbox_folder) == []


def test_a_start_that_fails_shows_the_brokers_own_last_words(
    sandbox_folder: Path, free_port: Callable[[], int], kworker: Kworker
) -> None:
    """Nobody should have to look for a log; and the next start is not spoiled."""
    ports = ("--kafka-port", free_port(), "--redis-port", free_port())
    told = kworker("sandbox", "up", "--dir", sandbox_folder, *ports, "--set", "num.partitions=many")
    assert told.returncode == 1
    assert "Invalid value many for configuration num.partitions" in told.stderr
    assert "Traceback" not in told.stderr
    assert processes_of(sandbox_folder) == []
    assert "many" not in (sandbox_folder / "sandbox.json").read_text()


def test_a_broker_that_fails_to_start_stops_the_whole_start(
    own_sandbox: Callable[..., Sandbox],
) -> None:
    """The start is whole or it is not: Redis alone is not what was asked for."""
    sandbox = own_sandbox()
    sandbox.down()
    properties = sandbox.folder / "broker-1" / "data" / "meta.properties"
    properties.write_text("version=1\ncluster.id=\n")
    with pytest.raises(KworkerError, match=r"broker-1 does not start(.|\n)* find node\.id"):
        sandbox.up()
    assert processes_of(sandbox.folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_stops_what_it_started(
    number: signal.Signals, sandbox_folder: Path, free_port: Callable[[], int], command: list[str]
) -> None:
    """Whoever gives up waiting wants nothing half started behind their back."""
    up = [*command, "sandbox", "up", "--dir", str(sandbox_folder), "--no-redis"]
    with subprocess.Popen([*up, "--kafka-port", str(free_port())]) as starting:
        try:
            eventually(lambda: processes_of(sandbox_folder), timeout_s=60)
        finally:
            starting.send_signal(number)
    assert starting.returncode == 130
    assert processes_of(sandbox_folder) == []


def test_three_brokers_serve_on_when_one_is_killed(own_sandbox: Callable[..., Sandbox]) -> None:
    """The reason for `--brokers 3`: leaders move, acknowledged records stay."""
    sandbox = own_sandbox(brokers=3, redis=False, properties=SOON_MISSED)
    create(sandbox.bootstrap, "replicated", replicas=3)
    produce(sandbox.bootstrap, "replicated", b"before")

    sandbox.stop_broker(2, kill=True)
    produce(sandbox.bootstrap, "replicated", b"without")
    sandbox.start_broker(2)
    produce(sandbox.bootstrap, "replicated", b"after")

    assert records(sandbox.bootstrap, "replicated") == [b"before", b"without", b"after"]
    assert sandbox.status().running


def test_down_leaves_strangers_alone(sandbox_folder: Path) -> None:
    """After a reboot a process number from the state file belongs to somebody else."""
    sandbox_folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        remembered = {"redis": Process(pid=stranger.pid, started=1).model_dump()}
        (sandbox_folder / "sandbox.json").write_text(json.dumps({"processes": remembered}))
        assert Sandbox(sandbox_folder).down() == []
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_a_killed_pytest_leaves_no_server(tmp_path: Path) -> None:
    """An interrupted test run must not fill the machine with brokers."""
    waits = tmp_path / "test_waits.py"
    waits.write_text(
        "def test_waits(sandbox, tmp_path_factory):\n"
        "    import pathlib, signal\n"
        f"    pathlib.Path({str(tmp_path / 'up')!r}).write_text(str(sandbox.folder))\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(waits)]
    run = subprocess.Popen([*command, "--basetemp", str(tmp_path / "base")])
    try:
        up = tmp_path / "up"
        folder = Path(eventually(lambda: up.exists() and up.read_text(), timeout_s=120))
        assert len(processes_of(folder)) == 2
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not processes_of(folder), timeout_s=60, what="all servers gone")
