"""`kworker spark compact`: merges the many small files that batches write into a few."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from kworker.cli.spark.access import chosen, configured, held
from kworker.config.model import Config, TableSettings
from kworker.errors import AlreadyRunning, KworkerError
from kworker.spark.checkpoints.guard import takes_one_writer
from kworker.spark.checkpoints.lease import Lease

if TYPE_CHECKING:
    from rich.status import Status

    from kworker.spark.compaction import Compacted


def perform(config: Config, name: str | None, *, as_json: bool) -> None:
    """Compacts all tables, or the table `name`, and prints the outcome of each.

    Raises a KworkerError if Spark is not configured or fails, if the table `name` is missing or
    cannot be compacted, or if another process's lock leaves no table to compact.
    """
    spark = configured(config)
    wanted = spark.tables if name is None else [chosen(spark, name)]
    with ExitStack() as stack:
        lease, busy = _lease(config, wanted, stack)
        refusals = _refusals(wanted, busy)
        if name is not None and refusals:
            raise refusals[name]
        todo = {table.name for table in wanted} - set(refusals)
        if busy and not todo:
            raise AlreadyRunning(busy)
        _print(_done(config, todo, lease), refusals, as_json=as_json)


def _lease(
    config: Config, tables: Sequence[TableSettings], stack: ExitStack
) -> tuple[Lease | None, str]:
    """Takes the lease (the lock on the checkpoints) if a table allows one writer only.

    Returns the lease or None, and a message if another process holds the lease, else "".
    """
    if any(map(takes_one_writer, tables)):
        try:
            return stack.enter_context(held(config)), ""
        except AlreadyRunning as error:
            return None, str(error)
    return None, ""


def _refusals(tables: Sequence[TableSettings], busy: str) -> dict[str, KworkerError]:
    """Returns an error for each table that cannot be compacted, by the table's name.

    A table cannot be compacted if its format or mode rules that out. Nor can it be if it allows one
    writer only, and another process holds the lock on the checkpoints. `busy` is a message about
    that process, or "" if there is none.
    """
    from kworker.spark.compaction import refusal

    found = {t.name: KworkerError(f"table {t.name}: {refusal(t)}") for t in tables if refusal(t)}
    taken = [table.name for table in tables if busy and takes_one_writer(table)]
    return {t: AlreadyRunning(f"table {t} allows one writer only: {busy}") for t in taken} | found


def _done(config: Config, todo: Collection[str], lease: Lease | None) -> "list[Compacted]":
    # Spark takes a second to import; other verbs must not wait for it.
    from kworker.spark.compaction import compact

    if not todo:
        return []
    with _shown() as status:
        return list(compact(config, todo, status.update, lease))


@contextmanager
def _shown() -> "Iterator[Status]":
    """Shows a status line on the terminal while the `with` block runs.

    Yields the status, through which the compaction changes the text of the line.
    """
    from rich.console import Console

    with Console(stderr=True).status("starting Spark") as status:
        yield status


def _print(
    done: "Sequence[Compacted]", refusals: Mapping[str, KworkerError], *, as_json: bool
) -> None:
    if as_json:
        refused = [{"table": name, "refused": str(error)} for name, error in refusals.items()]
        typer.echo(json.dumps([*map(asdict, done), *refused], indent=2))
        return
    for each in done:
        became = (
            f"{each.removed:,} files became {each.added:,}" if each.removed else "nothing to do"
        )
        typer.echo(f"{each.table}: {became}")
    for error in refusals.values():
        typer.echo(f"kworker: {error}", err=True)
