"""`kworker replay`: runs the handler again for past records, beside the service."""

import json
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kworker import log
from kworker.cli.options import INTERRUPTED, WHEN, ConfigOption, JsonOption, parse_when
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.core.times import TimeRange
from kworker.errors import KworkerError, UsageError

if TYPE_CHECKING:
    from kworker.clients.admin import Admin
    from kworker.replay.ranges import OffsetRanges
    from kworker.replay.replay import Replay, ReplaySurvey

app = typer.Typer()

TIMEOUT_S = 15.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help=f"Replay records of this time or later: {WHEN}"),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help='Replay records before this time; "-0s" is now.'),
]


@app.command(rich_help_panel="Repair")
def replay(
    config: ConfigOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Replay everything the topics still hold.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run events that idempotency has seen before, too.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Count the records that would be replayed, and run nothing."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the handler again for past records, beside the service.

    Example: [bold]kworker replay --from 2026-11-20T10:00 --to -1h --dry-run[/bold]

    Replays records of the source topics with FROM ≤ timestamp < TO that the service had finished
    when the replay started. Neither the service nor its positions change. Results carry the
    header `kworker-replay`: tables leave them out, unless they set `replays = true`. With
    idempotency, an event that was done before is skipped; the results of any other event are
    published without that header.

    Retries wait in this process; dead letters are written as usual. This process is not
    supervised: handler_timeout does not apply, and a handler that kills its process ends the
    replay (the service goes on).

    Ctrl-C waits up to drain_timeout for records that have begun; a second Ctrl-C does not wait.
    """
    from kworker.replay.ranges import OffsetRanges

    loaded = toml_file.load(config)
    window = _window(from_, to, every)
    admin = _admin(loaded)
    found = _survey(loaded, admin, window)
    ranges = OffsetRanges(found.spans, window, found.settled)
    if dry_run or not found.spans:
        _print_plan(loaded, ranges, as_json=as_json)
    else:
        _run(loaded, admin, ranges, force=force, as_json=as_json)


def _window(from_: str | None, to: str | None, every: bool) -> TimeRange:
    """Returns the range of time that the options give. Raises UsageError for wrong options."""
    if every and not from_ and not to:
        return TimeRange()
    if every or not from_ or not to:
        raise UsageError("replay: expected --from and --to, or --all")
    now = now_ms()
    window = TimeRange(parse_when("--from", from_, now), parse_when("--to", to, now))
    if window.empty:
        raise UsageError(f"replay: --to {to} must be later than --from {from_}")
    return window


def _survey(config: Config, admin: "Admin", window: TimeRange) -> "ReplaySurvey":
    from kworker.replay.replay import survey

    return survey(config, admin, window)


def _print_plan(config: Config, ranges: "OffsetRanges", *, as_json: bool) -> None:
    """Prints the number of records that a replay would run, and their offsets.

    If the replay has a range of time, this function reads the records to count them, since their
    timestamps may be out of order. Without a range of time, it prints the number of offsets: the
    replay would run at most that many records.
    """
    counts = _counts(config, ranges) if ranges.has_time_bounds or not ranges.spans else None
    rows = [
        {
            "topic": topic,
            "partition": number,
            "from": span.start,
            "to": span.stop,
            "records": None if counts is None else counts[topic, number],
        }
        for (topic, number), span in ranges.spans.items()
    ]
    records = None if counts is None else sum(counts.values())
    if as_json:
        document = {"records": records, "records_max": ranges.total, "partitions": rows}
        typer.echo(json.dumps(document))
        return
    for row in rows:
        within = "" if counts is None else ": {records:,} of that time".format(**row)
        typer.echo("{topic}/{partition}: offsets from {from} to {to}".format(**row) + within)
    if records == 0:
        typer.echo(f"nothing to replay: {config.name} has settled no record of that time")
    elif records is None:
        typer.echo(f"at most {ranges.total:,} records would be replayed")
    else:
        typer.echo(f"{records:,} records would be replayed")


def _counts(config: Config, ranges: "OffsetRanges") -> dict[tuple[str, int], int]:
    from kworker.clients.reader import TopicReader

    reader = TopicReader(admin_properties(config), config.name, timeout_s=TIMEOUT_S)
    with closing(reader):
        return ranges.count_records(reader.records)


def _run(
    config: Config, admin: "Admin", ranges: "OffsetRanges", *, force: bool, as_json: bool
) -> None:
    """Runs the replay and prints its outcome. Raises Exit if it was interrupted."""
    from kworker.replay.replay import Replay, load_topic_limits, replay_config

    identity = secrets.token_hex(3)
    group = f"{config.name}.replay.{identity}"
    log.configure(config.log)
    log.identify(replay=identity)
    facts = load_topic_limits(config, admin)
    running = Replay(replay_config(config, group, force=force), identity, ranges, facts)
    _say(f"replay {identity}: at most {ranges.total:,} records; group {group}")
    interrupts = Interrupts()
    try:
        with interrupts.counted(), _shown(ranges, interrupts) as show:
            running.run(lambda: interrupts.count, show)
    finally:
        if interrupts.count < 2:
            _delete_group(admin, group)
        else:
            _say(
                f"the group {group} was not deleted; the brokers remove it when its offsets expire"
            )
    _report(config, identity, running, interrupted=interrupts.count > 0, as_json=as_json)


def _delete_group(admin: "Admin", group: str) -> None:
    try:
        admin.delete_group(group)
    except KworkerError as error:
        _say(f"the group {group} could not be deleted, which does no harm: {error}")


def _report(
    config: Config, identity: str, done: "Replay", *, interrupted: bool, as_json: bool
) -> None:
    counts, left = done.counts, done.in_hand
    if as_json:
        document = {"replay": identity, **asdict(counts), "left": left, "interrupted": interrupted}
        typer.echo(json.dumps(document))
    else:
        tombstones = f" {counts.dropped:,} tombstones skipped," if counts.dropped else ""
        typer.echo(
            f"replay {identity} of {config.name}: {counts.replayed:,} replayed,"
            f" {counts.skipped:,} skipped as seen,{tombstones} {counts.dead:,} dead letters,"
            f" {counts.failed:,} runs failed"
        )
    if interrupted:
        _say(f"interrupted; {left:,} records in hand did not end" if left else "interrupted")
        raise typer.Exit(INTERRUPTED)


class Interrupts:
    """Counts SIGINT and SIGTERM: after one the replay drains, after two it ends at once."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts signals while the `with` block runs; then restores the former signal handlers."""
        before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def _shown(ranges: "OffsetRanges", interrupts: Interrupts) -> Iterator[Any]:
    """Yields a function that draws a progress bar; the replay calls it in each turn of its loop."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    counted = TextColumn("{task.fields[counts]}")
    with Progress(*columns, counted, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("read", total=ranges.total, counts="")
        seen = 0

        def show(running: "Replay") -> None:
            nonlocal seen
            counts = running.counts
            text = (
                f"{counts.replayed:,} replayed, {running.in_hand:,} in hand, {counts.dead:,} dead"
            )
            bar.update(task, completed=ranges.read, counts=text)
            if interrupts.count > seen:
                seen = interrupts.count
                _say("interrupted: waiting for the records in hand; Ctrl-C again ends at once")

        yield show


def _say(text: str) -> None:
    """Prints a line to stderr, since stdout has the result of the command."""
    print(f"kworker: {text}", file=sys.stderr, flush=True)


def _admin(config: Config) -> "Admin":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
