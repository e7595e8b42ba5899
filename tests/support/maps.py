"""What a commit's metadata names as done, read by other code than the service's own."""

import base64
import zlib
from collections.abc import Iterator

PREFIX = "kworker2:"
HEAD_BYTES, CHECK_BYTES = 25, 4  # of the body: origin, base, parameter; and the sum at its end


def named_beyond(position: int, metadata: str) -> list[range]:
    """Offsets beyond the position that the metadata says are done, ascending."""
    metadata = metadata.rstrip("\0")  # which the client adds
    if not metadata:
        return []
    assert metadata.startswith(PREFIX), metadata[:20]
    body = base64.b64decode(metadata.removeprefix(PREFIX))
    head, told = body[:HEAD_BYTES], body[HEAD_BYTES:-CHECK_BYTES]
    assert zlib.crc32(head + told) == int.from_bytes(body[-CHECK_BYTES:], "big")
    assert int.from_bytes(head[16:24], "big") == position, "of another position"
    return list(_ranges(position, head[24], _bits(told)))


def _ranges(position: int, parameter: int, bits: Iterator[int]) -> Iterator[range]:
    """What is done between one offset that is not and the next, as a Golomb-Rice code says it."""
    begin, done = position + 1, 0
    for bit in bits:
        if not bit:
            done += 2**parameter
            continue
        for place in reversed(range(parameter)):
            done += next(bits) * 2**place
        if done:
            yield range(begin, begin + done)
        begin, done = begin + done + 1, 0


def _bits(told: bytes) -> Iterator[int]:
    for byte in told:
        for place in reversed(range(8)):
            yield byte >> place & 1
