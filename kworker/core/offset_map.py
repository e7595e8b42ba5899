"""The text in a commit's metadata: the partition's origin, the offsets done beyond the position."""

import re
from base64 import b64encode
from binascii import Error, a2b_base64
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Literal, NamedTuple
from zlib import crc32

METADATA_MAX = 4_095
"""Characters of ASCII that a broker takes as it comes, with the NUL that the client adds."""

OffsetRange = tuple[int, int]
"""Offsets from the first up to the second, without it. Several ascend and do not touch."""

_NAME = "kworker"
_PREFIX = f"{_NAME}2:"
_DIGEST_BYTES = 8
_HEAD = Struct(f">{2 * _DIGEST_BYTES}sQB")  # origin, base, Rice parameter
_CHECK_BYTES = 4
_BODY_MAX = (METADATA_MAX - len(_PREFIX)) // 4 * 3
MAP_BITS_MAX = 8 * (_BODY_MAX - _HEAD.size - _CHECK_BYTES)
"""The size of the largest offset map; of this many offsets, any can be unsettled."""

_END = 1 << 63


class Committed(NamedTuple):
    """A group's committed position of a partition, with the metadata of the commit."""

    position: int
    metadata: str = ""


class TopicIdentity(NamedTuple):
    """The identity of a topic; a recreated topic, or one in another cluster, does not share it."""

    cluster_id: str
    topic_id: str


class Ignored(NamedTuple):
    """The reason to ignore a commit's metadata: it is of another partition, or damaged."""

    kind: Literal["foreign", "damaged"]
    why: str


def ids_untold(topics: Iterable[str]) -> str:
    """Returns the error text for topics whose ids the brokers do not report."""
    return (
        f"the brokers do not tell the ids of {', '.join(topics)}: DESCRIBE must be allowed on"
        " them, and brokers be 2.8 or newer"
    )


def origin_of(identity: TopicIdentity, at: tuple[str, int]) -> bytes:
    """Returns the origin of a partition: digests of its place (cluster, name, number) and topic id.

    Commit metadata with another origin is not this partition's. It may be from a deleted topic of
    the same name (another topic id), or was copied here by a mirroring tool (another place).
    """
    topic, partition = at
    return _digest(f"{identity.cluster_id} {topic} {partition}") + _digest(identity.topic_id)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def encode(origin: bytes, base: int, runs: Sequence[OffsetRange]) -> str:
    """Returns a commit's metadata: `origin`, the position `base`, and `runs` as its offset map.

    The offset `base` is not done: the first run begins above it. Raises ValueError for a map that
    is too large for a commit; a check with `fits` prevents such maps.
    """
    parameter, data = _golomb_rice(base, runs) if runs else (0, b"")
    if 8 * len(data) > MAP_BITS_MAX:
        raise ValueError(f"an offset map of {len(runs)} ranges is too large for a commit")
    body = _HEAD.pack(origin, base, parameter) + data
    return _PREFIX + b64encode(body + crc32(body).to_bytes(_CHECK_BYTES)).decode()


def decode(text: str, origin: bytes, position: int) -> list[OffsetRange] | Ignored:
    """Returns the offset ranges done beyond `position`, as read from the metadata of its commit.

    Intact metadata without an offset map yields [], even if it is of another partition.
    """
    if not text:
        return []
    if not text.startswith(_PREFIX):
        ours = text.startswith(_NAME)
        return Ignored("foreign", "of another version" if ours else "not written by kworker")
    if (body := _body(text)) is None:
        return Ignored("damaged", "its check sum does not match")
    found_origin, base, parameter = _HEAD.unpack_from(body)
    data = body[_HEAD.size :]
    if not data:
        return []
    if found_origin != origin:
        return Ignored("foreign", "of another cluster, topic or partition")
    if base != position:
        return Ignored("foreign", f"of position {base}, not {position}")
    runs = _from_golomb_rice(base, parameter, data)
    return Ignored("damaged", "its runs make no sense") if runs is None else runs


def same_topic(held: Committed, origin: bytes) -> bool | None:
    """Returns True if a commit's metadata shows that the commit was made for this very topic.

    Returns False if the commit was made for an earlier topic of the same name. Returns None if the
    metadata is damaged or not kworker's, or if it is of another cluster, partition or position.
    """
    text = held.metadata
    if not text.startswith(_PREFIX) or (body := _body(text)) is None:
        return None
    data, base, _ = _HEAD.unpack_from(body)
    if data[:_DIGEST_BYTES] != origin[:_DIGEST_BYTES] or base != held.position:
        return None
    return bool(data == origin)


