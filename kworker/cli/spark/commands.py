"""`kworker spark`: the job in the foreground, how far its tables are, and their repair."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kworker.cli.options import ConfigOption, JsonOption
from kworker.cli.spark import compact_table, reset_table
from kworker.config import toml_file
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
    from kworker.spark import process  # other commands need no pyspark

    # The same process from here on: signals and the exit code are the job's.
    process.run(config, once=once)


@app.command()
def reset(
    where: Annotated[
        str, typer.Option("--from", metavar="WHERE", help=f"Where to: {reset_table.WHERE}.")
    ],
    config: ConfigOption = None,
    table: Annotated[
        str | None, typer.Option(help="Which table; may be left out if there is one only.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin a table's checkpoint anew, when it is damaged or the table shall be filled again.

    Example: [bold]kworker spark reset --table orders --from committed --dry-run[/bold]

    The job must be stopped. The old checkpoint is kept beside the new one, under a name with the
    date. A table that appends, without dedupe, gets the results that it reads again twice: what
    that will be is said. An offset that a partition does not hold becomes the nearest that it does.
    Checkpoints in an object store or HDFS are reached by a Spark of its own, some seconds more.
    Where each host has checkpoints of its own, reset on the host whose job starts next.
    """
    loaded = toml_file.load(config)
    with reset_table.begin(loaded, table) as begin:
        begin.perform(where, dry_run=dry_run, as_json=as_json)


@app.command()
def compact(
    config: ConfigOption = None,
    table: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make few large files of the many small ones that batches leave, in a Spark of its own.

    Example: [bold]kworker spark compact --table orders[/bold]

    The job must be stopped, and one that starts meanwhile waits; but for tables that are only
    appended to, and in a catalog, or where two commits at once exclude each other (HDFS, ABFS,
    GCS). Delta and Iceberg only. The old files stay, for readers and for time travel, until you
    vacuum them.
    """
    compact_table.perform(toml_file.load(config), table, as_json=as_json)


@app.command()
def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the state of the job and of each table, as it wrote it last."""
    settings = toml_file.load(config)
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
    counted = ("batch", "rows", "rescued", "aside", "behind")
    shown = Table("table", "state", *counted, "reason", box=None)
    for table in told["tables"]:
        numbers = [table.get(name) for name in counted]
        texts = ["" if number is None else f"{number:,}" for number in numbers]
        shown.add_row(table["name"], table["state"], *texts, table["reason"])
    Console().print(shown)
