"""Options that many verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130
"""The exit code that shells give a command ended by Ctrl-C."""

PREPARE_PANEL = "Prepare a service"
"""The panel of `kworker --help` for verbs used before the first start."""

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