class Settled(NamedTuple):
    """The offsets that a commit settles: all below `position`, and the ranges in `beyond`."""

    position: int
    beyond: Sequence[OffsetRange] = ()

    @classmethod
    def of(cls, held: Committed, identity: TopicIdentity | None, at: tuple[str, int]) -> "Settled":
        """Reads the settled offsets from a commit of a topic whose identity may be unknown.

        If `identity` is None, only the offsets below the position count as settled.
        """
        return cls(held.position) if identity is None else cls.of_log(held, origin_of(identity, at))

    @classmethod
    def of_log(cls, held: Committed, origin: bytes) -> "Settled":
        """Reads the settled offsets from a commit; an unreadable offset map counts as empty.

        A position of an earlier topic of the same name settles nothing.
        """
        if same_topic(held, origin) is False:
            return cls(0)
        runs = decode(held.metadata, origin, held.position)
        return cls(held.position) if isinstance(runs, Ignored) else cls(held.position, runs)

    @property
    def end(self) -> int:
        """The offset after the last settled one."""
        return self.beyond[-1][1] if self.beyond else self.position

    def count_beyond(self, span: range) -> int:
        """Returns how many offsets in `span` are settled beyond the position."""
        ranges = ((max(begin, span.start), min(end, span.stop)) for begin, end in self.beyond)
        return sum(max(0, end - begin) for begin, end in ranges)

    def has(self, offset: int) -> bool:
        if offset < self.position:
            return True
        at = bisect_right(self.beyond, offset, key=lambda run: run[0])
        return at > 0 and offset < self.beyond[at - 1][1]


def _body(text: str) -> bytes | None:
    try:
        whole = a2b_base64(text[len(_PREFIX) :], strict_mode=True)
    except (Error, ValueError):
        return None
    body, check = whole[:-_CHECK_BYTES], whole[-_CHECK_BYTES:]
    if len(body) < _HEAD.size or crc32(body).to_bytes(_CHECK_BYTES) != check:
        return None
    return body


# -- size of a map --------------------------------------------------------------------


def fits(unsettled: int, span: int) -> bool:
    """Returns True if the offset map surely fits into a commit, in whatever order records end.

    The map covers `span` offsets, the first at the position, of which `unsettled` are not done.
    """
    return span <= MAP_BITS_MAX or _bits_max(unsettled, span) <= MAP_BITS_MAX


def unsettled_max(span: int) -> int:
    """Returns how many of `span` offsets may be unsettled so that `fits` still returns True."""
    return bisect_left(range(span), True, key=lambda n: not fits(n + 1, span))


def _bits_max(unsettled: int, span: int) -> int:
    """Returns the largest size, in bits, of a map with `unsettled` of `span` offsets not done.

    The result grows with both arguments. So a map that fits now will also fit when some of the
    unsettled offsets are done.
    """
    parameter = _parameter(unsettled, span)
    return unsettled * (parameter + 1) + ((span - unsettled) >> parameter)


def _parameter(unsettled: int, span: int) -> int:
    """Returns the Rice parameter for which `_bits_max` is smallest.

    A parameter greater by 1 lengthens the code of each unsettled offset by one bit, and halves the
    total number of leading zeros in all codes.
    """
    done = span - unsettled
    return max(0, ((done - 1) // unsettled).bit_length() - 1) if done > 0 else 0


# -- Golomb-Rice code -----------------------------------------------------------------
# Numbers say how many offsets are done before the next one that is not, from the base on to the end
# of the last range. A number's code is as many zeros as it contains the parameter's power of two, a
# 1, and the remainder in as many bits as the parameter says. With the parameter 0 it is a bit map.


def _golomb_rice(base: int, runs: Sequence[OffsetRange]) -> tuple[int, bytes]:
    numbers: list[int] = []
    before = base
    for begin, end in runs:
        if begin - before > 1:
            numbers += [0] * (begin - before - 1)
        numbers.append(end - begin)
        before = end
    parameter = _parameter(len(numbers), before - base)
    one = 1 << parameter
    codes = {n: "0" * (n >> parameter) + f"{one | n & one - 1:b}" for n in set(numbers)}
    bits = "".join([codes[number] for number in numbers])
    size = (len(bits) + 7) // 8
    return parameter, int(bits.ljust(8 * size, "0"), 2).to_bytes(size)


def _from_golomb_rice(base: int, parameter: int, data: bytes) -> list[OffsetRange] | None:
    if parameter >= _END.bit_length():
        return None
    bits = f"{int.from_bytes(data):0{8 * len(data)}b}"
    runs: list[OffsetRange] = []
    begin, read = base + 1, 0
    for code in re.finditer(f"(0*)(1[01]{{{parameter}}})", bits):
        end = begin + (len(code[1]) << parameter) + int(code[2], 2) - (1 << parameter)
        if begin < end:
            runs.append((begin, end))
        begin, read = end + 1, code.end()
    padding = bits[read:]
    if not runs or "1" in padding or len(padding) > 7:
        return None
    return runs if runs[-1][1] < _END else None
