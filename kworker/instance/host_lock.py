"""The lock of an instance on this host: a name at which its supervisor listens until it ends.

An abstract Unix socket: one for each network namespace, whatever the folder or the user, with
nothing on disk that could be left behind.
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

_ANSWER_S = 3.0  # the other may have much to do
_ANSWER_BYTES_MAX = 4096
_WAITING_MOST = 128  # that nobody answers while the supervisor is stopped
_ANSWERS_A_TURN = 32
_TITLE = b"kworker: supervisor"


def address(cluster: str, config: Config) -> bytes:
    """The same for every copy of one instance of a service; there are 107 bytes for it."""
    words = json.dumps([cluster, config.name, config.instance])
    return b"\0kworker/" + hashlib.sha256(words.encode()).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The supervisor that has the lock, as the kernel tells, and its file, as it tells itself."""

    pid: int  # 0: of a container, say, whose processes cannot be seen from here
    file: str  # "" when it does not answer
    alive: bool  # else its workers have the lock, until they have drained


class HostLock:
    """One socket for each cluster that the service was on. Owned by the supervisor.

    Its selector answers those that ask. The workers share the lock, so that it outlives a
    supervisor that is killed for as long as they drain; what a handler forks does not.
    """

    def __init__(self, config: Config, selector: selectors.BaseSelector) -> None:
        self._config = config
        self._selector = selector
        self._listeners: dict[str, socket.socket] = {}

    @property
    def fds(self) -> Sequence[int]:
        """What a worker has to keep at its fork."""
        return [listener.fileno() for listener in self._listeners.values()]

    def take(self, cluster: str) -> bool:
        """Until this process and its workers end; False when another has it."""
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
        listener.listen(_WAITING_MOST)
        listener.setblocking(False)
        self._listeners[cluster] = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._answer(listener))
        return True

    def share(self) -> None:
        """Called in each worker right after the fork."""
        for listener in self._listeners.values():
            os.register_at_fork(after_in_child=listener.close)

    def _answer(self, listener: socket.socket) -> None:
        told = json.dumps({"file": str(self._config.file)}).encode()
        for _ in range(_ANSWERS_A_TURN):
            try:
                peer, _ = listener.accept()
            except OSError:  # nobody more, or no descriptor for one
                return
            with peer:
                peer.setblocking(False)
                try:
                    peer.send(told[:_ANSWER_BYTES_MAX])
                except OSError:  # gone already
                    continue


def holder(cluster: str, config: Config) -> LockHolder | None:
    """The one that has the lock. Takes four seconds at most, whatever the other does."""
    with socket.socket(socket.AF_UNIX) as peer:
        # Not `settimeout`, with which a full queue is an error at once instead of a wait.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 1, 0))
        try:
            peer.connect(address(cluster, config))
        except ConnectionRefusedError:
            return None
        except OSError:  # more have asked in vain than may wait
            return LockHolder(0, "", alive=True)
        # Of the process that began to listen, even if it is stopped.
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = int(struct.unpack("3i", credentials)[0])
        file = _file(peer)
        return LockHolder(pid, file, alive=bool(file) or pid == 0 or _supervises(pid))


def _file(peer: socket.socket) -> str:
    """What the other tells within its time, if it does."""
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
    """Whether it does; False for one that is gone or a zombie, or a number that has been reused."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_TITLE)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # not ours to see
        return True
