"""All verbs of the `kworker` command, in the order in which its help shows them.

The module of a verb is imported when a command line has that verb. To import all takes longer than
most verbs do.
"""

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from kworker.cli.options import PREPARE_PANEL, WATCH_PANEL

_REPAIR_PANEL = "Repair"


class VerbModule(NamedTuple):
    """A module below `kworker.cli`, whose `app` has these verbs, or is the group of this name."""

    name: str
    verbs: tuple[str, ...]
    panel: str | None = None  # of a group; the verbs of a module that is none have their own

    def add_to(self, command: typer.Typer) -> None:
        """Imports the module, and adds its verbs to `command`."""
        app = import_module(f"kworker.cli.{self.name}").app
        if self.panel is None:
            command.add_typer(app)
        else:
            command.add_typer(app, name=self.verbs[0], rich_help_panel=self.panel)


# The panels appear in the order of their first verbs: those that run a service come first, since
# users look for those.
MODULES = (
    VerbModule("service", ("start", "stop", "status", "restart", "reload", "scale", "dump")),
    VerbModule("pause", ("pause", "resume")),
    VerbModule("lag.commands", ("lag",)),
    VerbModule("logs.commands", ("logs",)),
    VerbModule("health", ("health",), WATCH_PANEL),
    VerbModule("init", ("init",)),
    VerbModule("check", ("check",)),
    VerbModule("plan.commands", ("plan",)),
    VerbModule("config", ("config",), PREPARE_PANEL),
    VerbModule("topics", ("topics",), PREPARE_PANEL),
    VerbModule("sandbox", ("sandbox",), PREPARE_PANEL),
    VerbModule("systemd", ("systemd",), PREPARE_PANEL),
    VerbModule("records.send", ("send",)),
    VerbModule("records.tail", ("tail",)),
    VerbModule("records.try_record", ("try",)),
    VerbModule("dead.commands", ("dead",), _REPAIR_PANEL),
    VerbModule("reject", ("reject",)),
    VerbModule("replay", ("replay",)),
    VerbModule("audit", ("audit",)),
    VerbModule("offsets", ("offsets",), _REPAIR_PANEL),
    VerbModule("transactions", ("transactions",), _REPAIR_PANEL),
    VerbModule("spark.commands", ("spark",), "Tables"),
    VerbModule("help", ("help",)),
)
# Paragraphs: the lines of one would be joined.
_EPILOG = "\n\n".join(
    (
        "First steps:",
        "[bold]kworker init[/bold] · writes a kworker.toml and a handler into this folder",
        "[bold]kworker sandbox up[/bold] · starts a real Kafka and a real Redis",
        "[bold]kworker topics create --partitions 4 --replication 1[/bold] · creates topics",
        "[bold]kworker check --online[/bold] · finds mistakes and says how to fix them",
        "[bold]kworker start[/bold] · runs the service; Ctrl-C drains and ends it",
    )
)


def command_for(arguments: Sequence[str] = ()) -> typer.Typer:
    """Returns the `kworker` command with what these arguments need of it.

    That is the module of the verb that comes first, or all modules if none does.
    """
    command = typer.Typer(
        name="kworker",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
        epilog=_EPILOG,
    )
    command.callback()(_options)
    first = next(iter(arguments), "")
    needed = [module for module in MODULES if first in module.verbs]
    for module in needed or MODULES:
        module.add_to(command)
    _unwrap_help(command)
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        from kworker.distribution import package_version

        typer.echo(f"kworker {package_version()}")
        raise typer.Exit


def _options(
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


def _unwrap_help(group: typer.Typer) -> None:
    """Joins the lines of each paragraph of help, so that typer wraps it at the terminal's width."""
    described = [*group.registered_commands, group.registered_callback]
    for each in described:
        if each and each.callback:
            paragraphs = inspect.cleandoc(each.callback.__doc__ or "").split("\n\n")
            each.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance:
            _unwrap_help(each.typer_instance)
