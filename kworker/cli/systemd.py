"""`kworker systemd`: the unit that runs services under systemd, one instance a configuration."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Print a unit for systemd.", no_args_is_help=True)

_UNIT = """\
# Runs /etc/kworker/NAME.toml as kworker@NAME.service: systemctl enable --now kworker@orders
[Unit]
Description=kworker service %i
Wants=network-online.target
After=network-online.target
# kworker waits by itself while a dependency is down; this limits restarts after it gave up.
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
User=kworker
Group=kworker
Environment=KWORKER_CONFIG=/etc/kworker/%i.toml
ExecStart={kworker} start
ExecReload=/bin/kill -HUP $MAINPID
# Lock, control socket and progress; readable by the service alone.
StateDirectory=kworker/%i
StateDirectoryMode=0700

# TERM goes to the supervisor alone, which drains its workers; processes left over are killed.
KillMode=mixed
# Longer than workers.drain_timeout (30 s), leaving the group, and the end of Spark; a drain that
# still makes progress extends it by EXTEND_TIMEOUT_USEC.
TimeoutStopSec=90
# READY is sent when all workers have joined, or after 30 s of waiting.
TimeoutStartSec=90
# Sent only while the supervisor's loop runs and no worker's poll thread is silent for a minute.
WatchdogSec=60

# Not `always`: after `kworker stop` the service stays down.
Restart=on-failure
RestartSec=2
# 78 and 2: the configuration or the command is wrong. 73: another copy has this instance or its
# transactional id. A restart helps none of them. 70, a crash loop, restarts within the limit above.
RestartPreventExitStatus=2 73 78
# 75: the drain timed out, and the rest is delivered again: nothing is lost, so no failure.
SuccessExitStatus=75
# A worker that the kernel kills for its memory is replaced; the others go on.
OOMPolicy=continue
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


@app.command("print")
def print_unit(
    kworker: Annotated[
        Path | None,
        typer.Option(help="Path of the kworker command to run.", show_default="this one"),
    ] = None,
) -> None:
    """Print the unit file kworker@.service, to be saved in /etc/systemd/system."""
    typer.echo(unit(str(kworker or _this_one())), nl=False)


def unit(kworker: str) -> str:
    """Returns the unit file; `kworker` is the path of the command that it runs."""
    return _UNIT.format(kworker=kworker)


def _this_one() -> Path:
    beside = Path(sys.executable).with_name("kworker")
    return beside if beside.exists() else Path(shutil.which("kworker") or "/usr/local/bin/kworker")
