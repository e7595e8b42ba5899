"""`kworker dead`: lists, shows, redrives, discards, exports and imports dead letters.

Over 300 lines: six commands with their options and help, side by side.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from kworker.cli.dead import options, view
from kworker.cli.dead.options import (
    AllOption,
    DryRunOption,
    LimitOption,
    PositionArgument,
    PositionsArgument,
    SelectOption,
    ToOption,
)
from kworker.cli.options import ConfigOption, JsonOption, RateOption, parse_rate
from kworker.cli.progress import reading
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.core import headers as names
from kworker.dead_letters.dead_letter import DeadLetter
from kworker.dead_letters.grouping import DeadLetterGroup, group_by_reason
from kworker.dead_letters.lines import as_data, format_line
from kworker.dead_letters.repair import (
    RateLimit,
    RepairPlan,
    RepairStep,
    Tally,
    skip_resolved,
    unresolved,
)
from kworker.dead_letters.resolutions import Resolution, Resolutions
from kworker.dead_letters.selection import Selection
from kworker.errors import KworkerError, UsageError

app = typer.Typer(
    help="Show and repair dead letters: records that failed for good.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="\n\n".join(
        (
            "After a fix:",
            "[bold]kworker dead list[/bold] · shows dead letters by reason and exception",
            "[bold]kworker dead show 3:17[/bold] · shows one of them in full",
            "[bold]kworker dead redrive --select exception=Timeout[/bold] · runs these again",
            "[bold]kworker dead discard --select reason=rejected[/bold] · drops these for good",
        )
    ),
)


@app.command("list")
def list_(
    config: ConfigOption = None,
    select: SelectOption = None,
    all_: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters grouped by reason and exception, the largest group first.

    Example: [bold]kworker dead list --select since=-2h[/bold]
    """
    from kworker.cli.dead.access import access

    loaded = toml_file.load(config)
    selection = options.selection(None, select, now_ms())
    tally = Tally()
    with access(loaded) as found:
        resolutions = found.dead.resolutions()
        spans = found.dead.spans(selection)
        with reading(sum(map(len, spans.values()))) as shown:
            letters = shown.of(found.dead.letters(spans))
            groups = group_by_reason(_rows(letters, selection, resolutions, tally, all_))
    view.say(found.dead.seen.unmatched(selection))
    _print_list(groups, loaded.dead_letter.topic, tally, all_=all_, as_json=as_json)


def _rows(
    letters: Iterator[DeadLetter],
    selection: Selection,
    resolutions: Resolutions,
    tally: Tally,
    all_: bool,
) -> Iterator[tuple[DeadLetter, bool]]:
    """Yields selected dead letters, each with True if it is resolved.

    Unless `all_` is set, resolved ones are skipped and counted in `tally`.
    """
    if not all_:
        for letter in unresolved(letters, selection, resolutions, tally):
            yield letter, False
        return
    for letter in letters:
        if letter in selection:
            yield letter, letter.identity in resolutions


def _print_list(
    groups: Sequence[DeadLetterGroup], topic: str, tally: Tally, *, all_: bool, as_json: bool
) -> None:
    count = sum(group.count for group in groups)
    now = now_ms()
    if as_json:
        rows = [view.group_data(group, now) for group in groups]
        document = {"topic": topic, "count": count, "hidden": tally.before, "groups": rows}
        typer.echo(json.dumps(document, indent=2))
        return
    if groups:
        view.print_groups(groups, now, resolved=all_)
    hidden = f"; {tally.before:,} resolved (--all shows them)" if tally.before else ""
    typer.echo(f"{count:,} dead letters in {topic}{hidden}")


