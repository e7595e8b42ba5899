"""A transaction that hangs: a group's position in it, and no coordinator that knows of it."""

import socket
import struct

from tests.support.waiting import eventually

_FIND_COORDINATOR, _INIT_PRODUCER, _TXN_OFFSET_COMMIT = 10, 22, 28
_GROUP, _TRANSACTION = 0, 1  # a coordinator's kind
_TIMEOUT_MS = 60_000
_NO_ERROR = struct.pack(">h", 0)


def hang(bootstrap: str, group: str, topic: str, partition: int) -> None:
    """Hides the group's position of one partition, until somebody writes the missing marker.

    The one request that a client sends to the transaction's coordinator is left out. The
    broker must not ask that coordinator.
    """
    host, port = bootstrap.split(",")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        name = _text(f"hangs-{group}")
        for kind, key in ((_TRANSACTION, name), (_GROUP, _text(group))):
            _ask(link, _FIND_COORDINATOR, 1, key + struct.pack(">b", kind))

        def producer() -> tuple[int, int] | None:
            answer = _ask(link, _INIT_PRODUCER, 1, name + struct.pack(">i", _TIMEOUT_MS))
            _, error, number, epoch = struct.unpack(">ihqh", answer)
            return None if error else (number, epoch)

        # Its coordinator may not be there yet.
        found = eventually(producer, every_s=0.2, what="a producer's id")
        assert found
        position = struct.pack(">iiqh", 1, partition, 0, -1)  # one partition, without metadata
        places = struct.pack(">i", 1) + _text(topic) + position
        body = name + _text(group) + struct.pack(">qh", *found) + places

        def taken() -> bool:
            answer = _ask(link, _TXN_OFFSET_COMMIT, 0, body)
            return answer.endswith(_NO_ERROR)

        eventually(taken, every_s=0.2, what="the group's coordinator takes it")


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _ask(link: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """The answer behind its header."""
    request = struct.pack(">hhi", api, version, 1) + _text("hanging") + body
    link.sendall(struct.pack(">i", len(request)) + request)
    with link.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)[4:]
