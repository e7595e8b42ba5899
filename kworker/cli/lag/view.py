"""The lag of a service as JSON, and on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from kworker.cli.lag.survey import DelayLag, LagReport, PartitionLag, TopicLag
from kworker.cli.status_view import delay_line, span

_MINUTE_S = 60.0


def as_data(report: LagReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "lag": _numbers(report),
        "missing": report.missing,
        "topics": [_topic(each) for each in report.topics],
        "delays": [_delay(each) for each in report.delays],
        "tables": [{"table": name, **_topic(lag)} for name, lag in report.tables.items()],
    }


def _numbers(lag: LagReport | TopicLag) -> dict[str, Any]:
    return {"records": lag.records, "unfinished": lag.unfinished, "age_s": lag.age_s}


def _topic(lag: TopicLag) -> dict[str, Any]:
    partitions = [_partition(each) for each in lag.partitions]
    return {"topic": lag.topic, "group": lag.group, **_numbers(lag), "partitions": partitions}


def _partition(lag: PartitionLag) -> dict[str, Any]:
    row = lag.position
    return {
        "partition": row.partition,
        "committed": row.committed,
        "end": row.high,
        "records": row.behind,
        "unfinished": row.unfinished,
        "age_s": lag.age_s,
        "expired": row.expired,
        "made_again": row.made_again,
    }


def _delay(lag: DelayLag) -> dict[str, Any]:
    return {
        "delay": lag.delay,
        "topic": lag.topic,
        "waiting": lag.waiting,
        "next_due_ms": lag.next_due_ms,
    }


def render(report: LagReport, *, partitions: bool) -> Group:
    """Returns a report for a terminal: a row for each topic (with `partitions`: each partition)."""
    lags = [*report.topics, *report.tables.values()]
    return Group(
        _head(report),
        _by_partition(lags) if partitions else _by_topic(report),
        *(Text(delay_line(_delay(each))) for each in report.delays if each.waiting),
        *_missing(report),
    )


def _head(report: LagReport) -> Text:
    lag, unfinished = _count(report.records), _count(report.unfinished)
    return Text.assemble(
        (report.name, "bold"), f": lag {lag}, unfinished {unfinished}, oldest {_age(report.age_s)}"
    )


def _missing(report: LagReport) -> Iterator[Text]:
    if report.missing:
        names = ", ".join(report.missing)
        yield Text(f"missing on the brokers: {names}; create with: kworker topics create", "red")


def _by_topic(report: LagReport) -> Table:
    table = _table("topic", "partitions", "lag", "unfinished", "oldest")
    for lag in report.topics:
        _add(table, lag, lag.topic)
    for name, lag in report.tables.items():
        _add(table, lag, f"{lag.topic}, for the table {name}")
    return table


def _add(table: Table, lag: TopicLag, name: str) -> None:
    rows = [each.position for each in lag.partitions]
    notes = {
        "expired before they were read": sum(row.expired for row in rows),
        "partitions without a position, counted from the first offset": sum(
            row.committed is None and row.behind > 0 for row in rows
        ),
        "partitions whose topic was deleted and created again": sum(row.made_again for row in rows),
    }
    numbers = [str(len(rows)), _count(lag.records), _count(lag.unfinished)]
    table.add_row(name, *numbers, _age(lag.age_s), _notes(notes))


def _by_partition(lags: Sequence[TopicLag]) -> Table:
    table = _table("group", "topic", "partition", "committed", "end", "lag", "unfinished", "oldest")
    for lag in lags:
        for each in lag.partitions:
            table.add_row(lag.group, lag.topic, *_cells(each))
    return table


def _cells(lag: PartitionLag) -> Iterator[str]:
    row = lag.position
    yield str(row.partition)
    yield "none" if row.committed is None else f"{row.committed:,}"
    yield from map(_count, (row.high, row.behind, row.unfinished))
    yield _age(lag.age_s)
    again = "the topic was deleted and created again" if row.made_again else ""
    yield _notes({"expired before they were read": row.expired}) or again


def _table(*columns: str) -> Table:
    """Returns an empty table: columns of names, then columns of numbers, then one for notes."""
    names = [Column(name, no_wrap=True) for name in columns if name in ("group", "topic")]
    numbers = [Column(name, justify="right", no_wrap=True) for name in columns[len(names) :]]
    return Table(*names, *numbers, "", box=None, pad_edge=False)


def _notes(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _age(age_s: float | None) -> str:
    if age_s is None:
        return "unknown"
    if not age_s:
        return "-"
    return f"{age_s:.1f}s" if age_s < _MINUTE_S else span(age_s)
