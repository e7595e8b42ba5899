"""The machine that this process runs on: how others tell it from theirs, and its memory."""

import hashlib
import os
import socket
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LENGTH = 8
_CGROUPS = Path("/sys/fs/cgroup")
_VMSTAT = "/proc/vmstat"
_HEAP_LEAST, _HEAP_MOST = 1 << 30, 4 << 30


def fingerprint() -> str:
    """Eight hexadecimal digits, the same for every process of one boot, network and host name.

    Addresses would not do: behind NAT many hosts have one, and a container's changes.
    """
    network = os.stat("/proc/self/ns/net").st_ino
    words = f"{_BOOT.read_text().strip()}/{network}/{socket.gethostname()}"
    return hashlib.sha256(words.encode()).hexdigest()[:_LENGTH]


def memory_bytes() -> int:
    """What this process may use at most: the machine's, or less where a container or a unit ends.

    Of control groups of version 2, which limit what is in them, one in the other.
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


def spark_heap_bytes() -> int:
    """What Spark's JVM may fill where `[spark.conf]` does not say: a quarter of the memory."""
    return max(_HEAP_LEAST, min(_HEAP_MOST, memory_bytes() // 4))


def oom_kills() -> int:
    """How many processes the system has killed for want of memory, in any cgroup; 0 if unknown."""
    try:
        with open(_VMSTAT) as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill")), 0)
    except (OSError, ValueError):
        return 0
