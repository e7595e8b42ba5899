"""The `kworker` command: its verbs, and what becomes of their errors."""

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kworker.cli import (
    check,
    config,
    init,
    offsets,
    reject,
    replay,
    sandbox,
    service,
    systemd,
    topics,
    transactions,
)
from kworker.cli.dead import commands as dead
from kworker.cli.options import PREPARE_PANEL
from kworker.cli.spark import commands as spark
from kworker.errors import ExitCode, KworkerError

INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""

app = typer.Typer(
    name="kworker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    # Paragraphs, because lines of one would be joined.
    epilog="\n\n".join(
        (
            "First steps:",
            "[bold]kworker init[/bold] · writes a kworker.toml and a handler here",
            "[bold]kworker sandbox up[/bold] · starts a real Kafka and a real Redis",
            "[bold]kworker topics create --partitions 4 --replication 1[/bold]",
            "[bold]kworker check --online[/bold] · says what is wrong, and what to do",
            "[bold]kworker start[/bold] · and [bold]kworker status[/bold] beside it",
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
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run a Python function over Kafka topics, and lose nothing.

    A service is a function and a [bold]kworker.toml[/bold]: kworker supervises the processes
    that run it, publishes what it returns, and lands that in tables by one Spark job.
    """


# The service first: it is what a user comes for.
for verbs in (service, init, check, reject, replay):
    app.add_typer(verbs.app)
for name, group in (
    ("config", config),
    ("topics", topics),
    ("sandbox", sandbox),
    ("systemd", systemd),
):
    app.add_typer(group.app, name=name, rich_help_panel=PREPARE_PANEL)
for name, group in (("dead", dead), ("offsets", offsets), ("transactions", transactions)):
    app.add_typer(group.app, name=name, rich_help_panel="Repair")
app.add_typer(spark.app, name="spark", rich_help_panel="Tables")


def _flow(group: typer.Typer) -> None:
    """Lines of help end where the terminal's do, not where the docstring's did."""
    described = [*group.registered_commands, group.registered_callback]
    for each in described:
        if each and each.callback:
            paragraphs = inspect.cleandoc(each.callback.__doc__ or "").split("\n\n")
            each.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance:
            _flow(each.typer_instance)


_flow(app)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; an error is a line or more on stderr, without traceback."""
    try:
        # Otherwise the library would say "Aborted!", and exit by itself.
        returned = app(arguments, prog_name="kworker", standalone_mode=False)
        return returned if isinstance(returned, int) else ExitCode.OK
    except KworkerError as error:
        return _told(str(error), error.exit_code)
    except typer.TyperException as error:
        # Without a message it has shown the help, since no verb was given.
        message = error.format_message()
        return _told(message and f"{message} (kworker --help says how)", ExitCode.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough; nothing more must be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE


def _told(text: str, code: ExitCode) -> int:
    for line in text.splitlines():
        # A program's own last words are quoted below what is said of them.
        typer.echo(line if line.startswith(" ") else f"kworker: {line}", err=True)
    return code
