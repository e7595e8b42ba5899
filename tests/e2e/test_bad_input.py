"""Bad input to verbs, and brokers that are not there: one clear line, the right exit code."""

import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.conftest import Kworker, Meanwhile
from tests.support.service import ECHO, Service, Settings, service
from tests.support.waiting import eventually

Topic = Callable[..., str]
Port = Callable[[], int]
Done = subprocess.CompletedProcess[str]

USAGE, NOT_RUNNING, UNREACHABLE, ALREADY_RUNNING, CONFIG = 2, 3, 69, 73, 78
# For how many seconds a verb waits for brokers.
PATIENCE_S = {"check --online": 5, "topics show": 15, "replay --all": 15, "dead list": 20}


def told(done: Done) -> list[str]:
    """The lines for a person; whatever else there is must not be a traceback."""
    assert "Traceback" not in done.stdout + done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("kworker: ")]


@contextmanager
def written(
    folder: Path,
    bootstrap: str,
    source: str,
    *,
    handlers: str = ECHO,
    settings: Settings | None = None,
) -> Iterator[Service]:
    """A service whose own topics are not there."""
    made = Service(folder, bootstrap, [source], handlers=handlers, settings=settings)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module", autouse=True)
def waiting(tmp_path_factory: pytest.TempPathFactory, free_port: Port) -> Iterator[Service]:
    """One without a broker, started before the first test: to say so takes it seconds."""
    with written(
        tmp_path_factory.mktemp("waiting"), f"127.0.0.1:{free_port()}", "orders"
    ) as service:
        service.start()
        yield service


class Daemon(NamedTuple):
    """The same as a daemon, and what its start is to say."""

    service: Service
    started: "Future[Done]"


@pytest.fixture(scope="module", autouse=True)
def daemon(
    tmp_path_factory: pytest.TempPathFactory, free_port: Port, meanwhile: Meanwhile
) -> Iterator[Daemon]:
    servers = f"127.0.0.1:{free_port()}"
    with written(tmp_path_factory.mktemp("daemon"), servers, "orders") as service:
        start = meanwhile(service.command, "start", "--daemon", "--timeout", "3s")
        yield Daemon(service, start)
        start.result()  # else it could start what is just being ended


class Unanswered(NamedTuple):
    """Brokers that are not there, and what verbs are to say of them."""

    servers: str
    begun: "dict[str, Future[Done]]"


@pytest.fixture(scope="module", autouse=True)
def unanswered(
    tmp_path_factory: pytest.TempPathFactory, free_port: Port, meanwhile: Meanwhile
) -> Unanswered:
    folder, servers = tmp_path_factory.mktemp("unanswered") / "service", f"127.0.0.1:{free_port()}"
    never = Service(folder, servers, ["orders"])
    begun = {verb: meanwhile(never.command, *verb.split()) for verb in PATIENCE_S}
    return Unanswered(servers, begun)


def test_mistakes_in_the_file_are_all_told_and_nothing_starts(tmp_path: Path) -> None:
    """A key that is not known, a wrong type, a bad duration: a line each."""
    mistakes: Settings = {
        "workers": {"thread": 3, "threads": "many", "drain_timeout": "soon"},
        "sorce": {"topics": ["orders"]},
    }
    with written(tmp_path, "127.0.0.1:1", "orders", settings=mistakes) as wrong:
        done = wrong.command("start")
        assert done.returncode == CONFIG
        lines = told(done)
        assert len(lines) == len(done.stderr.splitlines()) == 4
        assert "kworker: workers.thread: unknown key; did you mean threads?" in lines
        assert any(
            line.startswith("kworker: sorce: ") and line.endswith("did you mean source?")
            for line in lines
        )
        assert any(line.startswith("kworker: workers.threads: expected ") for line in lines)
        assert any(line.startswith("kworker: workers.drain_timeout: expected ") for line in lines)
        assert not (tmp_path / "state").exists()


def test_a_missing_file_names_the_verb_that_writes_one(kworker: Kworker, tmp_path: Path) -> None:
    """Also where no file was named."""
    done = kworker("start", "--config", tmp_path / "none.toml")
    [line] = told(done)
    assert done.returncode == CONFIG
    assert str(tmp_path / "none.toml") in line
    assert "kworker init" in line


def test_a_file_that_is_not_toml_is_told_with_the_line(kworker: Kworker, tmp_path: Path) -> None:
    """The place is what a person needs."""
    file = tmp_path / "kworker.toml"
    file.write_text('name = "orders"\nhandler = handlers:handle\n')
    done = kworker("start", "--config", file)
    [line] = told(done)
    assert done.returncode == CONFIG
    assert "line 2" in line


