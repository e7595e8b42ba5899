"""Shows dead letters on a terminal: a table of their groups, or one dead letter in full."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kworker.cli.text import content, printable
from kworker.core import headers as names
from kworker.core.times import ago, iso
from kworker.dead_letters.dead_letter import DeadLetter
from kworker.dead_letters.grouping import DeadLetterGroup
from kworker.dead_letters.resolutions import Resolution

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
