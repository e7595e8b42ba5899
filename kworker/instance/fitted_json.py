"""Encodes lists as JSON in limited room; if they do not fit, the longest lose rows at the end."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def encode(parts: Sequence[Sequence[object]], room: int) -> bytes:
    """Encodes lists as one JSON list of `room` bytes at most, not counting its brackets.

    If the lists are too long for that, the longest ones lose their last rows.
    """
    data = json.dumps(parts).encode()
    if len(data) <= room:
        return data
    sizes = [[len(json.dumps(row)) + 2 for row in part] for part in parts]
    rooms = _shares([sum(rows) for rows in sizes], room)
    cut = [_fitting(rows, room) for rows, room in zip(sizes, rooms, strict=True)]
    return json.dumps([part[:most] for part, most in zip(parts, cut, strict=True)]).encode()


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
