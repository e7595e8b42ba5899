"""The end of a log file, and what is added to it, whatever happens to the file meanwhile."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

LINE_BYTES_MAX = 1 << 20
"""Longer lines are cut into several."""
_BLOCK_BYTES = 1 << 16
_READ_BYTES = 1 << 20  # of what was added, at once


class LogTail:
    """Reads a file of lines from its end, and follows the file of that name. Used by one thread.

    Another file may take the name (rotation), and the file may be cut (truncation). No call waits.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened."""
        self._path = path
        self._file = self._open()
        self._position = 0
        self._unfinished = b""

    def last(self, count: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Returns the last `count` lines for which `wanted` is True; `added` goes on after them.

        A last line without a line break is not among them.
        """
        lines = self._backwards()
        self._unfinished = next(lines)
        found = list(islice(filter(wanted, lines), count))
        return found[::-1]

    def added(self) -> list[bytes]:
        """Returns lines that were added since the last call; [] if there are none."""
        if os.fstat(self._file.fileno()).st_size < self._position:
            self._position, self._unfinished = 0, b""
        if lines := self._read_on():
            return lines
        if (replacement := self._replacement()) is None:
            return []
        rest = [self._unfinished] if self._unfinished else []
        self.close()
        self._file = replacement
        self._position, self._unfinished = 0, b""
        return rest + self._read_on()

    @property
    def unfinished(self) -> bytes:
        """The text after the last line break; it becomes a line when its line break is added."""
        return self._unfinished

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        return self._path.open("rb", buffering=0)

    def _backwards(self) -> Iterator[bytes]:
        """Yields the text after the last line break, then the lines from the last to the first."""
        position = self._position = self._file.seek(0, os.SEEK_END)
        begin = b""
        while position:
            position -= (size := min(_BLOCK_BYTES, position))
            self._file.seek(position)
            begin, *lines = (self._file.read(size) + begin).split(b"\n")
            yield from reversed(lines)
            if len(begin) > LINE_BYTES_MAX:
                yield begin
                begin = b""
        yield begin

    def _read_on(self) -> list[bytes]:
        self._file.seek(self._position)
        data = self._file.read(_READ_BYTES)
        self._position += len(data)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LINE_BYTES_MAX:
            lines.append(self._unfinished)
            self._unfinished = b""
        return lines

    def _replacement(self) -> BinaryIO | None:
        """Opens the file that has the name now; None if that is still the same file."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                return None
            return self._open()
        except FileNotFoundError:  # between two files of that name
            return None
