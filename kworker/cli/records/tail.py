"""`kworker tail`: prints the last records of a topic and, with --follow, new records."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import ConfigOption
from kworker.cli.positions import GOALS, moves, parse_goal
from kworker.cli.text import content, printable
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.core.message import HeaderList, RawMessage, headers_of
from kworker.core.positions import Goal, GroupPosition
from kworker.core.record_lines import as_text
from kworker.core.times import iso
from kworker.errors import UsageError

if TYPE_CHECKING:
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader

app = typer.Typer()
TIMEOUT_S = 20.0
LAST = 10
_WIDER = 4  # times the records read, where transactions or compaction left too few


TopicArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]",
        help="A topic, or one of source, results, requeue, dead.",
        show_default="results",
    ),
]
LastOption = Annotated[
    int | None,
    typer.Option("--last", "-n", min=1, help="Print this many records.", show_default="10"),
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="WHEN", help=f"Print from here on: {GOALS}.")
]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with records as they come, until Ctrl-C.")
]
PartitionOption = Annotated[int | None, typer.Option(min=0, help="Only of this partition.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TEXT",
        help="Only records with this key=…, with this text in the value=…, or with this"
        " header NAME=…. Several conditions must all hold.",
    ),
]
LinesOption = Annotated[
    bool, typer.Option("--json", help="Print a JSON object a line, as `send --records` reads.")
]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record with its headers, since the client must not be asked for them a second time.

    `unreadable` is the reason why the headers cannot be read, else "".
    """

    raw: RawMessage
    headers: HeaderList
    unreadable: str

    @classmethod
    def of(cls, raw: RawMessage) -> "ReadRecord":
        [headers], problems = headers_of([raw])
        return cls(raw, headers or [], str(problems[0]) if problems else "")

    @property
    def place(self) -> str:
        return f"{self.raw.topic()}:{self.raw.partition()}:{self.raw.offset()}"


@app.command(rich_help_panel="Records")
def tail(
    topic: TopicArgument = None,
    config: ConfigOption = None,
    last: LastOption = None,
    since: FromOption = None,
    follow: FollowOption = False,
    partition: PartitionOption = None,
    where: WhereOption = None,
    as_json: LinesOption = False,
) -> None:
    """Print records of a topic: the last ten results, unless told otherwise.

    Example: [bold]kworker tail --follow[/bold], or
    [bold]kworker tail source --from -1h --where key=c-1[/bold]

    Changes no consumer group. Records of open or aborted transactions are not shown. With
    [bold]--from[/bold], partitions are printed one after the other; without it, the last records
    of all partitions are sorted by timestamp. With [bold]--follow[/bold], new records are printed
    as they arrive.
    """
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader

    if last is not None and since is not None:
        raise UsageError("tail: --last and --from exclude each other")
    wanted = _conditions(where or ())
    goal = None if since is None else _goal(since)
    loaded = toml_file.load(config)
    admin = Admin(admin_properties(loaded), timeout_s=TIMEOUT_S)
    name, count = _topic(loaded, admin, topic or "results")
    if partition is not None and partition >= count:
        raise UsageError(f"--partition: {name} has the partitions 0 to {count - 1}")
    numbers = range(count) if partition is None else [partition]
    held = _held(admin, name, numbers)
    reader = TopicReader(admin_properties(loaded), loaded.name, timeout_s=TIMEOUT_S)
    with closing(reader):
        if goal is None:
            found: Iterable[ReadRecord] = _last(reader, name, held, last or LAST, wanted)
        else:
            found = _matching(reader.records(name, _from(admin, name, held, goal)), wanted)
        _print(found, as_json=as_json)
        if follow:
            ends = {number: span.stop for number, span in held.items()}
            _print(_matching(reader.follow(name, ends), wanted), as_json=as_json)


# -- what to read -----------------------------------------------------------------------

Condition = Callable[[ReadRecord], bool]


def _conditions(texts: Iterable[str]) -> list[Condition]:
    return [_condition(*_parted(text)) for text in texts]


def _parted(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f'--where: expected key=TEXT, value=TEXT or HEADER=TEXT, got "{text}"')
    return name, value