@app.command()
def show(
    position: PositionArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show one dead letter in full: the record, its failure, and its resolution if there is one.

    Example: [bold]kworker dead show 3:17[/bold], or by the position of its record in the source
    topic, [bold]kworker dead show orders:3:9045[/bold]. If that record became a dead letter several
    times, the latest is shown.
    """
    from kworker.cli.dead.access import access

    loaded = toml_file.load(config)
    selection = options.selection([position], None, now_ms())
    with access(loaded) as found:
        spans = found.dead.spans(selection)
        letters = [each for each in found.dead.letters(spans) if each in selection]
        if not letters:
            raise KworkerError(
                f"{found.dead.topic}: no dead letter at {position}; see kworker dead list"
            )
        letter = max(letters, key=lambda each: each.failed_at)
        resolution = found.dead.resolutions().of(letter.identity)
    others = [str(each.place) for each in letters if each is not letter]
    if as_json:
        typer.echo(json.dumps(_full(letter, found.dead.topic, resolution, others), indent=2))
        return
    for line in view.lines(letter, found.dead.topic, resolution, now_ms()):
        typer.echo(line)
    if others:
        typer.echo(f"earlier dead letters of the same record: {', '.join(others)}")


def _full(
    letter: DeadLetter, topic: str, resolution: Resolution | None, others: list[str]
) -> dict[str, Any]:
    resolved = resolution and {"how": resolution.how, "by": resolution.by, "at": resolution.at}
    stack = letter.fields.get(names.STACKTRACE, "")
    return {**as_data(letter, topic), "stacktrace": stack, "resolved": resolved, "others": others}


@app.command()
def redrive(
    positions: PositionsArgument = None,
    config: ConfigOption = None,
    select: SelectOption = None,
    to: ToOption = None,
    rate: RateOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run dead letters again, each as a first attempt: the selected ones, or all unresolved ones.

    Example: [bold]kworker dead redrive --select reason=exhausted,since=-2h --rate 50/s[/bold]

    A dead letter is marked as resolved in the transaction that writes its record to the requeue
    topic, or to the topic of --to. After Ctrl-C or a crash, the same command continues where it
    stopped; nothing is redriven twice.
    """
    from kworker.cli.dead.access import access, target
    from kworker.cli.dead.repair import perform

    loaded = toml_file.load(config)
    selection = options.selection(positions, select, now_ms())
    pace = RateLimit(parse_rate(rate))
    with access(loaded, to) as found:
        where, bytes_max = target(found, to)
        work = RepairPlan("redriven", selection, where, bytes_max, limit, pace)
        perform(found, work, as_json=as_json, dry_run=dry_run)


@app.command()
def discard(
    positions: PositionsArgument = None,
    config: ConfigOption = None,
    select: SelectOption = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Discard all unresolved dead letters.")
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Mark dead letters as resolved without running them again; they stay in their topic.

    Example: [bold]kworker dead discard --select reason=rejected --dry-run[/bold]
    """
    from kworker.cli.dead.access import access
    from kworker.cli.dead.repair import perform

    loaded = toml_file.load(config)
    selection = options.selection(positions, select, now_ms())
    if everything == bool(selection):
        raise UsageError(
            "dead discard: name the dead letters by positions or --select CONDITIONS, or give"
            " --everything alone"
        )
    with access(loaded) as found:
        perform(found, RepairPlan("discarded", selection), as_json=as_json, dry_run=dry_run)


@app.command()
def export(
    positions: PositionsArgument = None,
    config: ConfigOption = None,
    select: SelectOption = None,
    all_: AllOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file.", show_default="stdout"
        ),
    ] = None,
) -> None:
    """Write each dead letter as one line of JSON; bytes that are not UTF-8 become base64.

    Example: [bold]kworker dead export --select key=alice -o dead.jsonl[/bold]

    Then edit keys, values or headers in the file, and run the dead letters again with
    [bold]kworker dead import dead.jsonl[/bold]
    """
    from kworker.cli.dead.access import access

    loaded = toml_file.load(config)
    selection = options.selection(positions, select, now_ms())
    with access(loaded) as found, _written(output) as file:
        resolutions = found.dead.resolutions()
        spans = found.dead.spans(selection)
        count = 0
        with reading(sum(map(len, spans.values()))) as shown:
            letters = shown.of(found.dead.letters(spans))
            for letter, _ in _rows(letters, selection, resolutions, Tally(), all_):
                file.write(format_line(letter, found.dead.topic).encode() + b"\n")
                count += 1
    view.say(found.dead.seen.unmatched(selection))
    if output:
        typer.echo(f"{count:,} dead letters in {output}")


@contextmanager
def _written(path: Path | None) -> Iterator[IO[bytes]]:
    """Yields stdout, or a file of mode 0600 that appears at `path` only when it is complete."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise KworkerError(f"--output {path}: cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of kworker dead export, edited or not.")
    ],
    config: ConfigOption = None,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run exported dead letters again, with the keys, values and headers of the file.

    Example: [bold]kworker dead import dead.jsonl --dry-run[/bold]

    The whole file is checked before anything is written. Dead letters that are resolved already
    are skipped, so that importing a file twice runs nothing twice.
    """
    from kworker.cli.dead.access import access
    from kworker.cli.dead.repair import RepairProgress, RepairReport, resolve
    from kworker.dead_letters.import_file import EditedFile

    loaded = toml_file.load(config)
    pace = RateLimit(parse_rate(rate))
    with access(loaded) as found:
        requeue = found.requeue()
        edited = EditedFile(file, requeue, found.bytes_max(requeue.topic))
        count = edited.check(found.dead)
        report = RepairReport("imported", requeue, Tally(), as_json)

        def steps(resolutions: Resolutions, watch: RepairProgress) -> Iterator[RepairStep]:
            lines = watch(edited.steps(found.dead.topic))
            return skip_resolved(lines, resolutions, report.tally)

        if dry_run:
            report.tally.done = sum(1 for _ in steps(found.dead.resolutions(), RepairProgress()))
            report.would_be([])
        else:
            resolve(found, report, pace, count, steps)
