"""All verbs of the `kworker` command, in the order in which its help shows them."""

from typing import Annotated

import typer

from kworker.cli import (
    audit,
    check,
    config,
    health,
    help,
    init,
    offsets,
    pause,
    reject,
    replay,
    sandbox,
    service,
    systemd,
    topics,
    transactions,
)
from kworker.cli.application import application, unwrap_help
from kworker.cli.dead import commands as dead
from kworker.cli.lag import commands as lag
from kworker.cli.logs import commands as logs
from kworker.cli.options import PREPARE_PANEL, WATCH_PANEL
from kworker.cli.plan import commands as plan
from kworker.cli.records import send, tail, try_record
from kworker.cli.spark import commands as spark

# Paragraphs: the lines of one would be joined.
app = application(
    epilog="\n\n".join(
        (
            "First steps:",
            "[bold]kworker init[/bold] · writes a kworker.toml and a handler into this folder",
            "[bold]kworker sandbox up[/bold] · starts a real Kafka and a real Redis",
            "[bold]kworker topics create --partitions 4 --replication 1[/bold] · creates topics",
            "[bold]kworker check --online[/bold] · finds mistakes and says how to fix them",
            "[bold]kworker start[/bold] · runs the service; Ctrl-C drains and ends it",
        )
    )
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kworker.distribution import package_version

        typer.echo(f"kworker {package_version()}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run a Python function over Kafka topics, and lose nothing.

    A service is a function and a [bold]kworker.toml[/bold]. kworker supervises the processes
    that run the function, publishes its results to a topic, and writes them to tables with one
    Spark job.
    """


# The panels appear in the order of their first verbs: those that run a service come first, since
# users look for those.
for verbs in (service, pause, lag, logs):
    app.add_typer(verbs.app)
app.add_typer(health.app, name="health", rich_help_panel=WATCH_PANEL)
for verbs in (init, check, plan):
    app.add_typer(verbs.app)
for name, group in (
    ("config", config),
    ("topics", topics),
    ("sandbox", sandbox),
    ("systemd", systemd),
):
    app.add_typer(group.app, name=name, rich_help_panel=PREPARE_PANEL)
for verbs in (send, tail, try_record):
    app.add_typer(verbs.app)
app.add_typer(dead.app, name="dead", rich_help_panel="Repair")
for verbs in (reject, replay, audit):
    app.add_typer(verbs.app)
for name, group in (("offsets", offsets), ("transactions", transactions)):
    app.add_typer(group.app, name=name, rich_help_panel="Repair")
app.add_typer(spark.app, name="spark", rich_help_panel="Tables")
app.add_typer(help.app)
unwrap_help(app)
