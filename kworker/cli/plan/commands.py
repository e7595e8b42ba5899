"""`kworker plan`: estimates the workers and partitions that a rate needs, and their memory."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kworker.cli.options import PREPARE_PANEL, ConfigOption, JsonOption, parse_rate
from kworker.cli.plan import view
from kworker.cli.plan.estimate import PlanQuestion, estimate
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.core.capacity import Load
from kworker.core.duration import parse_duration
from kworker.errors import ConfigError, UsageError

app = typer.Typer()

_HEADROOM = 1.5

LoadOption = Annotated[str, typer.Option("--rate", metavar="N/s", help="Records a second.")]
HandlerTimeOption = Annotated[
    str,
    typer.Option(metavar="DURATION", help='Mean time of a handler for one record, such as "50ms".'),
]
P99Option = Annotated[
    str | None,
    typer.Option(
        "--p99", metavar="DURATION", help="Time in which 99 % of them end: for the time-outs."
    ),
]
HeadroomOption = Annotated[
    float, typer.Option(min=1.0, help="Plan for this many times the rate, to catch up.")
]
ProcessesOption = Annotated[
    int | None, typer.Option(min=1, help="Plan for this many.", show_default="as needed")
]
RecordBytesOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Mean size of a record: for the memory.")
]
AsyncOption = Annotated[
    bool, typer.Option("--async", help="Handlers are `async def`: concurrency, not threads.")
]


@app.command(rich_help_panel=PREPARE_PANEL)
def plan(
    rate: LoadOption,
    handler_time: HandlerTimeOption,
    p99: P99Option = None,
    headroom: HeadroomOption = _HEADROOM,
    processes: ProcessesOption = None,
    record_bytes: RecordBytesOption = None,
    is_async: AsyncOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the processes, threads and partitions that a rate needs, and their memory.

    Example: [bold]kworker plan --rate 2000/s --handler-time 50ms --p99 400ms[/bold]

    The number of handlers that run at once is the rate times the handler time (Little's law). One
    process is assumed to do at most as many records a second as it did in kworker's benchmark, on
    two cores. Handlers that use the CPU need more processes than estimated, because the threads of
    one process share a core. When the service runs, kworker lag shows whether the estimate holds.

    If there is a kworker.toml, the estimate uses its guarantee, idempotency, ordering and limits,
    and the command says which rate the configured workers can do at most. The number of processes
    is that of all hosts together.
    """
    question = PlanQuestion(
        Load(_rate(rate), _seconds("--handler-time", handler_time), headroom),
        None if p99 is None else _seconds("--p99", p99),
        record_bytes,
        processes,
        is_async,
    )
    if question.p99_s is not None and question.p99_s < question.load.handler_s:
        raise UsageError(
            f"--p99 {p99}: expected at least the mean time, --handler-time {handler_time}"
        )
    loaded = _load(config)
    found = estimate(question, loaded)
    if as_json:
        typer.echo(json.dumps(view.as_data(question, found, loaded), indent=2))
        return
    for line in view.lines(question, found, loaded):
        typer.echo(line)


def _rate(text: str) -> float:
    rate = parse_rate(text)
    assert rate is not None
    return rate


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"the value of {option} is wrong: {error}") from None
    if not seconds:
        raise UsageError(f"the value of {option} is wrong: expected at least 1ms")
    return seconds


def _load(named: Path | None) -> Config | None:
    """Returns the configuration, or None if there is none. Raises ConfigError if it is wrong."""
    if named is None and not os.environ.get("KWORKER_CONFIG"):
        try:
            toml_file.find()
        except ConfigError:
            return None
    return toml_file.load(named)
