"""`kworker lag`: shows how far the service's groups are behind, from Kafka alone."""

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kworker.cli.options import WATCH_PANEL, ConfigOption, JsonOption
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config

if TYPE_CHECKING:
    from kworker.cli.lag.survey import LagReport

app = typer.Typer()

TIMEOUT_S = 20.0
_WIDTH = 200  # of a table that no terminal shows


@app.command(rich_help_panel=WATCH_PANEL)
def lag(
    config: ConfigOption = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Show each partition, instead of each topic.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far the service is behind, from Kafka alone.

    Example: [bold]kworker lag --partitions[/bold]

    Works on any host, also while the service is down; changes nothing, and joins no group. The lag
    is the number of offsets from the committed positions to the ends of the partitions. Of these
    offsets, those in the offset maps of the commits are finished; all others are unfinished. The
    age is that of the oldest unfinished record. Some offsets are transaction markers, so the
    numbers may be too high.

    Delay topics and the tables' own groups are shown, too. In JSON, a number that is not known is
    null, and partitions are always listed. Exit code 69: Kafka does not answer.
    """
    from rich.console import Console

    from kworker.cli.lag import view

    report = _survey(toml_file.load(config))
    if as_json:
        typer.echo(json.dumps(view.as_data(report), indent=2))
    else:
        shown = view.render(report, partitions=partitions)
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(shown)


def _survey(config: Config) -> "LagReport":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.cli.lag.survey import survey
    from kworker.clients.admin import Admin
    from kworker.clients.heads import HeadReader

    properties = admin_properties(config)
    admin = Admin(properties, timeout_s=TIMEOUT_S)
    with closing(HeadReader(properties, config.name)) as reader:
        return survey(config, admin, reader.heads, now_ms())
