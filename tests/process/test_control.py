"""The control socket answers every permitted client, and none can make supervision wait."""

import json
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from kworker.errors import NotRunning
from kworker.instance.state_folder import StateFolder, connect
from kworker.supervisor.control.client import CommandRefused, ControlClient
from tests.support.bare_service import Service
from tests.support.waiting import eventually, repeated

_WORKER = {"slot", "pid", "phase", "partitions", "in_hand", "in_flight", "oldest_s"} | {
    "heartbeat_age_s",
    "rate",
    "rss_bytes",
    "restarts",
    "replacements",
}


def peer(service: Service) -> socket.socket:
    return connect(service.folder / "control.sock", 10)


def sent_until_refused(connection: socket.socket) -> int:
    sent = 0
    try:
        while sent < 1 << 30:
            sent += connection.send(b"x" * 65536)
    except ConnectionError:
        pass
    return sent


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end of the connection."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionError:  # it had more to say than we would read
        pass
    return received


def test_the_status_has_every_field_of_the_contract(service: Service):
    """Names are never changed: dashboards depend on them."""
    service.write(behaviour={"1": {"reasons": ["no broker answers"]}})
    service.serve()
    eventually(lambda: service.status()["workers"][0]["rate"] > 0)
    status = service.status()
    assert {
        "name": "orders",
        "instance": "test",
        "state": "red",
        "reasons": ["no broker answers"],
        "paused": [],
        "pid": service.pid,
        "delays": [],
        "held": 0,
        "suspects": 0,
    }.items() <= status.items()
    assert {"version", "uptime_s"} <= set(status)
    assert set(status["workers"][0]) >= _WORKER
    assert status["workers"][1]["partitions"] == [["orders", 1]]
    assert status["workers"][1]["rss_bytes"] > 1 << 20
    assert set(status["counters"]) >= {"consumed", "done", "retried", "dead", "duplicates"}
    assert set(status["counters"]) >= {"dropped"}
    unknown = {"records": None, "unfinished": None, "age_s": 0.0, "topics": []}
    assert status["lag"] == unknown
    assert set(status["spark"]) >= {"state", "tables"}


def test_stop_shows_the_drain_and_how_it_ended(service: Service):
    service.write(behaviour={"*": {"drain_steps": 16}})
    service.serve()
    lines = list(service.client.follow("stop"))
    assert lines[-1] == {"done": True, "exit_code": 0}
    in_hand = [line["in_hand"] for line in lines[:-1]]
    assert len(in_hand) >= 2
    assert in_hand[-1] < max(in_hand)
    assert service.exit_code(3) == 0


def test_stop_now_ends_at_once(service: Service):
    service.write(behaviour={"*": {"drain_steps": 100, "in_hand": 1}})
    service.serve()
    assert list(service.client.follow("stop", now=True))[-1] == {"done": True, "exit_code": 75}
    assert service.exit_code(3) == 75


def test_scale_takes_a_number_or_a_difference(service: Service):
    service.serve()
    assert service.client.request("scale", to="3") == {"processes": 3}
    eventually(lambda: sorted(service.running()) == [0, 1, 2])
    assert service.client.request("scale", to="-2") == {"processes": 1}
    eventually(lambda: sorted(service.running()) == [0])
    for wrong in ("0", "-1", "99", "some"):
        with pytest.raises(CommandRefused, match="scale"):
            service.client.request("scale", to=wrong)


def test_restart_tells_when_all_are_replaced(service: Service):
    service.serve()
    before = service.running()
    lines = list(service.client.follow("restart"))
    assert next(line["left"] for line in lines if "left" in line) == 2
    assert lines[-1] == {"done": True, "exit_code": 0}
    assert not set(service.running().values()) & set(before.values())


