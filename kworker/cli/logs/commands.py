"""`kworker logs`: shows the end of the service's log file, and follows it."""

import sys
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated

import typer

from kworker.cli.logs.lines import Form, Level, LogLine, shown
from kworker.cli.logs.log_tail import LogTail
from kworker.cli.options import WATCH_PANEL, ConfigOption, JsonOption
from kworker.config import toml_file
from kworker.errors import KworkerError

app = typer.Typer()

LAST = 50
_LOOK_S = 0.2

FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with lines as they come, until Ctrl-C.")
]
LastOption = Annotated[int, typer.Option("--last", "-n", min=0, help="Print this many lines.")]
LevelOption = Annotated[
    Level | None,
    typer.Option(
        help="Only lines of this level or a higher one. Output of other programs has no level."
    ),
]


@app.command(rich_help_panel=WATCH_PANEL)
def logs(
    config: ConfigOption = None,
    follow: FollowOption = False,
    last: LastOption = LAST,
    level: LevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the end of the service's log file, or say where its lines are.

    Example: [bold]kworker logs -f --level warning[/bold]

    Reads the file that the service's standard error goes to; [bold]kworker start --daemon[/bold]
    writes such a file in the state folder. Other services log to the journal, to a terminal or to
    their container; then the command names the place. With --follow, the command goes on when the
    file is rotated or truncated.

    On a terminal, JSON lines are shown in the console format; elsewhere lines are printed as they
    are. With --json, every line is a JSON object: a line that kworker did not write as JSON becomes
    an object with the line in the field `event`.
    """
    from kworker.cli.logs.place import log_file

    path = log_file(toml_file.load(config))
    form: Form = "json" if as_json else "terminal" if sys.stdout.isatty() else "text"
    try:
        with closing(LogTail(path)) as tail:
            _show(tail, last, level, form, follow=follow)
    except (FileNotFoundError, PermissionError) as error:
        raise KworkerError(f"{path} cannot be read: {error.strerror}") from None


def _show(tail: LogTail, last: int, level: Level | None, form: Form, *, follow: bool) -> None:
    _print(tail.last(last, lambda line: _is_wanted(LogLine.parse(line), level)), level, form)
    while follow:
        _print(tail.added(), level, form)
        time.sleep(_LOOK_S)
    _print([tail.unfinished] if tail.unfinished else [], level, form)


def _print(lines: Iterable[bytes], level: Level | None, form: Form) -> None:
    for line in map(LogLine.parse, lines):
        if _is_wanted(line, level):
            typer.echo(shown(line, form))
    sys.stdout.flush()


def _is_wanted(line: LogLine, level: Level | None) -> bool:
    return level is None or line.has(level)
