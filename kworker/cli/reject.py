"""`kworker reject`: an operator makes a record in hand a dead letter."""

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.core.headers import SourcePosition
from kworker.core.times import ago, iso
from kworker.errors import KworkerError, UsageError

if TYPE_CHECKING:
    from kworker.core.headers import Source
    from kworker.instance.rejections import Rejections

app = typer.Typer()
_PANEL = "Repair"
_PLACE = re.compile(r"(.+):(\d+):(\d+)")


@app.command(rich_help_panel=_PANEL)
def reject(
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC:PARTITION:OFFSET",
            help="The record's position in its source topic, for example orders:3:1042.",
        ),
    ] = None,
    config: ConfigOption = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the rejected records that are not finished yet.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Withdraw the rejection, so that the record runs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make one record a dead letter (reason `operator`) instead of running it again.

    Example: [bold]kworker reject orders:3:1042[/bold]

    Use it for a record that fails again and again, waits in memory, or delays other records. The
    record must exist and must not be finished; its retry may be waiting in a delay topic. A run
    that has begun is not interrupted. If this run succeeds and its results are published, the
    record does not become a dead letter. Type the command on the host whose worker has the
    partition. The rejection survives restarts; it ends when the record is finished, or after a day.
    """
    from kworker.instance.rejections import Rejections
    from kworker.instance.state_folder import StateFolder

    if listing == (record is not None) or (listing and undo):
        raise UsageError("reject: expected one record as TOPIC:PARTITION:OFFSET, or --list")
    loaded = toml_file.load(config)
    folder = StateFolder(loaded.state_dir)
    folder.make()
    rejections = Rejections(folder.rejected)
    try:
        if record is None:
            _list(rejections, as_json=as_json)
        elif undo:
            _undo(rejections, record, _place(record))
        else:
            _reject(rejections, loaded, record)
    except OSError as error:
        raise KworkerError(
            f"reject: {folder.rejected} cannot be used ({error.strerror}); nothing is changed"
        ) from None


def _reject(rejections: "Rejections", config: Config, record: str) -> None:
    from kworker.cli.dead.access import whoami

    rejections.add(_found(config, _place(record)), whoami())
    typer.echo(
        f"{record} becomes a dead letter when a worker of this host has it in hand;"
        f" to withdraw: kworker reject --undo {record}"
    )


def _place(text: str) -> "SourcePosition":
    found = _PLACE.fullmatch(text)
    if found is None:
        raise UsageError(
            f'reject: expected TOPIC:PARTITION:OFFSET such as orders:3:1042, got "{text}"'
        )
    return found[1], int(found[2]), int(found[3])


def _found(config: Config, place: "SourcePosition") -> "Source":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.cli.dead.access import TIMEOUT_S
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader
    from kworker.config.client_properties import admin_properties
    from kworker.dead_letters.rejecting import RecordSearch

    properties = admin_properties(config)
    admin = Admin(properties, timeout_s=TIMEOUT_S)
    with closing(TopicReader(properties, config.name, timeout_s=TIMEOUT_S)) as reader:
        return RecordSearch(config, admin, reader).find(place)


def _list(rejections: "Rejections", *, as_json: bool) -> None:
    waiting = rejections.pending()
    rows = [
        {
            "record": "{}:{}:{}".format(*each.source.place),
            "by": each.by,
            "since": iso(int(each.since_s * 1000)),
        }
        for each in waiting
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row, each in zip(rows, waiting, strict=True):
        typer.echo(f"{row['record']}  {ago(int(each.since_s * 1000), now_ms())} ago by {row['by']}")
    if not rows:
        typer.echo("no rejected record waits: all have ended")


def _undo(rejections: "Rejections", record: str, place: "SourcePosition") -> None:
    if not rejections.undo(place):
        raise KworkerError(
            f"reject: {record} was not rejected, or is finished already; to see the rejected"
            " records that are not finished: kworker reject --list"
        )
    typer.echo(f"the rejection of {record} is withdrawn; it runs as others do")