def _condition(name: str, text: str) -> Condition:
    wanted = os.fsencode(text)
    match name:
        case "key":
            return lambda shown: shown.raw.key() == wanted
        case "value":
            return lambda shown: wanted in (shown.raw.value() or b"")
    return lambda shown: (name, wanted) in shown.headers


def _goal(text: str) -> Goal:
    try:
        return parse_goal(text)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from None


def _topic(config: Config, admin: "Admin", name: str) -> tuple[str, int]:
    """Returns the name of the topic that `name` stands for, and its number of partitions.

    `name` is the name of a topic, or else one of the words source, results, requeue and dead.
    Raises UsageError if the topic does not exist.
    """
    roles = {
        "results": config.delivery.results,
        "requeue": config.requeue_topic,
        "dead": config.dead_letter.topic,
    }
    if len(config.source.topics) == 1 and not config.source.pattern:
        roles["source"] = config.source.topics[0]
    names = [name, *([roles[name]] if name in roles else [])]
    found = admin.topics(names)
    for each in names:
        if each in found:
            return each, found[each].partitions
    raise UsageError(f"{names[-1]}: no such topic; kworker topics show lists the service's topics")


def _held(admin: "Admin", topic: str, numbers: Iterable[int]) -> dict[int, range]:
    """Returns the range of offsets in each partition; it ends before any open transaction."""
    at = [(topic, number) for number in numbers]
    low = admin.list_offsets(at, "earliest")
    high = admin.list_offsets(at, "latest", committed=True)
    return {each[1]: range(low[each], high[each]) for each in at}


def _from(admin: "Admin", topic: str, held: Mapping[int, range], goal: Goal) -> dict[int, range]:
    """Returns the part of each range in `held` that begins where `goal` says.

    `goal` is "earliest", "latest", an offset or a time.
    """
    rows = [GroupPosition(topic, n, None, span.start, span.stop) for n, span in held.items()]
    found = moves(admin, rows, goal)
    return {move.current.partition: range(move.position, move.current.high) for move in found}


def _matching(raws: Iterable[RawMessage], wanted: list[Condition]) -> Iterator[ReadRecord]:
    for raw in raws:
        shown = ReadRecord.of(raw)
        if all(condition(shown) for condition in wanted):
            yield shown


def _last(
    reader: "TopicReader",
    topic: str,
    held: Mapping[int, range],
    count: int,
    wanted: list[Condition],
) -> list[ReadRecord]:
    """Returns the last `count` records, by timestamp, that meet all conditions in `wanted`.

    Reads each partition backwards from its end, until `count` such records are found in it.
    """
    found: list[ReadRecord] = []
    for number, span in held.items():
        start, width, own = span.stop, count, list[ReadRecord]()
        while len(own) < count and start > span.start:
            start = max(span.start, span.stop - width)
            own = list(_matching(reader.records(topic, {number: range(start, span.stop)}), wanted))
            width *= _WIDER
        found += own[-count:]
    found.sort(key=lambda shown: (shown.raw.timestamp()[1], shown.raw.offset()))
    return found[-count:]


# -- what to print ----------------------------------------------------------------------


def _print(found: Iterable[ReadRecord], *, as_json: bool) -> None:
    for shown in found:
        for line in [_line(shown)] if as_json else _lines(shown):
            typer.echo(line)
        sys.stdout.flush()


def _line(shown: ReadRecord) -> str:
    raw = shown.raw
    data = {
        "topic": raw.topic(),
        "partition": raw.partition(),
        "offset": raw.offset(),
        "timestamp": raw.timestamp()[1],
        "key": as_text(raw.key()),
        "value": as_text(raw.value()),
        "headers": [[name, as_text(value)] for name, value in shown.headers],
    }
    return json.dumps(data, ensure_ascii=False)


def _lines(shown: ReadRecord) -> Iterator[str]:
    raw = shown.raw
    yield printable(f"{shown.place}  {iso(raw.timestamp()[1])}  key {content(raw.key())}")
    for name, value in shown.headers:
        yield printable(f"    {name}: {content(value)}")
    if shown.unreadable:
        yield printable(f"    headers cannot be read: {shown.unreadable}")
    yield printable(f"  {content(raw.value())}")
