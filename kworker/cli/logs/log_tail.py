"""Reads the end of a log file, and the lines added later, also if the file is rotated or cut."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

LINE_BYTES_MAX = 1 << 20
"""Longer lines are cut into several."""
_BLOCK_BYTES = 1 << 16
_READ_BYTES = 1 << 20  # of what was added, at once


class LogTail:
    """Reads the last lines of a file, then the lines that are added to it. Used by one thread.

    If another file takes the name (rotation), reads the new file. Reads on in the old one, too,
    since some processes write to the old file for a second more. If the file is truncated, reads it
    from its start. No call waits.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened."""
        self._path = path
        self._file = _FollowedFile(path)
        self._before: _FollowedFile | None = None

    def last(self, count: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Returns the last `count` lines for which `wanted` is True.

        A last line without a line break is not among them. The next call of `added` returns lines
        that are added after this call.
        """
        lines = self._file.backwards()
        self._file.unfinished = next(lines)
        found = list(islice(filter(wanted, lines), count))
        return found[::-1]

    def added(self) -> list[bytes]:
        """Returns lines that were added since the last call; [] if there are none."""
        late = self._before.read_on() if self._before else []
        if lines := late + self._file.read_on():
            return lines
        if (replacement := self._replacement()) is None:
            return []
        rest = self._file.take_unfinished()
        if self._before:
            rest = self._before.take_unfinished() + rest
            self._before.close()
        self._before, self._file = self._file, replacement
        return rest + self._file.read_on()

    @property
    def unfinished(self) -> bytes:
        """The text after the last line break; it becomes a line when its line break is added."""
        return self._file.unfinished

    def close(self) -> None:
        self._file.close()
        if self._before:
            self._before.close()

    def _replacement(self) -> "_FollowedFile | None":
        """Opens the file that has the name now; None if it is still the same file, or missing."""
        try:
            return None if self._file.is_at(self._path) else _FollowedFile(self._path)
        except FileNotFoundError:  # between two files of that name
            return None


class _FollowedFile:
    """One file, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._position = 0
        self.unfinished = b""

    def is_at(self, path: Path) -> bool:
        return os.path.samestat(path.stat(), os.fstat(self._file.fileno()))

    def take_unfinished(self) -> list[bytes]:
        """Returns the text after the last line break as a line, since no more text will follow."""
        unfinished, self.unfinished = self.unfinished, b""
        return [unfinished] if unfinished else []

    def close(self) -> None:
        self._file.close()

    def backwards(self) -> Iterator[bytes]:
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

    def read_on(self) -> list[bytes]:
        """Returns lines added since the last call; after a truncation, lines from the start."""
        if os.fstat(self._file.fileno()).st_size < self._position:
            self._position, self.unfinished = 0, b""
        self._file.seek(self._position)
        data = self._file.read(_READ_BYTES)
        self._position += len(data)
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        if len(self.unfinished) > LINE_BYTES_MAX:
            lines.append(self.unfinished)
            self.unfinished = b""
        return lines
