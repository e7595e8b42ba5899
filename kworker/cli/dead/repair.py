"""Runs a command that resolves dead letters, and reports its outcome."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import typer

from kworker.cli.dead import view
from kworker.cli.dead.access import Access, resolver
from kworker.cli.options import INTERRUPTED
from kworker.cli.progress import ReadingProgress, reading
from kworker.clock import now_ms
from kworker.dead_letters.grouping import DeadLetterGroup, group_by_reason
from kworker.dead_letters.repair import (
    OtherTopic,
    RateLimit,
    RepairPlan,
    RepairStep,
    Requeue,
    Tally,
)
from kworker.dead_letters.resolutions import How, Resolutions
from kworker.dead_letters.resolver import Interruption, exclusive, resolve_all
from kworker.errors import ExitCode

T = TypeVar("T")


class RepairProgress:
    """Wraps an iterator: counts its items on a terminal, and ends the iteration at Ctrl-C."""

    def __init__(
        self, stop: Interruption | None = None, shown: ReadingProgress | None = None
    ) -> None:
        self._stop = stop or Interruption()
        self._shown = shown or ReadingProgress()

    def __call__(self, items: Iterable[T]) -> Iterator[T]:
        return self._shown.of(self._stop.until(items))


StepsOf = Callable[[Resolutions, RepairProgress], Iterator[RepairStep]]


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome of a command that resolves dead letters, printed as text or JSON."""

    how: How
    to: Requeue | OtherTopic | None
    tally: Tally
    as_json: bool
    misses: Callable[[], list[str]] = list  # conditions that matched nothing

    def done(self, *, interrupted: bool) -> None:
        """Prints the outcome. Raises Exit if interrupted, or if dead letters stay unresolved."""
        if not interrupted:  # an interrupted command has not read everything
            view.say(self.misses())
        if self.as_json:
            self._print({"interrupted": interrupted})
        else:
            typer.echo(f"{self.tally.done:,} {self.how}{self._target()}{self._before()}")
            self._print_left()
        if interrupted:
            typer.echo("kworker: interrupted; run the same command again to continue", err=True)
            raise typer.Exit(INTERRUPTED)
        if self.tally.left:
            raise typer.Exit(ExitCode.FAILURE)

    def would_be(self, groups: list[DeadLetterGroup]) -> None:
        """Prints the outcome of a dry run; `tally.done` counts what a real run would resolve."""
        view.say(self.misses())
        if self.as_json:
            self._print({"groups": [view.group_data(group, now_ms()) for group in groups]})
            return
        would = f"{self.tally.done:,} would be {self.how}{self._target()}"
        typer.echo(f"{would}{self._before()}")
        if groups:
            view.print_groups(groups, now_ms(), resolved=False)
        self._print_left()

    def _target(self) -> str:
        return f" to {self.to.topic}" if self.to else ""

    def _before(self) -> str:
        return f" ({self.tally.before:,} resolved before)" if self.tally.before else ""

    def _print_left(self) -> None:
        for count, why in (
            (self.tally.unreadable, "not written by kworker (foreign in kworker dead list)"),
            (self.tally.oversized, "too large for the topic"),
        ):
            if count:
                typer.echo(f"kworker: {count:,} left: {why}", err=True)

    def _print(self, more: dict[str, object]) -> None:
        to = self.to and self.to.topic
        typer.echo(json.dumps({"how": self.how, "to": to, **asdict(self.tally), **more}))


def perform(found: Access, work: RepairPlan, *, as_json: bool, dry_run: bool) -> None:
    """Resolves the dead letters that a plan selects, and prints the outcome.

    A dry run only counts them. Raises UsageError for a selected position that the dead-letter topic
    does not hold, and Unreachable if no broker answers. Unless it is a dry run, raises
    AlreadyRunning while another command resolves dead letters of this service, ConfigError if
    librdkafka refuses the properties of the producer, and Exit if the command was interrupted or if
    dead letters stay unresolved.
    """
    misses = partial(found.dead.seen.unmatched, work.selection)
    report = RepairReport(work.how, work.to, Tally(), as_json, misses)
    spans = found.dead.spans(work.selection)

    def steps(resolutions: Resolutions, watch: RepairProgress) -> Iterator[RepairStep]:
        letters = watch(found.dead.letters(spans))
        return map(work.step, work.choose(letters, resolutions, report.tally))

    if dry_run:
        letters = work.choose(found.dead.letters(spans), found.dead.resolutions(), report.tally)
        groups = group_by_reason((letter, False) for letter in letters)
        report.tally.done = sum(group.count for group in groups)
        report.would_be(groups)
    else:
        resolve(found, report, work.pace, sum(map(len, spans.values())), steps)


def resolve(
    found: Access, report: RepairReport, pace: RateLimit, total: int, steps_of: StepsOf
) -> None:
    """Resolves the dead letters that `steps_of` yields, and prints the outcome.

    `total` is an estimate of the number of records to read; the progress bar shows it. Raises
    AlreadyRunning while another command resolves dead letters of this service, and Exit if the
    command was interrupted or if dead letters stay unresolved. Raises Unreachable if no broker
    answers, and ConfigError if librdkafka refuses the properties of the producer.
    """
    config, stop = found.config, Interruption()
    writer = resolver(found, report.how, report.to)
    with exclusive(config.file, config.name), closing(writer), stop.on_signals():
        writer.open()
        resolutions = found.dead.resolutions()
        with reading(total, report.how) as shown:
            steps = steps_of(resolutions, RepairProgress(stop, shown))
            report.tally.done = resolve_all(steps, writer, pace, stop, shown.done)
    report.done(interrupted=stop.requested)
