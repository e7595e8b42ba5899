"""Encodes lists as JSON in limited room; if they do not fit, the longest lose rows at the end."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_COMMA_BYTES = 1


def encode(parts: Sequence[Sequence[object]], room: int) -> bytes:
    """Encodes lists as one JSON list of `room` bytes at most.

    If the lists are too long for that, the longest ones lose their last rows. Raises ValueError if
    not even empty lists fit.
    """
    data = _json(parts)
    if len(data) <= room:
        return data
    brackets = len(_json([()] * len(parts)))
    if brackets > room:
        raise ValueError(f"{len(parts)} lists need {brackets} bytes; there are {room}")
    # A comma for every row is one too many in each list: so the rows never exceed their share.
    sizes = [[len(_json(row)) + _COMMA_BYTES for row in part] for part in parts]
    rooms = _shares([sum(rows) for rows in sizes], room - brackets)
    cut = [_fitting(rows, share) for rows, share in zip(sizes, rooms, strict=True)]
    return _json([part[:most] for part, most in zip(parts, cut, strict=True)])


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divides `room` bytes among lists whose sizes are `wanted`; returns the bytes for each.

    Small lists get their full sizes. The other lists get equal shares of the rest.
    """
    shares = [0] * len(wanted)
    left = len(wanted)
    for i in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[i] = min(wanted[i], room // left)
        room -= shares[i]
        left -= 1
    return shares


def _fitting(sizes: Sequence[int], room: int) -> int:
    return bisect_right(list(accumulate(sizes)), room)
