"""Options that many verbs share, so that they read the same everywhere."""

import re
from pathlib import Path
from typing import Annotated

import typer

from kworker.core.times import parse_time
from kworker.errors import UsageError

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/s)?")

INTERRUPTED = 130
"""The exit code that shells give a command ended by Ctrl-C."""

PREPARE_PANEL = "Prepare a service"
"""The panel of `kworker --help` for verbs used before the first start."""

WHEN = 'ISO 8601 (UTC unless it has a zone), "-2h" (two hours ago) or epoch milliseconds.'
"""The forms of a time that `parse_when` reads."""

WATCH_PANEL = "Watch a service"
"""The panel of `kworker --help` for verbs that show how a service is, and change nothing."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read this kworker.toml.",
        show_default="$KWORKER_CONFIG, ./kworker.toml, /etc/kworker/kworker.toml",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RateOption = Annotated[
    str | None, typer.Option(metavar="N/s", help="Write at most this many records a second.")
]


def parse_rate(text: str | None) -> float | None:
    """Returns the value of `--rate` in records a second; None (no limit) without the option.

    Raises UsageError if the value does not have a form such as "50/s", or is zero.
    """
    if text is None:
        return None
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f'--rate: expected records a second such as "50/s", got "{text}"')
    return float(match[1])


def parse_when(option: str, text: str, now_ms: int) -> int:
    """Returns the time of an option's `text`, in ms. Raises UsageError if it is not a time."""
    try:
        return parse_time(text, now_ms)
    except ValueError as error:
        raise UsageError(f"the value of {option} is wrong: {error}") from None
