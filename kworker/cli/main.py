"""The `kworker` command: its verbs, and how their errors become messages and exit codes."""

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kworker.cli import (
    audit,
    check,
    config,
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
from kworker.cli.dead import commands as dead
from kworker.cli.lag import commands as lag
from kworker.cli.options import INTERRUPTED, PREPARE_PANEL
from kworker.cli.records import send, tail, try_record
from kworker.cli.spark import commands as spark
from kworker.errors import ExitCode, KworkerError

app = typer.Typer(
    name="kworker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    # Paragraphs: the lines of one would be joined.
    epilog="\n\n".join(
        (
            "First steps:",
            "[bold]kworker init[/bold] · writes a kworker.toml and a handler into this folder",
            "[bold]kworker sandbox up[/bold] · starts a real Kafka and a real Redis",
            "[bold]kworker topics create --partitions 4 --replication 1[/bold] · creates topics",
            "[bold]kworker check --online[/bold] · finds mistakes and says how to fix them",
            "[bold]kworker start[/bold] · runs the service; Ctrl-C drains and ends it",
        )
    ),
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


# In the order in which people look for them; the panels come in the order of their first verb.
for verbs in (service, pause, lag, init, check):
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
for verbs in (reject, replay):
    app.add_typer(verbs.app)
for name, group in (("offsets", offsets), ("transactions", transactions)):
    app.add_typer(group.app, name=name, rich_help_panel="Repair")
app.add_typer(spark.app, name="spark", rich_help_panel="Tables")


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


_unwrap_help(app)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code; errors go to stderr, without a traceback."""
    try:
        # In standalone mode typer would print "Aborted!" and exit by itself.
        returned = app(arguments, prog_name="kworker", standalone_mode=False)
        return returned if isinstance(returned, int) else ExitCode.OK
    except KworkerError as error:
        return _print_error(str(error), error.exit_code)
    except typer.TyperException as error:
        # Without a verb typer has printed the help, and the message is empty.
        message = error.format_message()
        return _print_error(message and f"{message} (see kworker --help)", ExitCode.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has closed it: nothing more may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE


def _print_error(text: str, code: ExitCode) -> int:
    for line in text.splitlines():
        # Indented lines quote a program's own output.
        typer.echo(line if line.startswith(" ") else f"kworker: {line}", err=True)
    return code
