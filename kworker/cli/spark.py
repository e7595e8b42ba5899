"""`kworker spark`: runs the Spark job in the foreground, and tells how far its tables are."""

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kworker import config_file
from kworker.cli.options import ConfigOption, JsonOption
from kworker.errors import NotRunning
from kworker.spark.progress import read_progress

app = typer.Typer(
    help="The Spark job, which lands results in tables.",
    no_args_is_help=True,
)


@app.command()
def run(
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the tables hold all that is there now.")
    ] = False,
) -> None:
    """Run the job here, until TERM or INT."""
    found = config_file.find(config)
    command = [sys.executable, "-m", "kworker.spark", "--config", str(found)]
    # The same process from here on: signals and the exit code are the job's.
    os.execv(sys.executable, [*command, "--once"] if once else command)


@app.command()
def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the state of the job and of each table, as it wrote it last."""
    settings = config_file.load(config)
    told = read_progress(settings.state_dir)
    if told is None:
        raise NotRunning(f"the Spark job of {settings.name} has not run yet: kworker spark run")
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _show(told)


def _show(told: dict[str, Any]) -> None:
    reason = f": {told['reason']}" if told["reason"] else ""
    typer.echo(f"{told['state']} (process {told['pid']}){reason}")
    shown = Table("table", "state", "batch", "rows", "rescued", "behind", "reason", box=None)
    for table in told["tables"]:
        batch = "" if table["batch"] is None else str(table["batch"])
        counts = [f"{table[name]:,}" for name in ("rows", "rescued", "behind")]
        shown.add_row(table["name"], table["state"], batch, *counts, table["reason"])
    Console().print(shown)
