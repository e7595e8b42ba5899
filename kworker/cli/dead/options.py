"""Options that select dead letters."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from kworker.core.headers import SourcePosition
from kworker.core.times import parse_time
from kworker.dead_letters.dead_letter import DeadLetterPosition
from kworker.dead_letters.selection import Selection
from kworker.errors import UsageError

_NEXT = re.compile(r",(?=\w+=)")  # between two conditions; a key may contain commas
_NAMES = ("reason", "exception", "since", "key")
_PLACE_FORMS = "PARTITION:OFFSET of the dead letter, or TOPIC:PARTITION:OFFSET of its source"

PositionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="POSITION", help=f"{_PLACE_FORMS}.", show_default=False),
]
PositionArgument = Annotated[str, typer.Argument(metavar="POSITION", help=f"{_PLACE_FORMS}.")]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CONDITIONS",
        help="Take only dead letters that meet all of reason=…,exception=…,since=…,key=…. An"
        " exception is a dotted or bare name; since is ISO 8601 (UTC unless it has a zone),"
        ' "-2h" or epoch milliseconds.',
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Write the original records to this topic instead."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Include resolved dead letters.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the dead letters, and write nothing.")
]


def selection(positions: Iterable[str] | None, select: Iterable[str] | None, now: int) -> Selection:
    """Parses arguments that select dead letters. Raises UsageError for a wrong argument."""
    conditions: dict[str, Any] = {}
    for name, value in _conditions(select or ()):
        if name in conditions:
            raise UsageError(f"--select: the condition {name}=… is given twice; give it once")
        conditions[name] = value
    if "since" in conditions:
        conditions["since_ms"] = _since(conditions.pop("since"), now)
    places = [_position(text) for text in positions or ()]
    return Selection(
        places=frozenset(each for each in places if isinstance(each, DeadLetterPosition)),
        sources=frozenset(each for each in places if not isinstance(each, DeadLetterPosition)),
        **conditions,
    )


def _conditions(select: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in select:
        for condition in _NEXT.split(text):
            name, equals, value = condition.partition("=")
            if name not in _NAMES or not equals:
                forms = ", ".join(f"{each}=…" for each in _NAMES)
                raise UsageError(
                    f'--select: expected conditions such as {forms}; got "{condition}"'
                )
            yield name, value


def _since(text: str, now: int) -> int:
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise UsageError(f"--select: the value of since is wrong: {error}") from None


def _position(text: str) -> DeadLetterPosition | SourcePosition:
    *topic, partition, offset = ["", *text.split(":")][-4:]
    numbers = [int(each) for each in (partition, offset) if each.isascii() and each.isdigit()]
    match topic, numbers:
        case [""], [of, at]:
            return DeadLetterPosition(of, at)
        case ["", str(name)], [of, at] if name:
            return name, of, at
    raise UsageError(f'"{text}" is not a position; expected {_PLACE_FORMS}')
