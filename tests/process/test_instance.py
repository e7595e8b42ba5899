"""One supervisor runs an instance; a killed one leaves workers that the next waits for."""

import os
import signal
import subprocess
from pathlib import Path

import psutil

from tests.support.bare_service import Service, python
from tests.support.waiting import eventually


def second(service: Service) -> subprocess.CompletedProcess[str]:
    return python("-m", "tests.support.supervisor_driver", service.folder, timeout_s=20)


def test_a_second_start_exits_73_and_names_the_first(service: Service):
    """Two supervisors of one identity would fence each other's workers for ever."""
    service.serve()
    refused = second(service)
    assert refused.returncode == 73
    assert f"already running as pid {service.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert len(service.running()) == 2


def test_workers_of_a_killed_supervisor_drain_and_exit(service: Service):
    """Orphans would keep partitions that nobody watches over."""
    service.write(behaviour={"*": {"drain_steps": 3}})
    service.serve()
    orphans = list(service.running().values())
    service.send(signal.SIGKILL)
    service.exit_code()
    eventually(lambda: not set(service.alive()) & set(orphans), timeout_s=5)
    service.serve()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0


def test_a_new_start_waits_for_a_killed_supervisors_workers(service: Service):
    """With the same static identities, old and new would fence each other."""
    held = service.folder / "held"
    held.touch()
    service.write(behaviour={"*": {"drain_while": str(held)}})
    service.serve()
    before = list(service.running().values())
    service.send(signal.SIGKILL)
    service.exit_code()
    service.start()
    service.says("workers of an earlier supervisor are still draining")
    assert eventually(service.status)["state"] == "waiting"
    assert set(service.alive()) == set(before)
    held.unlink()
    eventually(lambda: len(service.running()) == 2)
    assert not set(service.alive()) & set(before)
    assert service.status()["reasons"] == []


def test_leftovers_that_do_not_drain_are_killed_after_their_time(service: Service):
    service.write(
        behaviour={"*": {"drain_steps": 1000}},
        settings={"drain_timeout": "300ms"},
        limits={"drain_margin_s": 0.3},
    )
    service.serve()
    before = list(service.running().values())
    service.send(signal.SIGKILL)
    service.exit_code()
    service.write(behaviour={})
    service.serve()
    assert "a worker of an earlier supervisor did not end in time: killed" in service.said()
    assert not set(service.alive()) & set(before)


def test_the_state_folder_is_private_and_titles_name_processes(service: Service):
    service.folder.chmod(0o755)
    service.serve()
    assert service.folder.stat().st_mode & 0o777 == 0o700
    assert (service.folder / "control.sock").stat().st_mode & 0o777 == 0o600
    supervisor = psutil.Process(service.pid)
    assert supervisor.cmdline()[0] == "kworker: supervisor [orders]"
    workers = {f"kworker: worker {n} [orders] starting" for n in (0, 1)}
    expected = {"kworker: delay [orders] starting", *workers}
    eventually(lambda: {child.cmdline()[0] for child in supervisor.children()} == expected)


def test_the_supervisor_has_one_thread_and_no_client(service: Service):
    """Forking goes on for life, which only one thread makes safe; a client would bring more."""
    service.serve()
    assert psutil.Process(service.pid).num_threads() == 1
    libraries = Path(f"/proc/{service.pid}/maps").read_text()
    assert "rdkafka" not in libraries
    assert "cimpl" not in libraries


def test_a_state_folder_too_deep_for_a_socket_address_works(tmp_path: Path):
    """Addresses of Unix sockets end at 108 bytes; folders do not."""
    folder = tmp_path.joinpath(*["deeper-than-it-needs-to-be"] * 6)
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder / "control.sock")) > 108
    service = Service(folder)
    try:
        service.serve()
        assert service.status()["state"] == "running"
        service.send(signal.SIGTERM)
        assert service.exit_code() == 0
    finally:
        service.end()


def test_a_stale_socket_and_pid_do_not_stop_a_start(service: Service):
    (service.folder / "control.sock").write_text("")
    (service.folder / "lock").write_text(f"{os.getpid()}\n")
    service.serve()
    assert service.status()["pid"] == service.pid
