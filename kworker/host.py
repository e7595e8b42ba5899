"""The machine that this process runs on: its fingerprint, its memory, and files in memory."""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LENGTH = 8
_CGROUPS = Path("/sys/fs/cgroup")
_VMSTAT = "/proc/vmstat"
_HEAP_BYTES_MIN, _HEAP_BYTES_MAX = 1 << 30, 4 << 30


def fingerprint() -> str:
    """Returns eight hexadecimal digits for this boot, network namespace and host name.

    An address would not do: hosts behind a NAT share one, and a container's address changes.
    """
    network = os.stat("/proc/self/ns/net").st_ino
    words = f"{_BOOT.read_text().strip()}/{network}/{socket.gethostname()}"
    return hashlib.sha256(words.encode()).hexdigest()[:_LENGTH]


def memory_bytes() -> int:
    """Returns the memory that this process may use: the machine's, or a lower cgroup limit.

    Reads cgroups of version 2. They are nested, and the lowest limit counts.
    """
    limits = [psutil.virtual_memory().total]
    own = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    group = _CGROUPS / own
    for folder in [group, *group.parents]:
        try:
            text = (folder / "memory.max").read_text().strip()
        except OSError:
            continue
        if text != "max":
            limits.append(int(text))
    return min(limits)


@contextmanager
def memory_file(text: str) -> Iterator[int]:
    """Yields the file descriptor of a file with this text, which is in memory, not on a disk.

    A child process that inherits the descriptor opens the file at the path from
    `descriptor_path`. So settings with secrets are in no command line, and a kill leaves no file
    behind.
    """
    descriptor = os.memfd_create("kworker-settings", os.MFD_CLOEXEC)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield descriptor


def descriptor_path(descriptor: int) -> str:
    """Returns the path by which a process opens a file that it has inherited."""
    return f"/proc/self/fd/{descriptor}"


def spark_heap_bytes() -> int:
    """Returns the default heap of Spark's JVM: a quarter of the memory, from 1 to 4 GiB."""
    return max(_HEAP_BYTES_MIN, min(_HEAP_BYTES_MAX, memory_bytes() // 4))


def oom_kills() -> int:
    """Returns the number of processes that the OOM killer has killed since boot; 0 if unknown."""
    try:
        with open(_VMSTAT) as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill")), 0)
    except (OSError, ValueError):
        return 0
