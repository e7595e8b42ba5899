"""`kworker spark`: runs the job in the foreground, shows its progress, and repairs tables."""

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
    help="Run the Spark job that writes results to tables; show and repair the tables.",
    no_args_is_help=True,
)


@app.command()
def run(
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all results that exist now are in the tables.")
    ] = False,
) -> None:
    """Run the Spark job in the foreground, until SIGTERM or Ctrl-C."""
    from kworker.spark import process  # imported only here: other commands need no pyspark

    # The job takes over this process: it handles signals and sets the exit code.
    process.run(config, once=once)


@app.command()
def reset(
    where: Annotated[
        str, typer.Option("--from", metavar="WHERE", help=f"Begin at: {reset_table.WHERE}.")
    ],
    config: ConfigOption = None,
    table: Annotated[
        str | None, typer.Option(help="Reset this table; not needed if there is only one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the new positions, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Replace a table's checkpoint, when it is damaged or the table is to be filled again.

    Example: [bold]kworker spark reset --table orders --from committed --dry-run[/bold]

    The job must be stopped. The old checkpoint is kept beside the new one, under a name with the
    date. A table in mode append without dedupe gets a second row for every result that is read
    again; the command says how many. If a partition does not hold the offset that you choose, the
    job begins at the nearest offset that the partition holds. For checkpoints in an object store or
    HDFS the command starts Spark, which takes some seconds. If each host has its own checkpoints,
    run this command on the host where you will start the job next.
    """
    loaded = toml_file.load(config)
    with reset_table.begin(loaded, table) as begin:
        begin.perform(where, dry_run=dry_run, as_json=as_json)


@app.command()
def compact(
    config: ConfigOption = None,
    table: Annotated[str | None, typer.Option(help="Compact only this table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge the many small files that batches write into a few large ones (Delta, Iceberg).

    Example: [bold]kworker spark compact --table orders[/bold]

    Stop the job first; a job that is started meanwhile waits. You may leave the job running for a
    table to which rows are only appended, if the table is in a catalog or on HDFS, ABFS or GCS:
    there, two commits at the same time cannot both succeed. The old files stay, for readers and for
    time travel, until you vacuum them.
    """
    compact_table.perform(toml_file.load(config), table, as_json=as_json)


@app.command()
def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of the job and of each table, as the job last reported it."""
    settings = toml_file.load(config)
    progress = read_progress(settings.state_dir)
    if progress is None:
        raise NotRunning(
            f"the Spark job of {settings.name} has not run yet; start it with: kworker spark run"
        )
    if as_json:
        typer.echo(json.dumps(progress, indent=1))
    else:
        _show(progress)


def _show(progress: dict[str, Any]) -> None:
    reason = f": {progress['reason']}" if progress["reason"] else ""
    typer.echo(f"{progress['state']} (process {progress['pid']}){reason}")
    counted = ("batch", "rows", "rescued", "aside", "behind")
    shown = Table("table", "state", *counted, "reason", box=None)
    for table in progress["tables"]:
        numbers = [table.get(name) for name in counted]
        texts = ["" if number is None else f"{number:,}" for number in numbers]
        shown.add_row(table["name"], table["state"], *texts, table["reason"])
    Console().print(shown)
