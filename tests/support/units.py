"""Units of systemd, read and judged by systemd-analyze, which needs no running systemd."""

import os
import subprocess
from collections import defaultdict
from pathlib import Path


def settings(text: str) -> dict[str, list[str]]:
    """The values of each setting, in their order."""
    found = defaultdict(list)
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def analyze(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `systemd-analyze …`; units are looked for in the folder first."""
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **({"SYSTEMD_UNIT_PATH": f"{folder}:"} if folder else {})},
    )


def write_instance(folder: Path, name: str, text: str) -> Path:
    """Writes a unit as that of the instance `orders`, whose command exists."""
    command = folder / "kworker"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = folder / name.replace("@.", "@orders.")
    file.write_text(text.replace("/usr/local/bin/kworker", str(command)))
    return file
