"""The console of a real supervisor: what it answers, and that nothing waits for it."""

import base64
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.bare_service import Service
from tests.support.console import NOBODY, ConsoleClient, console_process
from tests.support.waiting import eventually

TOKEN = "a token of 24 characters"
BASIC = "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()


def listening(service: Service, port: int, **settings: object) -> ConsoleClient:
    console = {"listen": f"127.0.0.1:{port}", **settings}
    service.write(settings={"console": console})
    return ConsoleClient(port)


@pytest.fixture
def console(service: Service, free_port: Callable[[], int]) -> ConsoleClient:
    return listening(service, free_port())


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[ConsoleClient]:
    """One that tests only look at. A worker of it has a problem with a name of ill will."""
    service = Service(tmp_path_factory.mktemp("shown"))
    client = listening(service, free_port())
    service.write(behaviour={"1": {"reasons": ["<script>alert(1)</script> & \udcff"]}})
    service.serve()
    client.comes("/startupz")
    yield client
    service.end()


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[ConsoleClient]:
    """One that other hosts reach, so that it has a token."""
    service = Service(tmp_path_factory.mktemp("guarded"))
    port = free_port()
    service.write(
        settings={"console": {"listen": f"0.0.0.0:{port}", "token": TOKEN}},
        behaviour={"1": {"reasons": ["no broker answers"]}},
    )
    service.serve()
    client = ConsoleClient(port)
    client.comes("/startupz")
    yield client
    service.end()


# -- what it answers ------------------------------------------------------------------


def test_the_status_is_that_of_the_command(shown: ConsoleClient) -> None:
    document = shown.comes("/status.json").json
    assert (document["name"], document["state"], len(document["workers"])) == ("orders", "red", 2)
    assert document["console"]["listen"] == f"127.0.0.1:{shown.port}"


def test_the_page_is_whole_and_fetches_nothing_from_elsewhere(shown: ConsoleClient) -> None:
    page = shown.get("/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    files = [page.text, shown.get("/page.js").text, shown.get("/page.css").text]
    assert all(len(text) > 1000 for text in files)
    assert not [text for text in files if "https://" in text]
    data = shown.get("/page.json").json
    assert data["status"]["reasons"] == ["<script>alert(1)</script> & \\udcff"]
    assert data["since"] == [None]  # it was there before the console
    assert abs(data["now"] - time.time()) < 60


def test_every_answer_forbids_scripts_and_frames_of_others(shown: ConsoleClient) -> None:
    for path in ("/", "/page.js", "/status.json", "/metrics", "/livez", "/nowhere"):
        headers = shown.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'"), path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cache-control"] == "no-store", path


def test_metrics_come_as_prometheus_reads_them(shown: ConsoleClient) -> None:
    plain = shown.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'kworker_worker_running{worker="1"} 1.0' in plain.text.splitlines()
    assert "kworker_up 1.0" in plain.text.splitlines()
    newer = shown.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/nowhere", "GET", {}, 404),
        ("/page/index.html", "GET", {}, 404),
        ("/..%2f..%2fetc/passwd", "GET", {}, 404),
        ("/livez", "HEAD", {}, 200),
        ("/status.json", "POST", {}, 405),
        ("/livez", "DELETE", {}, 405),
        ("/livez", "GET", {"Content-Length": "9"}, 413),
        ("/livez", "GET", {"Transfer-Encoding": "chunked"}, 413),
        ("/livez", "GET", {"Host": "evil.example"}, 421),
        ("/status.json", "GET", {"Host": "127.0.0.1.evil.example:8321"}, 421),
        ("/status.json", "GET", {"Host": "localhost.evil.example"}, 421),
        ("/status.json", "GET", {"Host": "[oops"}, 421),
        ("/status.json", "GET", {"Host": ""}, 421),
        ("/status.json", "GET", {"Host": "evil.example", "X-Forwarded-Host": "localhost"}, 421),
        ("/status.json", "GET", {"Host": "evil.example", "Forwarded": "host=localhost"}, 421),
        ("/nowhere", "GET", {"X-Original-URL": "/status.json", "X-Rewrite-URL": "/livez"}, 404),
        ("/livez", "GET", {"X-HTTP-Method-Override": "DELETE", "X-Forwarded-For": "10.0.0.1"}, 200),
        ("/livez", "GET", {"Host": "localhost:1"}, 200),
        ("/livez", "GET", {"Host": "[::1]:8321"}, 200),
    ],
)
def test_what_is_not_for_it_is_refused(
    shown: ConsoleClient, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    assert shown.get(path, method, **headers).status == status


@pytest.mark.parametrize(
    ("credentials", "status"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": BASIC}, 200),
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}."}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic !"}, 401),
        ({"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()}, 401),
        ({"Authorization": f"Digest {TOKEN}"}, 401),
    ],
)
def test_with_a_token_all_but_the_probes_need_it(
    guarded: ConsoleClient, credentials: dict[str, str], status: int
) -> None:
    for path in ("/", "/page.js", "/page.json", "/status.json", "/metrics", "/nowhere"):
        wanted = 404 if path == "/nowhere" and status == 200 else status
        assert guarded.get(path, **credentials).status == wanted, path


