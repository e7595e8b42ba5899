"""`kworker reject` and `kworker resume`: what a person decides about records that do not end."""

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
        typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Where it lies in its source."),
    ] = None,
    config: ConfigOption = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show what is rejected and has not ended yet.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let the record run after all.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make one record a dead letter, reason `operator`, instead of its next run.

    For a record that is tried again and again, is held, or holds up others:
    `kworker reject orders:3:1042`. It must be there, and not settled; one whose
    retry waits is. A run that has begun ends first. Told on the host whose workers
    have the partition; kept over restarts until the record is settled in any way,
    or for a day.
    """
    from kworker.instance.rejections import Rejections
    from kworker.instance.state_folder import StateFolder

    if listing == (record is not None) or (listing and undo):
        raise UsageError("reject: one record, as TOPIC:PARTITION:OFFSET, or --list")
    loaded = toml_file.load(config)
    folder = StateFolder(loaded.state_dir)
    folder.make()
    refusals = Rejections(folder.rejected)
    if record is None:
        _list(refusals, as_json=as_json)
        return
    place = _place(record)
    if undo:
        _undo(refusals, record, place)
    else:
        from kworker.cli.dead.access import whoami

        refusals.add(_found(loaded, place), whoami())
        said = f"{record} will be a dead letter as soon as a worker here has it in hand"
        typer.echo(f"{said}; kworker reject --undo {record} takes that back")


def _place(text: str) -> "SourcePosition":
    found = _PLACE.fullmatch(text)
    if found is None:
        raise UsageError(f'reject: "{text}" is no TOPIC:PARTITION:OFFSET, such as orders:3:1042')
    return found[1], int(found[2]), int(found[3])


def _found(config: Config, place: "SourcePosition") -> "Source":
    # Imported by what needs a broker only: `kworker --help` does not.
    from kworker.cli.dead.access import TIMEOUT_S
    from kworker.clients.admin import Admin
    from kworker.clients.reader import TopicReader
    from kworker.config.client_properties import admin_properties
    from kworker.dead_letters.rejecting import Search

    properties = admin_properties(config)
    admin = Admin(properties, timeout_s=TIMEOUT_S)
    with closing(TopicReader(properties, config.name, timeout_s=TIMEOUT_S)) as reader:
        return Search(config, admin, reader).find(place)


def _list(refusals: "Rejections", *, as_json: bool) -> None:
    standing = refusals.standing()
    rows = [
        {
            "record": "{}:{}:{}".format(*each.source.place),
            "by": each.by,
            "since": iso(int(each.since_s * 1000)),
        }
        for each in standing
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row, each in zip(rows, standing, strict=True):
        typer.echo(f"{row['record']}  {ago(int(each.since_s * 1000), now_ms())} ago by {row['by']}")
    if not rows:
        typer.echo("no record is rejected and has not ended yet")


def _undo(refusals: "Rejections", record: str, place: "SourcePosition") -> None:
    if not refusals.undo(place):
        raise KworkerError(
            f"reject: {record} is not rejected, or has ended since; kworker reject --list shows"
            " those that wait"
        )
    typer.echo(f"{record} runs as others do")


@app.command(rich_help_panel=_PANEL)
def resume(
    config: ConfigOption = None,
    accept_dead: Annotated[
        bool,
        typer.Option("--accept-dead", help="What the open breaker holds becomes dead letters."),
    ] = False,
) -> None:
    """Override an open breaker: `kworker resume --accept-dead`.

    When most records die, their dead letters are held back, for the fault is rarely theirs.
    They are tried now and then, and go on by themselves once ten succeed in a row.
    """
    from kworker.instance.state_folder import StateFolder
    from kworker.supervisor.control.client import ControlClient

    if not accept_dead:
        raise UsageError("resume: nothing but --accept-dead is there to resume")
    loaded = toml_file.load(config)
    reply = ControlClient(loaded.name, StateFolder(loaded.state_dir)).ask("accept_dead")
    typer.echo(f"{reply['workers']} workers let die what their breakers hold")
