"""A real systemd, as process 1 of namespaces of its own: it runs a test's units, and nothing else.

What it must see of this machine is bound to folders in /srv. Its /run, /srv, /var/cache, /var/lib
and /var/log begin empty, and end with it.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.support.waiting import eventually

SYSTEMD = Path("/lib/systemd/systemd")
PROGRAM = Path("/srv/kworker")
USER = "daemon"  # a user of every Linux, with no rights
_UNITS, _LOGS = "/srv/units", "/srv/logs"
_GROUPS = Path("/sys/fs/cgroup")
_HIDDEN = ("/tmp", "/var/tmp", "/root", "/home")
_EMPTY_OF_VAR = ("lib", "cache", "log")
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
# Without the units of a real boot, and without a journal.
_EVERY_UNIT = "[Unit]\nDefaultDependencies=no\n"
_EVERY_SERVICE = (
    f"{_EVERY_UNIT}[Service]\nStandardOutput=append:{_LOGS}/%n\nStandardError=inherit\n"
)
_COMMAND_TIMEOUT_S = 150.0


def boots() -> bool:
    """Whether this machine lets a test have a systemd: only root may, where it may make cgroups.

    Nor if the interpreter is in a folder that the sandbox of the units hides, such as /tmp.
    """
    groups = _marked_hierarchies()
    writable = bool(groups) and all(os.access(group, os.W_OK) for group in groups)
    seen = not any(Path(sys.prefix).is_relative_to(folder) for folder in _HIDDEN)
    return os.geteuid() == 0 and SYSTEMD.exists() and writable and seen


class BootedSystemd:
    """One that has booted.

    `units` are its unit files by their names, `binds` folders of this machine by where it has them,
    and `program` is a shell script, at PROGRAM. The interpreter of the tests is where it always is.
    """

    def __init__(self, units: Mapping[str, str], program: str, binds: Mapping[str, Path]) -> None:
        self._group = f"kworker-test-{os.getpid()}"
        script = "\n".join(_boot(units, program, binds))
        self._process = subprocess.Popen(
            ["unshare", *_NAMESPACES, "bash", "-euc", script],
            preexec_fn=self._enter_group,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._first = eventually(self._booted, what="systemd has booted")
        except BaseException:
            self.close()
            raise

    def _enter_group(self) -> None:
        for hierarchy in _marked_hierarchies():
            group = hierarchy / self._group
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def _booted(self) -> psutil.Process | None:
        assert self._process.poll() is None, "systemd does not boot"
        for child in psutil.Process(self._process.pid).children():
            if self._run(child.pid, "is-active", "boot.target").stdout == "active\n":
                return child
        return None

    def see(self, path: str) -> Path:
        """Where this machine finds what systemd has at a path."""
        return Path(f"/proc/{self._first.pid}/root{path}")

    def systemctl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._run(self._first.pid, *arguments)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", unit, "--property", name, "--value").stdout.strip()

    def process(self, pid: int) -> psutil.Process:
        """The process that has this pid in there."""
        for each in self._first.children(recursive=True):
            lines = Path(f"/proc/{each.pid}/status").read_text().splitlines()
            if f"NSpid:\t{each.pid}\t{pid}" in lines:
                return each
        raise AssertionError(f"no process has pid {pid}")

    def said(self, unit: str) -> str:
        """All that a unit has written, and what systemd says of it."""
        log = self.see(f"{_LOGS}/{unit}")
        written = log.read_text() if log.exists() else ""
        return written + self.systemctl("status", "--no-pager", "--full", unit).stdout

    def close(self) -> None:
        """Ends it with every process in it."""
        self._process.kill()
        self._process.wait()
        eventually(self._remove_group, what="the last process has ended")

    def _run(self, pid: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["nsenter", f"--target={pid}", "--mount", "--pid", "systemctl", *arguments],
            env={"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": _UNITS},
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def _remove_group(self) -> bool:
        for hierarchy in _hierarchies():
            for folder, _, _ in os.walk(hierarchy / self._group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:  # busy: a process is ending
                    return False
        return True


def _hierarchies() -> list[Path]:
    """The trees of cgroups: one of version 2, or several of version 1."""
    if (_GROUPS / "cgroup.procs").exists():
        return [_GROUPS]
    return [folder for folder in _GROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]


def _marked_hierarchies() -> list[Path]:
    """Those in which a process has its place under systemd; the others follow."""
    names = ("systemd", "unified")
    return [each for each in _hierarchies() if each == _GROUPS or each.name in names]


def _boot(units: Mapping[str, str], program: str, binds: Mapping[str, Path]) -> Iterator[str]:
    """The lines of a shell that becomes systemd."""
    # First, for mount itself leaves a file in it.
    yield from (f"mount -n -t tmpfs -o mode=755 tmpfs {folder}" for folder in ("/run", "/srv"))
    # Its mounts reach its services, whose namespaces are made of this one.
    yield "mount --make-rshared /"
    for place, folder in binds.items():
        yield from _bound(folder, place)
    yield from _reachable(Path(sys.base_prefix))
    yield from (f"mount -t tmpfs -o mode=755 tmpfs /var/{folder}" for folder in _EMPTY_OF_VAR)
    yield from _shielded()
    texts = {"boot.target": _EVERY_UNIT, "service.d/test.conf": _EVERY_SERVICE, **units}
    files = {f"{_UNITS}/{name}": text for name, text in texts.items()}
    for file, text in {**files, str(PROGRAM): program}.items():
        yield f"mkdir -p {os.path.dirname(file)} && printf %s {shlex.quote(text)} > {file}"
    yield f"mkdir {_LOGS} && chmod 755 {PROGRAM}"
    yield (
        f"exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH={_UNITS}"
        f" {SYSTEMD} --system --unit=boot.target --log-target=console --show-status=no"
    )


def _bound(folder: Path, place: str) -> Iterator[str]:
    yield f"mkdir -p {shlex.quote(place)} && mount --bind {shlex.quote(str(folder))} {place}"


def _shielded() -> Iterator[str]:
    """Keeps this machine's kernel as it is: systemd, as it boots, sets what it holds for good."""
    yield f"mkdir /srv/groups && mount --rbind {_GROUPS} /srv/groups"
    for folder in ("/proc/sys", "/sys"):
        yield f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    if _hierarchies() == [_GROUPS]:
        yield f"mount --rbind /srv/groups {_GROUPS}"
        return
    yield f"mount -t tmpfs -o mode=755 tmpfs {_GROUPS}"
    for hierarchy in _hierarchies():
        yield from _bound(Path("/srv/groups", hierarchy.name), str(hierarchy))


def _reachable(folder: Path) -> Iterator[str]:
    """Opens the way to a folder that only its owner can reach, as an interpreter's in /root."""
    closed = [each for each in folder.parents if not each.stat().st_mode & 0o001]
    if closed:
        yield from _bound(folder, "/srv/kept")
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(closed[-1]))}"
        yield from _bound(Path("/srv/kept"), str(folder))