@pytest.mark.parametrize("verb", ["restart", "reload"])
def test_a_long_check_keeps_its_command_waiting(service: Service, verb: str):
    """An import may take longer than a command waits for a line."""
    service.write(limits={"progress_every_s": 0.1})
    service.serve()
    service.write(preflight={"takes_s": 2})
    client = ControlClient("orders", StateFolder(service.folder), answer_timeout_s=1)
    lines = list(client.follow(verb))
    assert lines[0]["checking"]
    assert lines[-1] == {"done": True, "exit_code": 0}
    assert next(line["left"] for line in lines if "left" in line) == 2


def test_a_long_check_that_fails_refuses_its_command(service: Service):
    service.write(limits={"progress_every_s": 0.1})
    service.serve()
    service.write(preflight={"takes_s": 1, "problems": ["handler: no module named nope"]})
    with pytest.raises(CommandRefused, match="no module named nope") as refused:
        list(service.client.follow("reload"))
    assert refused.value.exit_code == 78


def test_a_refused_reload_is_78_with_its_lines(service: Service):
    service.serve()
    service.write(settings={"name": "invoices"})
    with pytest.raises(CommandRefused, match='name: is "orders"') as refused:
        service.client.request("reload")
    assert refused.value.exit_code == 78


def test_a_reload_that_raises_is_refused_with_its_reason(service: Service):
    """Whatever a document makes of the reader, the service that runs must go on."""
    service.serve()
    before = service.running()
    (service.folder / "settings.json").write_text("{")
    with pytest.raises(CommandRefused, match="JSONDecodeError: ") as refused:
        service.client.request("reload")
    assert refused.value.exit_code == 1
    service.says("reload refused, nothing is changed: JSONDecodeError: ")
    service.says('"exc_type":"JSONDecodeError"')
    assert service.running() == before


def test_dump_names_the_processes_whose_stacks_it_asked_for(service: Service):
    service.serve()
    dumped = service.client.request("dump")["dumped"]
    assert set(dumped) == {service.delay()["pid"], *service.running().values()}


def test_a_missing_service_is_reported_as_not_running(tmp_path: Path):
    with pytest.raises(NotRunning, match="is not running"):
        ControlClient("orders", StateFolder(tmp_path)).request("status")


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[]\n", b'{"verb": ["stop"]}\n', b"\xff\xfe\n", b"[" * 60000 + b"\n"]
)
def test_an_invalid_request_is_refused(shared: Service, line: bytes):
    with peer(shared) as connection:
        connection.sendall(line)
        assert json.loads(answer(connection))["exit_code"] == 2
    assert shared.status()["state"] == "running"


def test_a_line_without_end_is_cut_off(shared: Service):
    """A gigabyte, if it were let in; it is refused after 64 KiB."""
    with peer(shared) as connection:
        assert sent_until_refused(connection) < 4 << 20
    assert shared.status()["state"] == "running"


def test_half_a_request_times_out_and_delays_no_other(shared: Service):
    """Others are answered while it is still waited for."""

    def answered_meanwhile(_: int) -> bool:
        with peer(shared) as half:
            half.sendall(b'{"verb": "sta')
            assert shared.status()["state"] == "running"
            dropped, _, _ = select.select([half], [], [], 0)
            assert answer(half) == b""  # closed by the other side
            return not dropped

    # A busy machine may take longer for an answer than half a request is waited for.
    repeated(answered_meanwhile, bool, what="an answer while half a request is there")


@pytest.mark.parametrize(
    "request_",
    [
        {"verb": "scale"},
        {"verb": "scale", "to": None},
        {"verb": "scale", "to": True},
        {"verb": "scale", "to": {"to": [[[3]]]}},
        {"verb": "scale", "to": "9" * 60_000},
        {"verb": "__class__"},
        {"verb": "stop\0"},
        {"verb": None, "now": True},
    ],
)
def test_an_odd_argument_is_refused(shared: Service, request_: dict[str, Any]):
    """Whoever wrote it, the service is as it was."""
    before = shared.running()
    with peer(shared) as connection:
        connection.sendall(json.dumps(request_).encode() + b"\n")
        assert json.loads(answer(connection))["exit_code"] == 2
    assert shared.running() == before