def test_without_the_token_a_probe_answers_but_gives_no_reason(guarded: ConsoleClient) -> None:
    named = {"Host": "pod-7.example:8321"}
    assert guarded.get("/readyz", **named).json == {"ok": False}
    known = guarded.get("/readyz", Authorization=BASIC).json
    red = {"name": "orders", "state": "red", "reasons": ["no broker answers"]}
    assert known == {"ok": False, **red}


# -- probes ---------------------------------------------------------------------------


def test_readiness_turns_red_with_a_problem_and_back(
    service: Service, console: ConsoleClient
) -> None:
    service.write(limits={"restart": {"deaths_at_once": 0, "first_delay_s": 3.0}})
    service.serve()
    well = {"ok": True, "name": "orders", "state": "running", "reasons": []}
    assert console.comes("/readyz").json == well
    service.kill(0)
    red = console.comes("/readyz", 503).json
    assert red["reasons"][0].startswith("worker 0 exited (SIGKILL); next start in")
    assert console.get("/livez").status == console.get("/startupz").status == 200
    console.comes("/readyz")
    changes = [text for _, text in console.get("/page.json").json["events"]]
    assert "the service was running, and is red" in changes
    assert "the service was red, and is running" in changes


def test_startup_is_over_once_the_workers_have_joined(
    service: Service, console: ConsoleClient
) -> None:
    service.write(preflight={"unreachable": ["no broker answers"]})
    service.start()
    waiting = console.comes("/startupz", 503)
    eventually(lambda: console.get("/startupz").json["state"] == "waiting")
    assert console.get("/startupz").json["reasons"] == ["no broker answers"]
    assert waiting.status == console.get("/readyz").status == 503
    assert console.get("/livez").status == 200
    service.write(preflight={})
    console.comes("/startupz")
    console.comes("/readyz")


def test_liveness_is_the_supervisor_turning(service: Service, console: ConsoleClient) -> None:
    service.serve()
    console.comes("/livez")
    service.send(signal.SIGSTOP)
    dead = console.comes("/livez", 503).json
    assert (dead["ok"], dead["name"], dead["state"]) == (False, "orders", None)
    assert "supervisor" in dead["reasons"][0]
    gone = console.get("/status.json")
    assert gone.status == 503
    assert gone.json["last"]["name"] == "orders"
    assert gone.json["age_s"] > 10
    assert console.get("/metrics").text.splitlines()[-1] == "kworker_up 0.0"
    service.send(signal.SIGCONT)
    console.comes("/livez")


def test_a_probe_never_waits_longer_than_a_second(service: Service, console: ConsoleClient) -> None:
    """Else the prober's own time-out would judge, and not what the answer says."""
    service.serve()
    console.comes("/livez")
    service.send(signal.SIGSTOP)
    eventually(lambda: console.get("/page.json").json["problem"])
    began = time.monotonic()
    assert console.get("/livez").status == 200  # not yet
    assert time.monotonic() - began < 1.0


def test_the_drain_is_shown_to_its_end(service: Service, console: ConsoleClient) -> None:
    service.write(behaviour={"*": {"drain_while": str(service.folder / "held")}})
    (service.folder / "held").touch()
    service.serve()
    console.comes("/readyz")
    service.send(signal.SIGTERM)
    draining = console.comes("/readyz", 503).json
    assert (draining["state"], draining["reasons"]) == ("draining", ["the service is draining"])
    assert console.get("/livez").status == 200
    (service.folder / "held").unlink()
    assert service.exit_code() == 0
    assert console.get("/livez") == NOBODY


# -- its process ----------------------------------------------------------------------


def test_a_killed_console_comes_again_and_refuses_nobody(
    service: Service, console: ConsoleClient
) -> None:
    service.write(limits={"restart": {"first_delay_s": 0.5}})
    service.serve()
    before = service.running()
    console.comes("/livez")
    os.kill(service.status()["console"]["pid"], signal.SIGKILL)
    service.says(
        "the console exited (SIGKILL); the service runs without the console; next try in 0.5 s"
    )
    assert console.get("/livez").status == 200  # the supervisor has the socket: this waited
    assert service.running() == before
    assert service.status()["state"] == "running"


def test_a_port_that_is_taken_is_tried_again(service: Service, console: ConsoleClient) -> None:
    service.write(limits={"restart": {"first_delay_s": 0.2}})
    with socket.create_server(("127.0.0.1", console.port)):
        service.serve()
        service.says(f"the console cannot listen on 127.0.0.1:{console.port}")
        told = service.status()
        assert told["state"] == "running"
        assert told["console"]["state"] == "waiting"
        assert "Address already in use" in told["console"]["reason"]
    assert console.comes("/status.json").json["console"]["reason"] == ""
    assert service.said().count("the console cannot listen") == 1


