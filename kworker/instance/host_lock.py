"""The lock of an instance on this host: an abstract Unix socket at which its supervisor listens.

Only one process in a network namespace can bind the socket's name, whatever its `state_dir` and
user. The socket leaves nothing behind on the disk.
"""

import errno
import hashlib
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kworker.config.model import Config

_ANSWER_S = 3.0  # the other supervisor may be busy
_ANSWER_BYTES_MAX = 4096
_BACKLOG_MAX = 128  # of connections that wait while the supervisor is stopped
_ANSWERS_A_TURN = 32
_TITLE = b"kworker: supervisor"


def address(cluster: str, config: Config) -> bytes:
    """Returns the address of the lock's socket, which has at most 107 bytes.

    All copies of an instance have the same address.
    """
    words = json.dumps([cluster, config.name, config.instance])
    return b"\0kworker/" + hashlib.sha256(words.encode()).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The supervisor that has the lock: its pid, and the configuration file that it reports.

    If not `alive`, the supervisor has ended; its workers have the lock until they have drained.
    """

    pid: int  # 0 if the process cannot be seen from here, as in a container
    file: str  # "" when it does not answer
    alive: bool  # if not, its workers have the lock until they have drained


class HostLock:
    """The lock of an instance: a listening socket for each cluster that the service has used.

    Owned by the supervisor, whose selector answers connections. Workers inherit the sockets. So if
    the supervisor is killed, the lock lasts until the workers have drained. A process that a
    handler forks closes its copies of the sockets.
    """

    def __init__(self, config: Config, selector: selectors.BaseSelector) -> None:
        self._config = config
        self._selector = selector
        self._listeners: dict[str, socket.socket] = {}

    @property
    def fds(self) -> Sequence[int]:
        """The lock's file descriptors, which a worker must not close when it is forked."""
        return [listener.fileno() for listener in self._listeners.values()]

    def take(self, cluster: str) -> bool:
        """Takes the lock, which lasts until this process and its workers end.

        Returns False if another process has the lock.
        """
        if cluster in self._listeners:
            return True
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(address(cluster, self._config))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        listener.listen(_BACKLOG_MAX)
        listener.setblocking(False)
        self._listeners[cluster] = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._answer(listener))
        return True

    def share(self) -> None:
        """Makes every process that this process forks close its copy of the lock at once.

        Called in a new child of the supervisor; the child itself keeps the lock.
        """
        for listener in self._listeners.values():
            os.register_at_fork(after_in_child=listener.close)

    def _answer(self, listener: socket.socket) -> None:
        answer = json.dumps({"file": str(self._config.file)}).encode()
        for _ in range(_ANSWERS_A_TURN):
            try:
                peer, _ = listener.accept()
            except OSError:  # no more connections, or no descriptor for one
                return
            with peer:
                peer.setblocking(False)
                try:
                    peer.send(answer[:_ANSWER_BYTES_MAX])
                except OSError:  # the peer has gone
                    continue


def holder(cluster: str, config: Config) -> LockHolder | None:
    """Returns the holder of the lock, or None. Blocks for four seconds at most."""
    with socket.socket(socket.AF_UNIX) as peer:
        # Not `settimeout`, with which a full queue is an error at once instead of a wait.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 1, 0))
        try:
            peer.connect(address(cluster, config))
        except ConnectionRefusedError:
            return None
        except OSError:  # the queue of waiting connections is full
            return LockHolder(0, "", alive=True)
        # The credentials are those of the process that called listen, even if it is stopped.
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = int(struct.unpack("3i", credentials)[0])
        file = _file(peer)
        return LockHolder(pid, file, alive=bool(file) or pid == 0 or _supervises(pid))


def _file(peer: socket.socket) -> str:
    """Returns the configuration file that the other supervisor reports, or "" without an answer."""
    received, deadline = bytearray(), time.monotonic() + _ANSWER_S
    try:
        while len(received) < _ANSWER_BYTES_MAX and (left_s := deadline - time.monotonic()) > 0:
            peer.settimeout(left_s)
            if not (data := peer.recv(_ANSWER_BYTES_MAX)):
                break
            received += data
        return str(json.loads(received)["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _supervises(pid: int) -> bool:
    """Returns True if the process with this pid is a supervisor.

    Returns False if it has ended, or if its pid now belongs to another program. A process that this
    user has no right to inspect counts as a supervisor.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_TITLE)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # another user's process
        return True
