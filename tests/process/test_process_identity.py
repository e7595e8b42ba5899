"""Whether a process still lives that has given its name: wrong once, and an effect is repeated."""

import os
import subprocess
import sys

from kworker.instance.process_identity import LocalProcesses, own_identity
from tests.support.waiting import eventually


def life_of_a_child() -> tuple["subprocess.Popen[str]", str]:
    """A process, and the name that it gives itself."""
    imports = "from kworker.instance.process_identity import own_identity"
    code = f"{imports}; print(own_identity('host'), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    return child, child.stdout.readline().strip()


def test_a_process_is_gone_when_it_has_ended_and_not_before() -> None:
    """Killed, it is gone at once, though nobody has waited for it yet."""
    child, life = life_of_a_child()
    assert not LocalProcesses("host").has_ended(life)
    child.kill()
    eventually(
        lambda: LocalProcesses("host").has_ended(life), what="the zombie is known to be gone"
    )
    child.communicate()
    assert LocalProcesses("host").has_ended(life)


def test_a_reused_pid_is_another_process() -> None:
    """Numbers come again."""
    life = own_identity("host")
    assert not LocalProcesses("host").has_ended(life)
    place, _, started = life.rpartition("/")
    assert LocalProcesses("host").has_ended(f"{place}/{int(started) - 1}")


def test_a_process_of_another_machine_is_never_known_gone() -> None:
    """Its numbers mean nothing here: another host, another container, before a boot."""
    instance, machine, pid, started = own_identity("host").split("/")
    for stranger in (
        f"other/{machine}/{pid}/1",
        f"{instance}/another.1/{pid}/1",
        f"{instance}/{machine}/x/{started}",
        "odd",
    ):
        assert not LocalProcesses("host").has_ended(stranger)


def test_a_process_identity_has_no_blanks() -> None:
    """It is written beside a source position, with a blank between."""
    assert " " not in own_identity("host")
    assert own_identity("host").split("/")[2] == str(os.getpid())