def test_a_handler_that_will_not_import_ends_the_start(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Restarting cannot help, so nothing loops. What else may be wrong, test_check tells."""
    source, handlers = topic("bad"), "import no_such_module\n"
    with service(tmp_path / "service", bootstrap, [source], handlers=handlers) as wrong:
        done = wrong.command("start")
        assert done.returncode == CONFIG
        [line] = told(done)
        assert line.startswith("kworker: handler: ")
        assert "No module named 'no_such_module'" in line
        wrong.is_gone()


def test_a_missing_topic_at_start_is_told_with_its_command(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """First the source, then what kworker itself needs."""
    with written(tmp_path / "a", bootstrap, "bad-no-such-topic") as wrong:
        done = wrong.command("start")
        assert done.returncode == CONFIG
        [line] = told(done)
        assert "bad-no-such-topic" in line
        assert f"kworker topics create --config {wrong.config}" in line
    with written(tmp_path / "b", bootstrap, topic("bad")) as wrong:
        done = wrong.command("start")
        assert done.returncode == CONFIG
        [line] = told(done)
        assert wrong.results in line
        assert f"kworker topics create --config {wrong.config}" in line
        assert wrong.command("topics", "create").returncode == 0
        wrong.serve()
        assert wrong.stop() == 0


def test_a_start_waits_for_an_unreachable_broker_until_stopped(
    waiting: Service,
) -> None:
    """It may come; meanwhile the status says what is missing."""
    eventually(lambda: waiting.state() == "waiting", timeout_s=60, what="it waits")
    [reason] = eventually(lambda: waiting.status()["reasons"])
    assert waiting.bootstrap in reason
    assert waiting.command("status").returncode == 1
    assert waiting.stop() == 0
    assert "Traceback" not in waiting.said()
    waiting.is_gone()


@pytest.mark.parametrize("verb", PATIENCE_S)
def test_a_verb_without_brokers_is_69_and_one_line(unanswered: Unanswered, verb: str) -> None:
    """With the reason, and without librdkafka's own log. Waiting may help, unlike with the file."""
    done = unanswered.begun[verb].result()
    assert done.returncode == UNREACHABLE
    reason = f"no broker of {unanswered.servers} answers within {PATIENCE_S[verb]} s"
    reason += r" \(.*Connection refused\)"
    if verb == "check --online":  # where it is a line of a report
        assert re.search(reason, done.stdout)
        assert done.stderr == ""
    else:
        assert re.fullmatch(f"kworker: {reason}\n", done.stderr)


def test_a_daemon_not_ready_in_time_exits_69_and_goes_on_waiting(daemon: Daemon) -> None:
    """A script learns that it is not ready; the service is left to its patience."""
    service, started = daemon
    done = started.result()
    [line] = told(done)
    assert done.returncode == UNREACHABLE
    assert "kworker status" in line
    eventually(lambda: service.state() == "waiting", timeout_s=60, what="it waits on")
    done = service.command("stop")
    assert (done.returncode, told(done)) == (0, [])
    service.is_gone()


def test_a_second_start_is_refused_and_the_first_goes_on(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """One instance, one supervisor."""
    with service(tmp_path / "service", bootstrap, [topic("bad")]) as first:
        first.serve()
        for verb in (["start"], ["start", "--daemon"]):
            done = first.command(*verb)
            [line] = told(done)
            assert done.returncode == ALREADY_RUNNING
            assert f"already running as pid {first.pid}" in line
            assert "kworker stop" in line
        assert first.state() == "running"
        assert first.stop() == 0


@pytest.mark.parametrize("verb", [["status"], ["stop"], ["reload"], ["scale", "2"], ["dump"]])
def test_a_verb_for_a_service_that_does_not_run_is_3(tmp_path: Path, verb: list[str]) -> None:
    """And says how to start it."""
    with written(tmp_path, "127.0.0.1:1", "orders") as absent:
        done = absent.command(*verb)
        [line] = told(done)
        assert done.returncode == NOT_RUNNING
        assert "is not running" in line
        assert "kworker start" in line


def test_a_mistyped_verb_or_option_exits_2(kworker: Kworker) -> None:
    """With the word that was not understood."""
    for verb, word in ((["strat"], "strat"), (["start", "--deamon"], "--deamon")):
        done = kworker(*verb)
        [line] = told(done)
        assert done.returncode == USAGE
        assert word in line


def test_a_console_port_that_is_taken_does_not_stop_a_service(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Looking at it is not what it is for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = {"console": {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}}
        source = topic("bad")
        with service(tmp_path / "service", bootstrap, [source], settings=listen) as going_on:
            going_on.serve()
            going_on.signal(signal.SIGTERM)
            assert going_on.exit_code() == 0
            assert "Traceback" not in going_on.said()