def test_a_reload_moves_the_console(
    service: Service, console: ConsoleClient, free_port: Callable[[], int]
) -> None:
    service.serve()
    console.comes("/livez")
    moved = listening(service, free_port())
    service.send(signal.SIGHUP)
    moved.comes("/livez")
    assert console.get("/livez") == NOBODY
    service.write(settings={"console": {"listen": ""}})
    service.send(signal.SIGHUP)
    eventually(lambda: moved.get("/livez") == NOBODY)
    off = {"state": "off", "listen": "", "pid": None, "reason": ""}
    eventually(lambda: service.status().get("console") == off)  # once its process is reaped


def test_the_console_ends_with_a_killed_supervisor(
    service: Service, console: ConsoleClient
) -> None:
    service.serve()
    console.comes("/livez")
    child = console_process(service)
    assert child
    service.send(signal.SIGKILL)
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert console.get("/livez") == NOBODY


def test_the_console_has_no_secret_and_the_records_come_before_it(
    service: Service, console: ConsoleClient
) -> None:
    service.serve(environment={"KWORKER_PASSWORD": "canary", "AWS_SECRET_ACCESS_KEY": "canary"})
    console.comes("/livez")
    child = console_process(service)
    assert child
    proc = Path("/proc") / str(child.pid)
    assert b"canary" not in (proc / "environ").read_bytes()
    assert child.nice() == min(19, psutil.Process(service.pid).nice() + 10)


# -- abuse ----------------------------------------------------------------------------


def test_slow_huge_and_silent_clients_are_cut_off(shown: ConsoleClient) -> None:
    address = (shown.host, shown.port)
    silent = [socket.create_connection(address, timeout=20) for _ in range(20)]
    slow = socket.create_connection(address, timeout=20)
    slow.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
    huge = socket.create_connection(address, timeout=20)
    huge.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + b"x" * (64 << 10))
    assert shown.get("/livez").status == 200
    assert b"400" in _all(huge)[:20]
    assert [_all(each) for each in (*silent, slow)] == [b""] * 21
    assert shown.get("/livez").status == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /status.json HTTP/1.0\r\n\r\n", b"421"),  # it names no host
        (b"GET /status.json HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /livez HTTP/1.1\r\nHost: evil.example\r\nX: a\r\n b\r\n\r\n", b"421"),
        (b"GET /livez\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
    ],
)
def test_a_request_out_of_the_ordinary_gets_no_page(
    shown: ConsoleClient, request_: bytes, status: bytes
) -> None:
    """What browsers never send, and other programs do."""
    with socket.create_connection((shown.host, shown.port), timeout=20) as odd:
        odd.sendall(request_)
        assert odd.recv(12).split()[1] == status


def test_a_body_without_end_is_not_read(shown: ConsoleClient) -> None:
    """The console has no use for any, so whoever sends one is cut off."""
    for method in (b"GET", b"POST"):
        head = (
            method + b" /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
        )
        assert _sent_until_cut_off(shown, head, b"x" * 65536) < 64 << 20
    assert shown.get("/livez").status == 200


def test_requests_whose_answers_nobody_reads_fill_no_memory(
    service: Service, console: ConsoleClient
) -> None:
    """Sent one behind the other, each for the largest file."""
    service.serve()
    console.comes("/livez")
    child = console_process(service)
    assert child
    before = child.memory_info().rss
    many = 1000 * b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert _sent_until_cut_off(console, b"", many) < 64 << 20
    assert child.memory_info().rss - before < 32 << 20
    assert console.get("/livez").status == 200


def _sent_until_cut_off(console: ConsoleClient, head: bytes, again: bytes) -> int:
    """How much a client could send that reads nothing, before it was cut off."""
    sent = 0
    with socket.create_connection((console.host, console.port), timeout=60) as endless:
        try:
            endless.sendall(head)
            while sent < 1 << 30:
                sent += endless.send(again)
        except ConnectionError:
            pass
    return sent


def test_many_clients_at_once_do_not_turn_a_probe_red(shown: ConsoleClient) -> None:
    """A prober would restart a service that is well."""
    many = [socket.create_connection((shown.host, shown.port), timeout=20) for _ in range(400)]
    for each in many[::2]:
        each.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and stays
    assert [shown.get("/livez").status for _ in range(5)] == [200] * 5
    for each in many:
        each.close()


def test_requests_that_are_no_http_are_not_logged(service: Service, console: ConsoleClient) -> None:
    """Anybody who can connect could fill the log."""
    service.serve()
    console.comes("/livez")
    before = service.said().count("\n")
    for _ in range(20):
        odd = socket.create_connection((console.host, console.port), timeout=20)
        odd.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        _all(odd)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert console.get("/livez", **upgrade).status == 200
    assert service.said().count("\n") == before


def test_an_odd_accept_header_gets_the_plain_format(shown: ConsoleClient) -> None:
    assert "kworker_up 1.0" in shown.get("/metrics", Accept="text/plain;version=x").text


def _all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionError:
        pass
    connection.close()
    return received
