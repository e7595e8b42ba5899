"""New positions of a consumer group: parsing the goal of a reset, and printing its moves."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kworker.clock import now_ms
from kworker.core.positions import Goal, GroupPosition, Move, Offset, Time
from kworker.core.times import EPOCH_MS_MIN, parse_time

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

GOALS = (
    "earliest, latest, an offset, or a time: ISO 8601 (UTC unless it has a zone),"
    ' "-2h" (two hours ago) or epoch milliseconds'
)


def parse_goal(text: str) -> Goal:
    """Parses a position in one of the forms of GOALS. Raises ValueError for any other text."""
    match text:
        case "earliest" | "latest":
            return text
    if text.isascii() and text.isdigit() and int(text) < EPOCH_MS_MIN:
        return Offset(int(text))
    try:
        return Time(parse_time(text, now_ms()))
    except ValueError:
        raise ValueError(f'"{text}" is not a position; expected {GOALS}') from None


def moves(admin: "Admin", rows: Sequence[GroupPosition], goal: Goal) -> list[Move]:
    """Returns the new position of each partition. Asks the brokers only if the goal is a time."""
    match goal:
        case "earliest":
            return [Move(row, row.low) for row in rows]
        case "latest":
            return [Move(row, row.high) for row in rows]
        case Offset(number):
            return [Move(row, number) for row in rows]
        case Time(ms):
            found = admin.list_offsets([row.at for row in rows], ms)
            # Without a record of that time or later, the goal is the end of the partition.
            return [Move(row, row.high if found[row.at] < 0 else found[row.at]) for row in rows]


def as_data(move: Move) -> dict[str, Any]:
    row = move.current
    return {
        "topic": row.topic,
        "partition": row.partition,
        "before": row.committed,
        "after": move.position,
        "low": row.low,
        "high": row.high,
        "clamped": move.clamped,
    }


def print_moves(found: Sequence[Move], *, dry_run: bool) -> None:
    columns = ["before", "would be" if dry_run else "after", "low", "high"]
    print_partitions(columns, [_moved(move) for move in found])


def _moved(move: Move) -> Sequence[object]:
    row = move.current
    note = f"offset {move.wanted:,} does not exist" if move.clamped else ""
    return row.topic, row.partition, row.committed, move.position, row.low, row.high, note


def print_partitions(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table. Each row is a topic, a partition, a number for each column, and a note."""
    from rich.console import Console
    from rich.table import Column, Table

    named = [Column(name, justify="right", no_wrap=True) for name in ("partition", *columns)]
    table = Table(Column("topic", no_wrap=True), *named, "", box=None)
    for topic, *numbers, note in rows:
        shown = ["none" if number is None else f"{number:,}" for number in numbers]
        table.add_row(str(topic), *shown, str(note))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
