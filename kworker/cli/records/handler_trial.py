"""The end of a handler's run under `kworker try`, and how the command shows it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kworker.cli.text import content, printable
from kworker.config.model import Config
from kworker.core.failure import Failure
from kworker.core.headers import Source
from kworker.core.outcome import Output
from kworker.core.record_lines import as_text


@dataclass(frozen=True, slots=True)
class HandlerTrial:
    """The end of one run: its results, or the exception and what a worker would do then.

    If `skipped` is True, nothing was run, because the record is a tombstone.
    """

    source: Source
    attempt: int
    took_s: float
    results: Sequence[Output] = ()
    error: BaseException | None = None
    next: str = ""
    skipped: bool = False


def lines(trial: HandlerTrial, config: Config) -> Iterator[str]:
    """Yields the lines that show a trial to a person, with control characters escaped."""
    source = trial.source
    place = f"{source.topic}:{source.partition}:{source.offset}"
    yield f"{place}, attempt {trial.attempt} of {len(config.retry.delays) + 1}"
    if trial.skipped:
        yield 'a tombstone, skipped because of source.tombstones = "skip"; nothing was run'
        return
    if trial.error is not None:
        failure = Failure.in_full(trial.error)
        yield printable(failure.stack or str(failure)).rstrip()
        yield f"raised after {trial.took_s * 1000:,.1f} ms; next: {trial.next}"
        return
    for output in trial.results:
        yield printable(f"to {output.topic}  key {content(output.key)}")
        for name, value in output.headers:
            yield printable(f"    {name}: {content(value)}")
        yield printable(f"  {content(output.value)}")
    count = len(trial.results)
    results = "1 result" if count == 1 else f"{count:,} results"
    yield f"returned after {trial.took_s * 1000:,.1f} ms, {results}; nothing was written"


def as_data(trial: HandlerTrial, config: Config) -> dict[str, Any]:
    """Returns a trial as a JSON object."""
    failure = None if trial.error is None else Failure.in_full(trial.error)
    return {
        "source": str(trial.source),
        "attempt": trial.attempt,
        "attempts": len(config.retry.delays) + 1,
        "seconds": trial.took_s,
        "skipped": trial.skipped,
        "outputs": [_output(output) for output in trial.results],
        "failure": failure
        and {
            "kind": failure.kind,
            "exception": failure.exception,
            "message": failure.message,
            "stack": failure.stack,
            "next": trial.next,
        },
    }


def _output(output: Output) -> dict[str, Any]:
    return {
        "topic": output.topic,
        "key": as_text(output.key),
        "value": as_text(output.value),
        "headers": [[name, as_text(value)] for name, value in output.headers],
    }
