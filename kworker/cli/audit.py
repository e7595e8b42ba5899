"""`kworker audit`: accounts for every source record, and lists duplicate and missing outcomes."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kworker.cli.options import WHEN, ConfigOption, JsonOption, parse_when
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.core.audit import Outcome
from kworker.core.message import RawMessage
from kworker.core.times import TimeRange, iso
from kworker.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

    from kworker.audit.audit import AuditReport, AuditScope, TableReport
    from kworker.spark.tables.audited_table import AuditedTable, TableAuditScope

app = typer.Typer()
TIMEOUT_S = 20.0
_EVERY = 1_000  # records between two changes of the progress bar

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help=f"Audit records of this time or later: {WHEN}"),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Audit records before this time."),
]
_LINES = {
    Outcome.RESULT: "with a result ({results:,} results)",
    Outcome.DEAD: "dead letters, open: kworker dead list",
    Outcome.DISCARDED: "dead letters, discarded",
    Outcome.SENT_ELSEWHERE: "dead letters, redriven to another topic",
    Outcome.WAITING: "waiting for a retry{due}",
    Outcome.NO_RESULT: "settled without a result",
    Outcome.NOT_SETTLED: "not settled: in hand, or not taken yet",
}


@app.command(rich_help_panel="Repair")
def audit(
    config: ConfigOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    expect_results: Annotated[
        bool,
        typer.Option(
            "--expect-results",
            help="The handler returns a result for every record: a missing result is a hole.",
        ),
    ] = False,
    no_tables: Annotated[
        bool, typer.Option("--no-tables", help="Leave out the tables, and do not start Spark.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="List at most this many problems.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Account for every record of the source topics; list doubles and holes.

    Example: [bold]kworker audit --from 2026-11-24T00:00 --to -1h[/bold]

    Reads topics, committed positions and tables, and nothing of the service itself, which may run
    or not. Each source record with FROM ≤ timestamp < TO is counted once: with a result, as a dead
    letter, waiting for a retry, settled without a result (the handler returned none, idempotency
    had seen it, or it lies before the group's first position), or not settled.

    A double is a record with the same result twice, with a result and an open (unresolved) dead
    letter, with two open dead letters, with two rows for one result, or with a row but no result. A
    hole is a result that is missing although later results of its record exist, a retry that was
    lost, or a result without a row. Exit code 1: there is a double or a hole. Replays are left out.
    A table with a transform, or in another mode than append, is not compared.

    It needs free space in $TMPDIR, about 100 bytes for each record, result and retry.
    """
    from kworker.audit.audit import AuditScope

    loaded = toml_file.load(config)
    scope = AuditScope(_range(from_, to), expect_results, limit)
    with _shown() as shown:
        report = _audited(loaded, scope, shown, with_tables=not no_tables)
    if as_json:
        typer.echo(json.dumps(_data(loaded, report), indent=2))
    else:
        _print(loaded, report)
    if not report.clean:
        raise typer.Exit(ExitCode.FAILURE)


def _range(from_: str | None, to: str | None) -> TimeRange:
    now = now_ms()
    found = TimeRange(
        None if from_ is None else parse_when("--from", from_, now),
        None if to is None else parse_when("--to", to, now),
    )
    if found.empty:
        raise UsageError(f"audit: --to {to} must be later than --from {from_}")
    return found


def _audited(
    config: Config, scope: "AuditScope", shown: "AuditBar", *, with_tables: bool
) -> "AuditReport":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.audit.audit import Audit
    from kworker.audit.snapshot import take_snapshot
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader

    properties = admin_properties(config)
    admin = Admin(properties, timeout_s=TIMEOUT_S)
    snapshot = take_snapshot(config, admin, scope.time_range.from_ms)
    shown.begin(sum(map(len, snapshot.spans.values())))

    def tables(scope: "TableAuditScope") -> "Iterable[AuditedTable]":
        if config.spark is None or not with_tables:
            return ()
        # Spark takes a second to import.
        from kworker.spark.tables.table_audit import audit_tables

        return audit_tables(config, scope, shown.say)

    with closing(TopicReader(properties, config.name, timeout_s=TIMEOUT_S)) as reader:
        return Audit(snapshot, scope, reader.records, shown).run(tables)


