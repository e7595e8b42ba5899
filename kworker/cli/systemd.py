"""`kworker systemd`: the unit that runs services under systemd, an instance a configuration."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Running services under systemd.", no_args_is_help=True)

_UNIT = """\
# Runs /etc/kworker/NAME.toml as kworker@NAME.service: systemctl enable --now kworker@orders
[Unit]
Description=kworker service %i
Wants=network-online.target
After=network-online.target
# It backs off by itself while something is down; this is for what it gave up on.
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

# TERM goes to the supervisor alone, which drains its workers; what is left at the end is killed.
KillMode=mixed
# Over workers.drain_timeout (30 s), leaving the group, and Spark's end; a drain that still makes
# progress asks for more by EXTEND_TIMEOUT_USEC.
TimeoutStopSec=90
# READY comes when all workers have joined, or after 30 s of waiting.
TimeoutStartSec=90
# Fed only while the supervisor turns and no worker's poll thread is silent for a minute.
WatchdogSec=60

# Not `always`: after `kworker stop` it shall stay down.
Restart=on-failure
RestartSec=2
# 78 and 2: the configuration or the command is wrong. 73: another has this instance, or its
# identity. Starting again helps none of them. 70, a crash loop, is tried again by the limit above.
RestartPreventExitStatus=2 73 78
# 75: the drain was cut short, and the rest is delivered again: nothing is lost, so no failure.
SuccessExitStatus=75
# One worker that the kernel kills for its memory is replaced; the others go on.
OOMPolicy=continue
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


@app.command("print")
def print_unit(
    kworker: Annotated[
        Path | None, typer.Option(help="The kworker to run; by default this one.")
    ] = None,
) -> None:
    """Print kworker@.service; put it in /etc/systemd/system."""
    typer.echo(unit(str(kworker or _this_one())), nl=False)


def unit(kworker: str) -> str:
    """The unit file, with the path of the command in it."""
    return _UNIT.format(kworker=kworker)


def _this_one() -> Path:
    beside = Path(sys.executable).with_name("kworker")
    return beside if beside.exists() else Path(shutil.which("kworker") or "/usr/local/bin/kworker")
