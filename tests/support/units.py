"""Units of systemd, read and judged by systemd-analyze, which needs no running systemd."""

import os
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.support.tables import spark_table


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


CONFIG = """
name = "orders"
handler = "handlers:notify"
{top}
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[workers]
drain_timeout = "2m"
[console]
listen = ""
"""
SPARK = '[spark]\ncheckpoints = "/srv/spark/c"\n' + "".join(
    spark_table(name, path=path)
    for name, path in (("a", "/srv/spark/a"), ("b", "tables/b"), ("c", "s3a://bucket/c"))
)


def write_config(folder: Path, top: str = "", spark: str = SPARK) -> Path:
    """A service with tables in two folders of this disk, and one in a store."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kworker.toml"
    file.write_text(CONFIG.format(top=top) + spark)
    return file
