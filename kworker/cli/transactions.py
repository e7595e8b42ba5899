"""`kworker transactions`: what hides the groups' positions for ever, and ending it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.clients.hanging_transactions import OFFSETS, Tool, Transaction, offsets_partition
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.config.topics import own_topics, source_topics
from kworker.errors import KworkerError, UsageError

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

app = typer.Typer(
    help="Transactions that hang and hide committed positions: list or abort them.",
    no_args_is_help=True,
)

TIMEOUT_S = 20.0
_OLDER_MIN = 1

OlderOption = Annotated[
    int, typer.Option(min=0, metavar="MINUTES", help="Only those that are so old.")
]


@app.command("list")
def show(
    config: ConfigOption = None, older: OlderOption = _OLDER_MIN, as_json: JsonOption = False
) -> None:
    """Show transactions that hang in the positions of the service's groups, or in its topics.

    Example: [bold]kworker transactions list[/bold]

    One hangs when no coordinator knows it any more, so that nothing ends it: seen when the only
    broker of a partition was stopped while a transaction was being committed. What is merely
    open ends with its producer, or by its time-out. Kafka's own tool is asked; it needs Java
    17, and is fetched once.
    """
    loaded = toml_file.load(config)
    found = _found(loaded, older)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    for each in found:
        typer.echo(f"{each.place}  {_told(each)}")
    if not found:
        typer.echo("no transaction is open in the positions of the service's groups, and none")
        typer.echo("hangs in its topics")


@app.command()
def abort(
    config: ConfigOption = None,
    older: OlderOption = _OLDER_MIN,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Abort what hangs in the positions of the service's groups, so that they can be read again.

    Example: [bold]kworker transactions abort --yes[/bold]

    Nothing is lost: the positions that it held are not committed, so the records behind them
    come again, and what that one transaction had written is there twice. What hangs in other
    topics ends with the next transaction of its producer, and is left alone.
    """
    loaded = toml_file.load(config)
    tool, admin = _tool(loaded), _admin(loaded)
    hanging = [each for each in _hanging(loaded, tool, admin, older) if each.topic == OFFSETS]
    if not hanging:
        raise KworkerError(
            "no transaction hangs in the positions of the service's groups: one that is merely"
            " open ends with its producer, or by its time-out (kworker transactions list)"
        )
    for each in hanging:
        typer.echo(f"{each.place}  {_told(each)}")
    typer.echo("Its records come again: nothing is lost, what it had written is there twice.")
    if not yes and not typer.confirm(f"Abort {len(hanging)}?"):
        raise UsageError("nothing was aborted")
    for each in hanging:
        tool.abort(each)
        typer.echo(f"{each.place} is aborted")


def _found(config: Config, older_min: int) -> list[Transaction]:
    """Those that hang, and in the groups' positions also those that are merely open."""
    tool, admin = _tool(config), _admin(config)
    hanging = _hanging(config, tool, admin, older_min)
    places = {each.place for each in hanging}
    open_now = [each for n in _offsets_partitions(config, admin) for each in tool.open_in(n)]
    return [*hanging, *(each for each in open_now if each.place not in places)]


def _hanging(config: Config, tool: Tool, admin: "Admin", older_min: int) -> list[Transaction]:
    """Once each, though every replica tells of it."""
    ours = {*_topics(config, admin)}
    positions = _offsets_partitions(config, admin)
    every = [each for broker in admin.brokers() for each in tool.hanging(broker, older_min)]
    kept = (
        each
        for each in every
        if each.topic in ours or (each.topic == OFFSETS and each.partition in positions)
    )
    return _once(kept)


def _once(transactions: Iterable[Transaction]) -> list[Transaction]:
    return list({each.place: each for each in transactions}.values())


def _topics(config: Config, admin: "Admin") -> Sequence[str]:
    return [*source_topics(config, admin.topic_names()), *own_topics(config)]


def _offsets_partitions(config: Config, admin: "Admin") -> list[int]:
    """Where Kafka keeps the positions of the workers' group and of the delay process's."""
    if not (found := admin.topics([OFFSETS])):
        return []  # no group has committed anything yet
    count = found[OFFSETS].partitions
    groups = (config.name, f"{config.name}.delay")
    return sorted({offsets_partition(group, count) for group in groups})


def _told(transaction: Transaction) -> str:
    who = f"producer {transaction.producer}"
    if transaction.transactional_id:
        who += f" ({transaction.transactional_id})"
    if not transaction.hangs:
        return f"open, of {who}: ends with it, or by its time-out"
    if transaction.topic == OFFSETS:
        return f"hangs, of {who}: hides positions until kworker transactions abort"
    return f"hangs, of {who}: ends with the next transaction of that producer"


def _tool(config: Config) -> Tool:
    return Tool(admin_properties(config), lambda line: typer.echo(f"kworker: {line}", err=True))


def _admin(config: Config) -> "Admin":
    # Imported by what needs a broker only: `kworker --help` does not.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
