"""A command line of kworker, parsed and not run."""

from collections.abc import Sequence

import typer

from kworker.cli.verbs import command_for


def parse(arguments: Sequence[str]) -> None:
    """Raises AssertionError for an unknown verb, typer's own error for a wrong option or value."""
    command, left = typer.main.get_command(command_for()), list(arguments)
    while isinstance(command, typer.core.TyperGroup):
        verb = left.pop(0) if left else ""
        assert verb in command.commands, f"no such verb: {' '.join(arguments)}"
        command = command.commands[verb]
    command.make_context("kworker", left)
