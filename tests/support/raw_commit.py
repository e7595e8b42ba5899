"""A commit in the name of any member and generation, as no client would send it."""

import socket
import struct

_OFFSET_COMMIT, _VERSION = 8, 2
_TIMEOUT_S = 10.0


def commit(
    bootstrap: str, group: str, generation: int, member: str, topic: str, metadata: str
) -> int:
    """Offset 0 of partition 0; returns Kafka's error code, 0 when it was accepted.

    The one broker there is coordinates every group.
    """
    partition = struct.pack(">iq", 0, 0) + _text(metadata)
    body = b"".join(
        [
            _text(group),
            struct.pack(">i", generation),
            _text(member),
            struct.pack(">qi", -1, 1),  # kept for as long as usual; one topic
            _text(topic),
            struct.pack(">i", 1),
            partition,
        ]
    )
    request = struct.pack(">hhi", _OFFSET_COMMIT, _VERSION, 1) + _text("raw") + body
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as link:
        link.sendall(struct.pack(">i", len(request)) + request)
        with link.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            (error,) = struct.unpack(">h", answers.read(size)[-2:])
    return int(error)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
