"""The `kworker` command: how a command line is run, and errors become messages and exit codes."""

import os
import sys
from collections.abc import Sequence

import typer

from kworker.cli.options import INTERRUPTED
from kworker.cli.verbs import command_for
from kworker.errors import ExitCode, KworkerError


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code; errors go to stderr, without a traceback."""
    try:
        command = command_for(arguments)
        # In standalone mode typer would print "Aborted!" and exit by itself.
        returned = command(arguments, prog_name="kworker", standalone_mode=False)
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
