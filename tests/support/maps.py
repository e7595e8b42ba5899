"""What a commit's metadata names as done, read by other code than the service's own."""

import base64
import zlib
from collections.abc import Iterator

PREFIX = "kworker1:"
HEAD_BYTES, CHECK_BYTES = 25, 4  # of the body: origin, base, form; and the sum at its end
RUN_LENGTHS, BITS = 0, 1


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
    return list(_bits(position, told) if head[24] == BITS else _lengths(position, told))


def _bits(position: int, told: bytes) -> Iterator[range]:
    for at in range(8 * len(told)):
        if told[at // 8] >> at % 8 & 1:
            yield range(position + 1 + at, position + 2 + at)


def _lengths(position: int, told: bytes) -> Iterator[range]:
    numbers = _numbers(told)
    end = position
    for number in numbers:
        begin = end + (next(numbers) + 2 if number % 2 else 1)
        end = begin + number // 2 + 1
        yield range(begin, end)


def _numbers(told: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in told:
        number += (byte % 128) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
