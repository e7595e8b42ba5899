"""A file of edited dead letters: all lines are checked before any is written."""

from collections.abc import Iterator
from pathlib import Path

from kworker.core.headers import Source
from kworker.core.outcome import Output
from kworker.core.record_lines import BadLine
from kworker.dead_letters.dead_letter import DeadLetterIdentity, DeadLetterPosition
from kworker.dead_letters.lines import Edit, parse_line
from kworker.dead_letters.reader import DeadLetters
from kworker.dead_letters.repair import RepairStep, Requeue
from kworker.dead_letters.selection import spans
from kworker.errors import KworkerError, UsageError

_SHOWN_MAX = 20  # problems: enough to see a mistake that is in every line
_Origin = tuple[Source, int, bytes]  # with `redriven` and `replay`


class EditedFile:
    """A file of edited dead letters, which may be larger than the memory.

    So its lines are not kept: `check` and `steps` each read the whole file.
    """

    def __init__(self, path: Path, requeue: Requeue, bytes_max: int) -> None:
        """`bytes_max` is the size in bytes of the largest record that the requeue topic accepts."""
        self._path = path
        self._requeue = requeue
        self._bytes_max = bytes_max
        self._problems: dict[int, str] = {}  # by line
        self._lines: dict[DeadLetterIdentity, int] = {}

    def check(self, dead: DeadLetters) -> int:
        """Checks all lines, and returns their number. Raises KworkerError naming the bad lines."""
        origins: dict[DeadLetterIdentity, _Origin] = {}
        for number, line in self._read():
            try:
                edit = parse_line(line, dead.topic)
                self._check_edit(edit, number)
            except BadLine as problem:
                self._problems[number] = str(problem)
            else:
                envelope = edit.envelope
                origins[edit.identity] = envelope.source, envelope.redriven, envelope.replay
        self._check_origins(dead, origins)
        if self._problems:
            raise KworkerError(self._error_text())
        return len(self._lines)

    def _check_edit(self, edit: Edit, number: int) -> None:
        if earlier := self._lines.get(edit.identity):
            raise BadLine(
                f"this line has the same dead letter as line {earlier}: delete one of them"
            )
        self._lines[edit.identity] = number
        if self._output(edit).size > self._bytes_max:
            raise BadLine(
                f"the record is too large: {self._requeue.topic} accepts {self._bytes_max:,}"
                " bytes at most; shorten the record"
            )

    def _check_origins(self, dead: DeadLetters, origins: dict[DeadLetterIdentity, _Origin]) -> None:
        """Notes a problem for each line whose dead letter does not exist as the line describes it.

        The position, the source, `redriven` and `replay` in the line must be those of one existing
        dead letter.
        """
        places = [DeadLetterPosition(each.partition, each.offset) for each in origins]
        for letter in dead.letters(spans(filter(dead.holds, places))):
            held = letter.source, letter.redriven, letter.replay.encode()
            if origins.get(letter.identity) == held:
                del origins[letter.identity]
        for identity in origins:
            self._problems[self._lines[identity]] = (
                "position, source, redriven and replay are not those of a dead letter that"
                f" {dead.topic} holds now: leave them as exported"
            )

    def _error_text(self) -> str:
        problems = sorted(self._problems.items())
        lines = [f"{self._path}:{number}: {problem}" for number, problem in problems]
        if (more := len(lines) - _SHOWN_MAX) > 0:
            lines[_SHOWN_MAX:] = [f"and {more:,} more"]
        return "\n".join([*lines, "nothing was written: correct the file and import it again"])

    def steps(self, topic: str) -> Iterator[RepairStep]:
        """Yields, for each line of a checked file, its dead letter and the record to write for it.

        Raises KworkerError if the file has changed since `check`.
        """
        for number, line in self._read():
            try:
                edit = parse_line(line, topic)
            except BadLine:
                edit = None
            if edit is None or self._lines.get(edit.identity) != number:
                raise KworkerError(
                    f"{self._path}:{number}: this line changed during the import: import the"
                    " file again, and do not edit it meanwhile; nothing is done twice"
                )
            yield RepairStep(edit.identity, self._output(edit))

    def _output(self, edit: Edit) -> Output:
        return self._requeue.record(edit.envelope, edit.key, edit.value, edit.headers)

    def _read(self) -> Iterator[tuple[int, bytes]]:
        """Yields each line that is not empty, with its number.

        Raises UsageError if the file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if text := line.removeprefix(b"\xef\xbb\xbf").strip():
                        yield number, text
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from None
