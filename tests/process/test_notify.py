"""What systemd hears, on a real datagram socket."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_service import Service
from tests.support.waiting import eventually


class Systemd:
    """The other end of `$NOTIFY_SOCKET`."""

    def __init__(self, address: str) -> None:
        self.environment = {"NOTIFY_SOCKET": address.replace("\0", "@")}
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self, start: str) -> list[str]:
        """The messages so far that start so."""
        try:
            while data := self._socket.recv(4096):
                self.messages.append(data.decode())
        except BlockingIOError:
            pass
        return [message for message in self.messages if message.startswith(start)]

    def hears(self, start: str, times: int = 1) -> None:
        eventually(lambda: len(self.heard(start)) >= times, what=start)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(str(tmp_path / "notify.sock"))
    yield made
    made.close()


def test_ready_comes_when_every_worker_has_joined_and_not_before(
    service: Service, systemd: Systemd
):
    """A unit that is ready too soon lets the next one start against nobody."""
    service.write(behaviour={"1": {"never_joins": True}}, limits={"status_every_s": 0.1})
    service.start(systemd.environment)
    eventually(lambda: len(service.running()) == 1)
    systemd.hears("STATUS=starting: 1 of 2 workers")
    assert systemd.heard("READY=1") == []
    service.write(behaviour={})
    os.kill(service.workers()[1]["pid"], signal.SIGKILL)
    systemd.hears("READY=1")
    systemd.hears("STATUS=running: 2 workers")
    assert len(systemd.heard("READY=1")) == 1


def test_a_waiting_start_reports_ready_to_systemd_after_a_time(service: Service, systemd: Systemd):
    """A broker that is down must not make systemd kill what only waits."""
    service.write(
        preflight={"unreachable": ["kafka: no broker answers"]},
        limits={"ready_s": 0.5, "status_every_s": 0.1},
    )
    service.start(systemd.environment)
    systemd.hears("READY=1")
    systemd.hears("STATUS=waiting: kafka: no broker answers")


def test_stopping_and_more_time_while_the_drain_goes_on(service: Service, systemd: Systemd):
    service.write(behaviour={"*": {"drain_steps": 16}}, limits={"status_every_s": 0.1})
    service.serve(environment=systemd.environment)
    service.send(signal.SIGTERM)
    systemd.hears("STOPPING=1")
    systemd.hears("EXTEND_TIMEOUT_USEC=15000000", times=4)
    systemd.hears("STATUS=draining: 2 workers left")
    assert service.exit_code() == 0


def test_each_reload_is_reported_to_systemd_even_if_refused(service: Service, systemd: Systemd):
    """`systemctl reload` waits for the READY after; without one it would hang."""
    service.serve(environment=systemd.environment)
    systemd.hears("READY=1")
    for settings in ({"mistake": ["name: missing"]}, {}):
        service.write(settings=settings)
        heard = len(systemd.heard("READY=1"))
        service.send(signal.SIGHUP)
        systemd.hears("RELOADING=1\nMONOTONIC_USEC=")
        systemd.hears("READY=1", times=heard + 1)


def test_the_watchdog_is_fed_only_while_the_workers_are_fresh(service: Service, systemd: Systemd):
    """A sign of life of the supervisor alone would hide a service that does nothing."""
    service.write(
        limits={"heartbeat_s": 1.2, "abort_s": 60},
        behaviour={"0": {"silent": True, "deaf": True, "ignore_term": True}},
    )
    service.start({**systemd.environment, "WATCHDOG_USEC": "200000"})
    systemd.hears("WATCHDOG=1", times=3)
    service.says("has not polled for")
    systemd.heard("")
    fed = len(systemd.heard("WATCHDOG=1"))
    eventually(lambda: service.workers()[0]["heartbeat_age_s"] > 2)
    assert len(systemd.heard("WATCHDOG=1")) <= fed + 1
    service.write(behaviour={})
    os.kill(service.workers()[0]["pid"], signal.SIGKILL)
    systemd.hears("WATCHDOG=1", times=fed + 4)


def test_a_watchdog_of_another_process_is_ignored(service: Service, systemd: Systemd):
    service.serve(
        environment={**systemd.environment, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    )
    systemd.hears("READY=1")
    eventually(lambda: service.status()["counters"]["done"] > 50)
    assert systemd.heard("WATCHDOG=1") == []


def test_children_do_not_inherit_the_notify_socket(service: Service, systemd: Systemd):
    """A worker's library that says READY would speak for the service."""
    service.write(behaviour={"*": {"tell_environment": True}})
    service.serve(environment={**systemd.environment, "WATCHDOG_USEC": "9000000"})
    names = (service.folder / "environment").read_text().split()
    assert "PATH" in names
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(names)


def test_an_abstract_socket_is_spoken_to(service: Service):
    systemd = Systemd(f"\0kworker-test-{os.getpid()}")
    service.serve(environment=systemd.environment)
    systemd.hears("READY=1")
    systemd.close()
