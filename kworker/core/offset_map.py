"""The text in a commit's metadata: the identity of its topic, and the offsets done beyond it."""

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
_PREFIX = f"{_NAME}1:"
_DIGEST_BYTES = 8
_HEAD = Struct(f">{2 * _DIGEST_BYTES}sQB")  # origin, base, form
_CHECK_BYTES = 4
_BODY_MAX = (METADATA_MAX - len(_PREFIX)) // 4 * 3
RUNS_BYTES_MAX = _BODY_MAX - _HEAD.size - _CHECK_BYTES
SPAN_MAX = 8 * RUNS_BYTES_MAX
"""Offsets that a map of bits can hold."""

_JOINT_BYTES = 10  # the most by which a number grows when more offsets precede its run
_RUNS, _BITS = 0, 1
_END = 1 << 63
_ONES = re.compile("1+")


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
    form, data = _smaller(base, runs) if runs else (_RUNS, b"")
    if len(data) > RUNS_BYTES_MAX:
        raise ValueError(f"an offset map of {len(runs)} ranges is too large for a commit")
    body = _HEAD.pack(origin, base, form) + data
    return _PREFIX + b64encode(body + crc32(body).to_bytes(_CHECK_BYTES)).decode()


def _smaller(base: int, runs: Sequence[OffsetRange]) -> tuple[int, bytes]:
    bits_bytes = (runs[-1][1] - base + 6) // 8
    if len(runs) < bits_bytes:  # of which each takes one at least
        data = _runs(base, runs)
        if len(data) <= bits_bytes:
            return _RUNS, data
    return _BITS, _bits(base, runs)


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
    found_origin, base, form = _HEAD.unpack_from(body)
    data = body[_HEAD.size :]
    if not data:
        return []
    if found_origin != origin:
        return Ignored("foreign", "of another cluster, topic or partition")
    if base != position:
        return Ignored("foreign", f"of position {base}, not {position}")
    runs = _from_bits(base, data) if form else _from_runs(base, data)
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
        """Reads the settled offsets from a commit; an unreadable offset map counts as empty.

        A position of an earlier topic of the same name settles nothing.
        """
        if identity is None:
            return cls(held.position)
        origin = origin_of(identity, at)
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


def fits(unsettled: int, span: int, rest: int = 0) -> bool:
    """Returns True if the offset map surely fits into a commit, in whatever order records end.

    The map covers `span` offsets, the first at the position, of which `unsettled` are not done.
    `rest` is the result of `size` for the ranges done beyond the last delivered record, or 0.
    """
    return span <= SPAN_MAX or _size_max(unsettled, span) + rest <= RUNS_BYTES_MAX


def unsettled_max(span: int) -> int:
    """Returns how many of `span` offsets may be unsettled so that `fits` still returns True."""
    return bisect_left(range(span), True, key=lambda n: not fits(n + 1, span))


def _size_max(unsettled: int, span: int) -> int:
    """Returns an upper bound of the bytes that a map of run lengths takes for `span` offsets.

    The map stores the length of each run of done offsets. It also stores the length of each gap:
    two or more of the `unsettled` offsets in a row. If every length takes one byte, the map takes
    at most `unsettled` bytes. A run longer than 64 takes a second byte, but no more than span / 64
    runs are so long. Further bytes, of still longer runs and of long gaps, are added likewise.
    """
    size, shift = unsettled, 6
    while longer := span >> shift:
        size += min(unsettled, longer)
        shift += 7
    while unsettled := unsettled >> 7:
        size += unsettled
    return size


def size(base: int, runs: Sequence[OffsetRange]) -> int:
    """Returns the most bytes that `runs`, at `base` or above, add to a map of offsets below it."""
    return len(_runs(base - 1, runs)) + _JOINT_BYTES if runs else 0


# -- run lengths ----------------------------------------------------------------------
# Alternately, the number of offsets that are done, and of those before them that are not. The
# latter is nearly always 1, which is marked in the lowest bit of the former instead.


def _runs(base: int, runs: Iterable[OffsetRange]) -> bytes:
    data = bytearray()
    before = base
    for begin, end in runs:
        gap = begin - before
        done = (end - begin - 1) << 1 | (gap > 1)
        if done > 0x7F:
            _put(data, done)
        else:
            data.append(done)
        if gap > 1:
            _put(data, gap - 2)
        before = end
    return bytes(data)


def _put(data: bytearray, number: int) -> None:
    """Appends a varint: seven bits a byte, lowest first; the eighth bit says that more follow."""
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _numbers(data: bytes) -> list[int] | None:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return None if shift else numbers


def _from_runs(base: int, data: bytes) -> list[OffsetRange] | None:
    if (numbers := _numbers(data)) is None:
        return None
    runs: list[OffsetRange] = []
    before, rest = base, iter(numbers)
    for number in rest:
        gap = 1
        if number & 1:
            if (more := next(rest, None)) is None:
                return None
            gap = more + 2
        begin = before + gap
        before = begin + (number >> 1) + 1
        runs.append((begin, before))
    return runs if before < _END else None


# -- bits -----------------------------------------------------------------------------
# One for each offset above the base, the lowest first.


def _bits(base: int, runs: Sequence[OffsetRange]) -> bytes:
    first = base + 1
    flags = bytearray(b"0") * (runs[-1][1] - first)
    for begin, end in runs:
        flags[begin - first : end - first] = b"1" * (end - begin)
    flags.reverse()
    return int(flags, 2).to_bytes((len(flags) + 7) // 8, "little")


def _from_bits(base: int, data: bytes) -> list[OffsetRange] | None:
    flags = f"{int.from_bytes(data, 'little'):b}"[::-1]
    runs = [(base + 1 + m.start(), base + 1 + m.end()) for m in _ONES.finditer(flags)]
    return runs if runs and runs[-1][1] < _END else None
