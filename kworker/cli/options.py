"""Options that many verbs have, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

PREPARE_PANEL = "Prepare one"
"""Where `kworker --help` shows what comes before a service."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The kworker.toml to read.",
        show_default="$KWORKER_CONFIG, ./kworker.toml, /etc/kworker/kworker.toml",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
