"""`kworker transactions`: lists and aborts hanging transactions that hide committed positions."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.clients.hanging_transactions import OFFSETS, Tool, Transaction, offsets_partition
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties, delay_group
from kworker.config.model import Config
from kworker.config.topics import own_topics, source_topics
from kworker.errors import KworkerError, UsageError

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

app = typer.Typer(
    help="List or abort hanging transactions, which hide committed positions.",
    no_args_is_help=True,
)

TIMEOUT_S = 20.0
_OLDER_MIN = 1

OlderOption = Annotated[
    int, typer.Option(min=0, metavar="MINUTES", help="Only transactions at least this old.")
]


@app.command("list")
def show(
    config: ConfigOption = None, older: OlderOption = _OLDER_MIN, as_json: JsonOption = False
) -> None:
    """Show hanging transactions that affect the service's committed positions or its topics.

    Example: [bold]kworker transactions list[/bold]

    A transaction hangs if no coordinator knows it: then it does not end by itself. Transactions
    have come to hang when the only broker of a partition was stopped during a commit. A transaction
    that is merely open ends with its producer, or by its time-out. This command runs Kafka's own
    tool, which needs Java 17 and is downloaded at its first use.
    """
    loaded = toml_file.load(config)
    found = _found(loaded, older)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    for each in found:
        typer.echo(f"{each.place}  {_described(each)}")
    if not found:
        typer.echo("no transaction is open in the committed positions of the service, and none")
        typer.echo("hangs in its topics")


@app.command()
def abort(
    config: ConfigOption = None,
    older: OlderOption = _OLDER_MIN,
    yes: Annotated[bool, typer.Option("--yes", help="Abort without asking.")] = False,
) -> None:
    """Abort hanging transactions that hide the committed positions of the service.

    Example: [bold]kworker transactions abort --yes[/bold]

    Nothing is lost: the positions in an aborted transaction are not committed, so the records
    before these positions run again, and their outputs are written a second time. This command
    does not abort a transaction that hangs in a topic of the service and hides no positions: that
    transaction ends with the next transaction of its producer.
    """
    loaded = toml_file.load(config)
    tool, admin = _tool(loaded), _admin(loaded)
    hanging = [each for each in _hanging(loaded, tool, admin, older) if each.topic == OFFSETS]
    if not hanging:
        raise KworkerError(
            "nothing to abort: no hanging transaction keeps the committed positions of the service"
            " from being read. An open transaction that does not hang ends with its producer or at"
            " its time-out; to see it: kworker transactions list"
        )
    for each in hanging:
        typer.echo(f"{each.place}  {_described(each)}")
    typer.echo("Nothing is lost: the records run again, and their outputs are in the topics twice.")
    if not yes and not typer.confirm(f"Abort {len(hanging)} of them?"):
        raise UsageError("nothing was aborted: confirm with y, or add --yes")
    for each in hanging:
        tool.abort(each)
        typer.echo(f"{each.place} is aborted")


def _found(config: Config, older_min: int) -> list[Transaction]:
    """Returns the service's hanging transactions, and open ones that may affect its positions.

    An open transaction may affect them if it is in a partition of `__consumer_offsets` that holds
    positions of the service.
    """
    tool, admin = _tool(config), _admin(config)
    hanging = _hanging(config, tool, admin, older_min)
    places = {each.place for each in hanging}
    open_now = [each for n in _offsets_partitions(config, admin) for each in tool.open_in(n)]
    return [*hanging, *(each for each in open_now if each.place not in places)]


def _hanging(config: Config, tool: Tool, admin: "Admin", older_min: int) -> list[Transaction]:
    """Returns the service's hanging transactions, each once, though every replica reports it."""
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
    """Returns the partitions of `__consumer_offsets` with the service's positions.

    The service has two groups: the workers' and the delay process's.
    """
    if not (found := admin.topics([OFFSETS])):
        return []  # no group has committed anything yet
    count = found[OFFSETS].partitions
    groups = (config.name, delay_group(config))
    return sorted({offsets_partition(group, count) for group in groups})


def _described(transaction: Transaction) -> str:
    producer = f"producer {transaction.producer}"
    if transaction.transactional_id:
        producer += f" ({transaction.transactional_id})"
    if not transaction.hangs:
        return f"open, of {producer}: ends with it, or by its time-out"
    if transaction.topic == OFFSETS:
        return f"hangs, of {producer}: hides positions until kworker transactions abort"
    return f"hangs, of {producer}: ends with the next transaction of that producer"


def _tool(config: Config) -> Tool:
    return Tool(admin_properties(config), lambda line: typer.echo(f"kworker: {line}", err=True))


def _admin(config: Config) -> "Admin":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
