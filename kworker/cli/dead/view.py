"""Dead letters on a terminal: the table of groups, one in full, the progress of a long read."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kworker.core import headers as names
from kworker.core.times import ago, iso
from kworker.dead_letters.dead_letter import DeadLetter
from kworker.dead_letters.grouping import DeadLetterGroup
from kworker.dead_letters.resolutions import Resolution

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

_CONTROLS = frozenset(map(chr, range(32))) - set("\n\r\t") | {"\x7f"}
_WIDTH = 12
_MESSAGE_SHOWN = 60  # characters, in the table


def say(notes: Iterable[str]) -> None:
    """Prints each note as a line on stderr, since stdout has the result of the command."""
    for note in notes:
        print(f"kworker: {printable(note)}", file=sys.stderr)


def print_groups(groups: Sequence[DeadLetterGroup], now: int, *, resolved: bool) -> None:
    """Prints a table of groups of dead letters.

    If `resolved` is True, a column shows how many dead letters of each group are resolved.
    """
    from rich.console import Console
    from rich.table import Column, Table

    numbers = ["count", "resolved"] if resolved else ["count"]
    table = Table(
        *(Column(name, justify="right", no_wrap=True) for name in numbers),
        *(Column(name, no_wrap=True) for name in ("oldest", "newest", "e.g.", "reason")),
        # These two are folded to make room for the others.
        Column("exception", overflow="fold"),
        Column("message", overflow="fold"),
        box=None,
    )
    for group in groups:
        counts = [f"{group.count:,}", *([f"{group.resolved:,}"] if resolved else [])]
        ages = [ago(at, now) for at in (group.oldest_ms, group.newest_ms)]
        message = group.message[:_MESSAGE_SHOWN]
        texts = [*ages, str(group.example), group.reason, group.exception, message]
        table.add_row(*counts, *(_cell(text) for text in texts))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _cell(text: str) -> Any:
    from rich.text import Text

    return Text(printable(text).replace("\n", " "))


def group_data(group: DeadLetterGroup, now: int) -> dict[str, Any]:
    return {
        "reason": group.reason,
        "exception": group.exception,
        "count": group.count,
        "resolved": group.resolved,
        "oldest_ms": group.oldest_ms,
        "newest_ms": group.newest_ms,
        "oldest_s": max(0, now - group.oldest_ms) / 1000,
        "newest_s": max(0, now - group.newest_ms) / 1000,
        "message": group.message,
        "example": str(group.example),
    }


def lines(letter: DeadLetter, topic: str, resolution: Resolution | None, now: int) -> Iterator[str]:
    """Yields lines that show one dead letter in full, with control characters escaped."""
    yield _line("position", f"{letter.place} of {topic}")
    if source := letter.source:
        written = f", written {iso(source.timestamp)}"
        yield _line("source", f"{source.topic}:{source.partition}:{source.offset}{written}")
    yield _line("resolved", _resolution(resolution, now))
    yield _line("failed", f"{iso(letter.failed_at)}, {ago(letter.failed_at, now)} ago")
    for name, value in letter.fields.items():
        if name not in _SHOWN_APART:
            yield _line(name.removeprefix("kworker-"), value)
    yield _line("key", content(letter.key))
    yield _line("headers", "" if letter.headers else "none")
    for name, own in letter.headers:
        yield printable(f"  {name}: {content(own)}")
    yield _line("value", content(letter.value, pretty=True), apart=True)
    if stack := letter.fields.get(names.STACKTRACE):
        yield _line("stack trace", stack, apart=True)


_SHOWN_APART = frozenset({names.SOURCE, names.FAILED_AT, names.STACKTRACE})


def _line(name: str, value: str, *, apart: bool = False) -> str:
    """Returns a name and its value as a line; with `apart`, the value begins on the next line."""
    shown = printable(value)
    return f"{name}\n{shown}" if apart else f"{name:<{_WIDTH}}{shown}".rstrip()


def _resolution(resolution: Resolution | None, now: int) -> str:
    if resolution is None:
        return "no"
    at = f"{iso(resolution.at)}, {ago(resolution.at, now)} ago"
    return f"{resolution.how} by {resolution.by}, {at}"


def content(value: bytes | None, *, pretty: bool = False) -> str:
    """Returns text as it is, bytes that are not UTF-8 text in hex, and None as `null`."""
    if value is None:
        return "null"
    text = _text(value)
    if text is None:
        return f"hex {value.hex()}"
    return _pretty(text) if pretty else text


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS & set(text) else text


def _pretty(text: str) -> str:
    """Indents JSON over several lines, unless parsing it would change its meaning."""
    try:
        data = json.loads(text, parse_float=_exact, object_pairs_hook=_unrepeated)
        return json.dumps(data, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _exact(number: str) -> float:
    value = float(number)
    if repr(value) != number:
        raise ValueError(number)
    return value


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object in the JSON has the same name twice")
    return found


def printable(text: str) -> str:
    """Returns the text with control characters escaped, except newline and tab."""
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )
    return "".join(shown)


class ReadingProgress:
    """Shows on a terminal the number of records read so far, and of dead letters resolved."""

    def __init__(self, progress: "Progress | None" = None, total: int = 0) -> None:
        self._progress = progress
        if progress:
            self._task = progress.add_task("", total=total, done="0")

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and counts each as read."""
        for item in items:
            if self._progress:
                self._progress.advance(self._task)
            yield item

    def done(self, count: int) -> None:
        if self._progress:
            self._progress.update(self._task, done=f"{count:,}")


@contextmanager
def reading(total: int, what: str = "") -> Iterator[ReadingProgress]:
    """Opens a progress bar for reading about `total` records.

    `what`, such as `redriven`, is shown before the number of dead letters resolved so far.
    """
    if not sys.stderr.isatty():
        yield ReadingProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = [TextColumn("read"), BarColumn(), MofNCompleteColumn()]
    done = [TextColumn(f"{what} {{task.fields[done]}}")] if what else []
    with Progress(*columns, *done, console=Console(stderr=True), transient=True) as progress:
        yield ReadingProgress(progress, total)
