"""`kworker help`: prints the help of a verb."""

from typing import Annotated

import typer

from kworker.cli.verbs import command_for

app = typer.Typer()


@app.command("help", rich_help_panel="Help")
def show(
    verb: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VERB]...", help="A verb, or two words such as `dead list`."),
    ] = None,
) -> None:
    """Print the help of a verb, as VERB --help does; without a verb, the list of all.

    Example: [bold]kworker help dead list[/bold]
    """
    words = verb or []
    command_for(words)([*words, "--help"], prog_name="kworker", standalone_mode=False)
