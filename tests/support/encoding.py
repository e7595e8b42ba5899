"""How Kafka writes what it sends and stores, read from the first byte on."""

import re
import struct
from collections.abc import Iterator
from typing import Any


def without_host(client: str) -> str:
    """A client id of kworker's without its end, which names the host."""
    return re.sub(r"\.[0-9a-f]{8}$", "", client)


class Reader:
    """Reads one value after the other; `compact` is the newer way, with tags."""

    def __init__(self, data: bytes, *, compact: bool = False) -> None:
        self._data, self._place, self._compact = data, 0, compact

    def number(self, kind: str) -> Any:
        """As `struct` names it."""
        (found,) = struct.unpack_from(f">{kind}", self._data, self._place)
        self._place += struct.calcsize(f">{kind}")
        return found

    def take(self, size: int) -> bytes:
        found = self._data[self._place : self._place + size]
        self._place += size
        return found

    def text(self) -> str:
        """What is null is empty."""
        size = self._varint() - 1 if self._compact else self.number("h")
        return self.take(max(0, size)).decode()

    def data(self) -> bytes:
        size = self._varint() - 1 if self._compact else self.number("i")
        return self.take(max(0, size))

    def each(self) -> Iterator[int]:
        """Counts the items of a list; each is to be read before the next."""
        yield from range(self._varint() - 1 if self._compact else self.number("i"))

    def skip(self, kinds: str) -> None:
        """Numbers, and "s" for a text."""
        for kind in kinds:
            self.text() if kind == "s" else self.number(kind)

    def tags(self) -> None:
        """The end of what may have grown."""
        if self._compact:
            for _ in range(self._varint()):
                self._varint()
                self.take(self._varint())

    def _varint(self) -> int:
        """Seven bits a byte, the lowest first."""
        found = shift = 0
        while True:
            byte = self.number("B")
            found |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return int(found)
