"""Linux namespaces: a process and its children see another file system or host name."""

import ctypes
import os
import socket
from pathlib import Path

MOUNTS, HOST_NAME = 0x00020000, 0x04000000  # CLONE_NEWNS and CLONE_NEWUTS of <sched.h>
_USERS = 0x10000000  # CLONE_NEWUSER


def enter(kind: int) -> None:
    """Called in a process before its program begins. OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(kind | _USERS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    else:  # some machines have no user namespaces; root needs none
        check(libc.unshare(kind))


def rename_host(name: str) -> None:
    """Gives the host of this process, and of nobody else, a name. Called like `enter`."""
    enter(HOST_NAME)
    socket.sethostname(name)


def check(result: int) -> None:
    """Raises the OSError that a function of the C library tells of."""
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
