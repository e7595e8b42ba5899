"""`kworker reject` and `kworker resume`: what a person decides about records that do not end."""

import getpass
import re
import socket
from typing import Annotated

import typer

from kworker import config_file
from kworker.cli.options import ConfigOption
from kworker.errors import UsageError

app = typer.Typer()
_PANEL = "Repair"
_PLACE = re.compile(r"(.+):(\d+):(\d+)")


@app.command(rich_help_panel=_PANEL)
def reject(
    record: Annotated[
        str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Where it lies in its source.")
    ],
    config: ConfigOption = None,
) -> None:
    """Make one record a dead letter, reason `operator`, instead of its next run.

    For a record that is tried again and again, is held, or holds up others:
    `kworker reject orders:3:1042`. A run that has begun ends first. Told on the host whose
    workers have the partition, and kept over restarts until it is done.
    """
    from kworker.supervisor.instance import StateFolder
    from kworker.supervisor.refusals import Refusals

    found = _PLACE.fullmatch(record)
    if found is None:
        raise UsageError(f'reject: "{record}" is no TOPIC:PARTITION:OFFSET, such as orders:3:1042')
    loaded = config_file.load(config)
    folder = StateFolder(loaded.state_dir)
    folder.make()
    place = (found[1], int(found[2]), int(found[3]))
    Refusals(folder.rejected).add(place, f"{getpass.getuser()}@{socket.gethostname()}")
    typer.echo(f"{record} will be a dead letter as soon as a worker here has it in hand")


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
    from kworker.supervisor.client import Client
    from kworker.supervisor.instance import StateFolder

    if not accept_dead:
        raise UsageError("resume: nothing but --accept-dead is there to resume")
    loaded = config_file.load(config)
    reply = Client(loaded.name, StateFolder(loaded.state_dir)).ask("accept_dead")
    typer.echo(f"{reply['workers']} workers let die what their breakers hold")
