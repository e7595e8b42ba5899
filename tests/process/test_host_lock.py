"""One supervisor of an instance runs on a host, whatever its folder."""

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kworker.instance.host_lock import LockHolder, address, holder
from tests.support.bare_service import Service
from tests.support.supervisor_driver import read_config
from tests.support.waiting import eventually

ELSEWHERE = "instance: test is in use: orders-test-0 is a member from the host 10.0.0.7; stop it"


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes a copy of the service, in a folder of its own."""
    made: list[Service] = []

    def one(**settings: Any) -> Service:
        folder = tmp_path / f"copy-{len(made)}"
        folder.mkdir()
        made.append(Service(folder))
        made[-1].write(preflight={"cluster": str(tmp_path)}, settings=settings)
        return made[-1]

    yield one
    for each in made:
        each.end()


Copy = Callable[..., Service]


def holder_of(service: Service) -> LockHolder | None:
    """The one that has the lock that the service would take."""
    return holder(str(service.folder.parent), read_config(service.folder))


def test_a_second_copy_is_refused_before_it_starts_anything(copy: Copy):
    """Its workers would bear the names of the first one's, and fence them."""
    first, second = copy(), copy()
    first.serve()
    before = first.running()
    second.start()
    assert second.exit_code() == 73
    assert (
        "kworker: instance: orders runs on this host already as instance test,"
        f" as pid {first.pid}, with {first.folder / 'kworker.toml'};"
        " stop that copy, or give this one another name as its `instance`"
    ) in second.said()
    assert second.births() == second.births(of="delay-births") == []
    assert first.running() == before
    first.send(signal.SIGTERM)
    assert first.exit_code() == 0
    second.serve()


def test_one_of_two_simultaneous_starts_is_refused(copy: Copy):
    pair = [copy(), copy()]
    for each in pair:
        each.start()

    def refused() -> list[Service]:
        return [each for each in pair if each.process and each.process.poll() is not None]

    [loser] = eventually(refused, what="one is refused")
    [winner] = [each for each in pair if each is not loser]
    assert loser.exit_code() == 73
    assert f"as pid {winner.pid}" in loser.said()
    eventually(lambda: len(winner.running()) == 2)
    assert loser.births() == []


def test_copies_with_instances_of_their_own_run_side_by_side(copy: Copy):
    first, second = copy(), copy(instance="another")
    first.serve()
    second.serve()
    assert len(first.running()) == len(second.running()) == 2


def test_a_stopped_copy_still_refuses_another(copy: Copy):
    """It will go on, with what it had in hand."""
    first, second = copy(), copy()
    first.serve()
    before = first.running()
    first.send(signal.SIGSTOP)
    second.start()
    assert second.exit_code() == 73
    assert f"as pid {first.pid}, which does not answer" in second.said()
    first.send(signal.SIGCONT)
    assert eventually(first.running) == before


def test_a_copy_waits_for_the_workers_of_one_that_was_killed(copy: Copy):
    first, second = copy(), copy()
    held = first.folder / "held"
    held.touch()
    first.write(behaviour={"*": {"drain_while": str(held)}})
    first.serve()
    first.send(signal.SIGKILL)
    first.exit_code()
    second.start()
    second.says(f"the workers of a supervisor that was killed (pid {first.pid}) are still draining")
    assert eventually(second.status)["state"] == "waiting"
    held.unlink()
    eventually(lambda: len(second.running()) == 2)
    assert second.status()["reasons"] == []


def test_a_handlers_leftover_child_does_not_hold_the_lock(copy: Copy):
    """It may live for ever, and nobody would know why no copy starts."""
    first = copy()
    first.write(behaviour={"0": {"leaves_a_child": True}})
    first.serve()
    worker = psutil.Process(first.running()[0])
    [left] = eventually(worker.children, what="its child")
    for process in (psutil.Process(first.pid), *psutil.Process(first.pid).children()):
        process.kill()
    try:
        eventually(lambda: holder_of(first) is None, what="nobody has the lock")
        assert left.is_running()
    finally:
        left.kill()


def test_a_restart_in_the_same_folder_takes_the_lock_again(copy: Copy):
    first = copy()
    first.serve()
    first.send(signal.SIGKILL)
    first.exit_code()
    first.serve()
    assert holder_of(first) == LockHolder(first.pid, str(first.folder / "kworker.toml"), alive=True)


def test_the_services_own_lock_does_not_refuse_a_reload(copy: Copy):
    first = copy()
    first.serve()
    before = first.running()
    first.send(signal.SIGHUP)
    eventually(lambda: not set(before.values()) & set(first.running().values()), what="replaced")
    assert len(eventually(lambda: len(first.running()) == 2 and first.running())) == 2


def test_peers_that_only_connect_cost_the_holder_nothing(copy: Copy):
    """Any user of the host may."""
    first = copy()
    first.serve()
    supervisor, before = psutil.Process(first.pid), first.running()
    fds = supervisor.num_fds()
    name = address(str(first.folder.parent), read_config(first.folder))
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(name)
    assert holder_of(first) == LockHolder(first.pid, str(first.folder / "kworker.toml"), alive=True)
    eventually(lambda: supervisor.num_fds() <= fds, what="it has closed them")
    assert eventually(first.running) == before


# Copies on other hosts, of which only the group's members tell.


def test_a_start_waits_for_a_remote_members_session_to_end(copy: Copy):
    """It may be dead, and then its place is ours."""
    second = copy()
    second.write(preflight={"elsewhere": [ELSEWHERE], "session_s": 600.0})
    second.start()
    second.says(f"waiting: {ELSEWHERE}; if that host is dead, its session ends within 600 s")
    assert eventually(second.status)["state"] == "waiting"
    assert second.births() == []
    second.write(preflight={})
    eventually(lambda: len(second.running()) == 2)


def test_a_start_is_refused_when_a_remote_member_stays_alive(copy: Copy):
    second = copy()
    second.write(
        preflight={"elsewhere": [ELSEWHERE], "session_s": 0.5}, limits={"session_margin_s": 0.1}
    )
    second.start()
    assert second.exit_code() == 73
    assert f"kworker: {ELSEWHERE}" in second.said()
    assert second.births() == []