class AuditBar:
    """Shows on a terminal how far the audit is; shows nothing without a terminal."""

    def __init__(self, progress: "Progress | None" = None) -> None:
        self._progress = progress
        if progress:
            self._task = progress.add_task("positions", total=None)

    def begin(self, total: int) -> None:
        """Sets the number of offsets that will be read, which is the full length of the bar."""
        if self._progress:
            self._progress.update(self._task, total=total)

    def reading(self, topic: str, raws: Iterator[RawMessage]) -> Iterator[RawMessage]:
        self.say(topic)
        count = 0
        for count, raw in enumerate(raws, 1):
            if self._progress and not count % _EVERY:
                self._progress.advance(self._task, _EVERY)
            yield raw
        if self._progress:
            self._progress.advance(self._task, count % _EVERY)

    def judging(self, records: int) -> None:
        self.say(f"{records:,} records judged")

    def say(self, what: str) -> None:
        """Labels the bar with `what`, such as the topic that is read now."""
        if self._progress:
            self._progress.update(self._task, description=what)


@contextmanager
def _shown() -> Iterator[AuditBar]:
    if not sys.stderr.isatty():
        yield AuditBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield AuditBar(progress)


def _print(config: Config, report: "AuditReport") -> None:
    topics = ", ".join(report.topics)
    typer.echo(
        f"{config.name}: {report.records:,} records of {topics}{_period(report.time_range)},"
        f" as of {iso(report.taken_ms)}"
    )
    left_ms = report.next_due_ms - now_ms()
    due = f"; the next is due in {left_ms / 1000:,.0f} s" if left_ms > 0 else ""
    for outcome, line in _LINES.items():
        text = line.format(results=report.results, due=due)
        typer.echo(f"{report.outcomes[outcome]:>12,}  {text}")
    for table in report.tables:
        typer.echo(_of_table(table))
    if report.gone:
        typer.echo(f"not counted: {report.gone:,} records that the source topics no longer hold")
    for problem in report.problems:
        places = f": {', '.join(problem.places)}" if problem.places else ""
        typer.echo(f"{problem.kind:<6}  {problem.record}  {problem.what}{places}")
    found = report.doubles + report.holes
    if more := found - len(report.problems):
        typer.echo(f"… and {more:,} more: --limit {found}")
    if report.clean:
        typer.echo("no doubles and no holes: every record is accounted for")
    else:
        typer.echo(f"doubles: {report.doubles:,}, holes: {report.holes:,}")


def _period(found: TimeRange) -> str:
    begin = "" if found.from_ms is None else f" from {iso(found.from_ms)}"
    return begin + ("" if found.to_ms is None else f" to {iso(found.to_ms)}")


def _of_table(table: "TableReport") -> str:
    if table.refused:
        return f"table {table.name} is not audited: {table.refused}"
    faults = {
        "results without a row": table.missing,
        "results with several rows": table.repeated,
    }
    told = "".join(f", {count:,} {what}" for what, count in faults.items() if count)
    return f"table {table.name}: {table.rows:,} rows{told}"


def _data(config: Config, report: "AuditReport") -> dict[str, Any]:
    return {
        "name": config.name,
        "taken_ms": report.taken_ms,
        "from_ms": report.time_range.from_ms,
        "to_ms": report.time_range.to_ms,
        "topics": report.topics,
        "records": report.records,
        "outcomes": {str(outcome): report.outcomes[outcome] for outcome in Outcome},
        "results": report.results,
        "gone": report.gone,
        "next_due_ms": report.next_due_ms or None,
        "tables": [asdict(table) for table in report.tables],
        "doubles": report.doubles,
        "holes": report.holes,
        "problems": [asdict(problem) for problem in report.problems],
    }