def test_only_the_first_line_of_a_connection_is_obeyed(shared: Service):
    """A status that somebody else's words are added to must not become a stop."""
    with peer(shared) as connection:
        connection.sendall(b'{"verb": "status"}\n{"verb": "stop"}\n')
        [line] = answer(connection).splitlines()
    assert json.loads(line)["name"] == "orders"
    assert shared.status()["state"] == "running"


def test_a_request_that_drips_in_is_dropped_like_half_of_one(shared: Service):
    """Each byte would be a new reason to wait."""
    with peer(shared) as slow:
        eventually(lambda: is_dropped_after_a_byte(slow), every_s=0.1, what="it is dropped")


def is_dropped_after_a_byte(connection: socket.socket) -> bool:
    try:
        connection.sendall(b" ")
    except ConnectionError:
        return True
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and connection.recv(1) == b""


def test_peers_that_hang_up_before_their_answer_leave_nothing(shared: Service):
    """As commands do that are interrupted."""
    assert shared.status()["state"] == "running"
    descriptors = Path(f"/proc/{shared.pid}/fd")
    before = len(os.listdir(descriptors))
    for _ in range(300):
        with peer(shared) as hasty:
            hasty.sendall(b'{"verb": "status"}\n')
    assert shared.status()["state"] == "running"
    eventually(lambda: len(os.listdir(descriptors)) <= before, what="their connections are gone")


def test_a_thousand_idle_connections_do_not_lock_anybody_out(shared: Service):
    crowd = []
    try:
        for _ in range(1000):
            crowd.append(peer(shared))
        assert shared.status()["state"] == "running"
        assert len(os.listdir(f"/proc/{shared.pid}/fd")) < 90
    finally:
        for connection in crowd:
            connection.close()


def test_a_peer_that_does_not_read_its_answers_stops_nothing(shared: Service):
    """A `status` in a stopped terminal must not hold the supervisor in a write."""
    deaf = [peer(shared) for _ in range(20)]
    for connection in deaf:
        connection.sendall(b'{"verb": "status"}\n')
    shared.kill(0)
    eventually(lambda: 0 in shared.running(), timeout_s=5)
    for connection in deaf:
        connection.close()


if os.geteuid() == 0:  # only root can become somebody else

    def test_another_user_is_turned_away(shared: Service):
        """The folder keeps others out; so does the socket, should somebody open the folder."""
        shared.folder.chmod(0o755)
        (shared.folder / "control.sock").chmod(0o777)
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            _ask_as_stranger(shared.folder, send)
        os.waitpid(pid, 0)
        assert os.read(receive, 65536) == b"connected, and told: "
        os.close(receive)
        os.close(send)


def _ask_as_stranger(folder: Path, tell: int) -> None:
    try:
        os.chdir(folder)  # while we may
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("control.sock")
            os.write(tell, b"connected, and told: ")
            connection.sendall(b'{"verb": "status"}\n')
            os.write(tell, answer(connection))
    finally:
        os._exit(0)


def test_a_status_never_names_a_dead_workers_pid(service: Service):
    """Who is told a pid may signal it: one that was reaped is nobody's, or a stranger's."""
    service.serve()
    worker = psutil.Process(service.running()[0])
    asking = peer(service)
    assert service.status()  # a later peer was answered, so this one is connected
    service.send(signal.SIGSTOP)
    worker.kill()
    eventually(lambda: worker.status() == psutil.STATUS_ZOMBIE)
    asking.sendall(b'{"verb": "status"}\n')
    service.send(signal.SIGCONT)
    assert json.loads(answer(asking))["workers"][0]["pid"] != worker.pid


def test_a_dead_socket_is_no_obstacle_to_a_signal(service: Service):
    """`stop` finds the supervisor by its lock when its socket was removed."""
    service.serve()
    (service.folder / "control.sock").unlink()
    supervisor = service.client.supervisor()
    assert supervisor.pid == service.pid
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait(10)
    assert service.exit_code() == 0
