"""What travels as text in a commit's metadata: whose position it is, and what is done beyond it."""

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
"""Offsets of which a map can tell each."""

_JOINT_BYTES = 10  # by which a number grows, at most, when the offsets before a run become more
_RUNS, _BITS = 0, 1
_END = 1 << 63
_ONES = re.compile("1+")


class Committed(NamedTuple):
    """What a group holds of a partition."""

    position: int
    metadata: str = ""


class TopicIdentity(NamedTuple):
    """Which topic it is: one that is made again, or in another cluster, is another."""

    cluster_id: str
    topic_id: str


class Ignored(NamedTuple):
    """Metadata that tells nothing of this partition."""

    kind: Literal["foreign", "damaged"]
    why: str


def ids_untold(topics: Iterable[str]) -> str:
    """The problem with topics whose ids, and so whose origins, the brokers do not tell."""
    return (
        f"the brokers do not tell the ids of {', '.join(topics)}: DESCRIBE must be allowed on"
        " them, and brokers be 2.8 or newer"
    )


def origin_of(identity: TopicIdentity, at: tuple[str, int]) -> bytes:
    """Names the log whose offsets a commit is about: the place, then the topic that is there.

    A topic that is made again is another at the same place. Tools that mirror a cluster, or
    copy a topic, take the metadata along to another place.
    """
    topic, partition = at
    return _digest(f"{identity.cluster_id} {topic} {partition}") + _digest(identity.topic_id)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def encode(origin: bytes, base: int, runs: Sequence[OffsetRange]) -> str:
    """Whose position `base` is, and the map of what is done beyond it.

    The offset `base` is not done: the first run begins above it. Raises ValueError for more
    than fits, which `fits` rules out.
    """
    form, told = _smaller(base, runs) if runs else (_RUNS, b"")
    if len(told) > RUNS_BYTES_MAX:
        raise ValueError(f"{len(runs)} runs do not fit into the metadata of a commit")
    body = _HEAD.pack(origin, base, form) + told
    return _PREFIX + b64encode(body + crc32(body).to_bytes(_CHECK_BYTES)).decode()


def _smaller(base: int, runs: Sequence[OffsetRange]) -> tuple[int, bytes]:
    bits_bytes = (runs[-1][1] - base + 6) // 8
    if len(runs) < bits_bytes:  # of which each takes one at least
        told = _runs(base, runs)
        if len(told) <= bits_bytes:
            return _RUNS, told
    return _BITS, _bits(base, runs)


def decode(text: str, origin: bytes, position: int) -> list[OffsetRange] | Ignored:
    """What is done beyond a committed position, by the metadata that came with it.

    What has no map tells nothing that could be ignored, whosever it is.
    """
    if not text:
        return []
    if not text.startswith(_PREFIX):
        ours = text.startswith(_NAME)
        return Ignored("foreign", "of another version" if ours else "not written by kworker")
    if (body := _body(text)) is None:
        return Ignored("damaged", "its check sum does not match")
    told_origin, base, form = _HEAD.unpack_from(body)
    told = body[_HEAD.size :]
    if not told:
        return []
    if told_origin != origin:
        return Ignored("foreign", "of another cluster, topic or partition")
    if base != position:
        return Ignored("foreign", f"of position {base}, not {position}")
    runs = _from_bits(base, told) if form else _from_runs(base, told)
    return Ignored("damaged", "its runs make no sense") if runs is None else runs


def same_topic(held: Committed, origin: bytes) -> bool | None:
    """Whether a position is of this topic, by the metadata that came with it.

    False: of one that was there before, under the same name. None: nobody knows, for the
    metadata is of another place or position, damaged, or not ours.
    """
    text = held.metadata
    if not text.startswith(_PREFIX) or (body := _body(text)) is None:
        return None
    told, base, _ = _HEAD.unpack_from(body)
    if told[:_DIGEST_BYTES] != origin[:_DIGEST_BYTES] or base != held.position:
        return None
    return bool(told == origin)


class Settled(NamedTuple):
    """What a group had settled of a partition, as far as what it holds tells."""

    position: int
    beyond: Sequence[OffsetRange] = ()

    @classmethod
    def of(cls, held: Committed, identity: TopicIdentity | None, at: tuple[str, int]) -> "Settled":
        """A map that cannot be read tells nothing.

        Of a topic that was made again nothing is settled by a position of the one before.
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
        """Behind the last offset that is."""
        return self.beyond[-1][1] if self.beyond else self.position

    @property
    def count_beyond(self) -> int:
        """Offsets beyond the position; some may have no record."""
        return sum(end - begin for begin, end in self.beyond)

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


# -- what fits ------------------------------------------------------------------------


def fits(unsettled: int, span: int, rest: int = 0) -> bool:
    """Whether the map is sure to fit, whichever of the unsettled records end first.

    They lie within `span` offsets from the position on. `rest` is what `size` says of runs
    that lie beyond them.
    """
    return span <= SPAN_MAX or _size_max(unsettled, span) + rest <= RUNS_BYTES_MAX


def unsettled_max(span: int) -> int:
    """The most unsettled records for which `fits`."""
    return bisect_left(range(span), True, key=lambda n: not fits(n + 1, span))


def _size_max(unsettled: int, span: int) -> int:
    """The most bytes that `_runs` makes of as many records that are not done.

    Each run needs one of them before it, so there are no more runs than that; and runs of so
    many offsets that they need one byte more are as few as the span has room for. Two that
    stand together cost a byte beside their run, which is less than a run for each would.
    """
    size, shift = unsettled, 6
    while longer := span >> shift:
        size += min(unsettled, longer)
        shift += 7
    while unsettled := unsettled >> 7:
        size += unsettled
    return size


def size(base: int, runs: Sequence[OffsetRange]) -> int:
    """What runs add to a map, at most, if they follow others that reach up to `base`."""
    return len(_runs(base - 1, runs)) + _JOINT_BYTES if runs else 0


# -- run lengths ----------------------------------------------------------------------
# By turns, how many offsets are done, and how many before them are not: nearly always one,
# so that stands in the lowest bit of the other number.


def _runs(base: int, runs: Iterable[OffsetRange]) -> bytes:
    told = bytearray()
    before = base
    for begin, end in runs:
        gap = begin - before
        done = (end - begin - 1) << 1 | (gap > 1)
        if done > 0x7F:
            _put(told, done)
        else:
            told.append(done)
        if gap > 1:
            _put(told, gap - 2)
        before = end
    return bytes(told)


def _put(told: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    while number > 0x7F:
        told.append(number & 0x7F | 0x80)
        number >>= 7
    told.append(number)


def _numbers(told: bytes) -> list[int] | None:
    numbers, number, shift = [], 0, 0
    for byte in told:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return None if shift else numbers


def _from_runs(base: int, told: bytes) -> list[OffsetRange] | None:
    if (numbers := _numbers(told)) is None:
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


def _from_bits(base: int, told: bytes) -> list[OffsetRange] | None:
    flags = f"{int.from_bytes(told, 'little'):b}"[::-1]
    runs = [(base + 1 + m.start(), base + 1 + m.end()) for m in _ONES.finditer(flags)]
    return runs if runs and runs[-1][1] < _END else None
