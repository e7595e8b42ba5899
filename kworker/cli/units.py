"""The systemd units for services, for their Spark jobs, and for all services of a host at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_STOP_S = 60  # over drain_timeout: to leave the group, to close (10 s) and to end Spark (15 s)


@dataclass(frozen=True, slots=True)
class UnitValues:
    """The values in which the units of two hosts, or of two services, differ.

    The defaults make a template: systemd replaces `%i` by the name of the instance. In `config`,
    each `%` that systemd shall not replace is doubled. `reads` are files and folders that the
    service must see, and `writes` are folders to which it writes, besides its state and its cache.
    """

    kworker: Path
    user: str = "kworker"
    instance: str = "%i"
    config: str = "/etc/kworker/%i.toml"
    drain_s: float = 30.0
    java_home: Path | None = None
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()

    @property
    def example(self) -> str:
        """The name of the instance in commands that the unit's comments show."""
        return "NAME" if self.instance == "%i" else self.instance


def service_unit(values: UnitValues) -> str:
    """Returns kworker@.service, which runs the supervisor."""
    return _SERVICE.format(**_common(values), stop_s=math.ceil(values.drain_s) + _STOP_S)


def spark_unit(values: UnitValues) -> str:
    """Returns kworker-spark@.service, which runs the Spark job without the workers."""
    return _SPARK.format(**_common(values))


def target_unit() -> str:
    """Returns kworker.target, which starts and stops all services of a host."""
    return _TARGET


def escaped(path: Path) -> str:
    """Returns a path with each `%` doubled, so that systemd finds no specifier, such as `%i`."""
    return str(path).replace("%", "%%")


def _common(values: UnitValues) -> dict[str, str]:
    environment = [f"KWORKER_CONFIG={values.config}", "KWORKER_CACHE=%C/kworker"]
    if values.java_home:
        environment.append(f"JAVA_HOME={escaped(values.java_home)}")
    paths = (values.kworker, *values.reads, *values.writes)
    return {
        "kworker": _word(escaped(values.kworker)),
        "user": values.user,
        "instance": values.instance,
        "example": values.example,
        "file": values.config.replace("%i", "NAME"),
        "environment": "\n".join(f"Environment={_word(each)}" for each in environment),
        "homes": "read-only" if any(map(_is_in_a_home, paths)) else "yes",
        "writes": _write_paths(values.writes),
    }


def _write_paths(folders: Sequence[Path]) -> str:
    lines = [f"ReadWritePaths={_word(escaped(folder))}\n" for folder in folders]
    reason = "# These must exist before a start, and belong to the user.\n"
    return "".join([reason, *lines] if lines else [])


def _is_in_a_home(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in _HOMES)


def _word(text: str) -> str:
    """Returns the text as one word of a unit's line: in quotes if it would otherwise be several."""
    if not any(each.isspace() or each in "\"'\\" for each in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_SANDBOX = """\
# The sandbox. It is for all handlers; `systemctl edit` opens it for one service, whose handlers
# start programs with other rights (NoNewPrivileges), compute on a GPU (PrivateDevices), or exchange
# files and sockets in /tmp with others (PrivateTmp).
# Missing on purpose: MemoryDenyWriteExecute, because Java and libraries such as numba generate
# machine code; PrivateUsers, because it hides the supervisor from a `kworker stop` of its own user;
# ProcSubset=pid, because kworker reads the memory and the boot id of the host in /proc; a filter of
# @resources, because workers choose their CPUs, and the console lowers its priority.
CapabilityBoundingSet=
NoNewPrivileges=yes
LockPersonality=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome={homes}
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
# Tables are for others, too: readers need the group.
UMask=0027
# The lock, the control socket and other state, for the service alone; and Java archives, for all.
StateDirectory=kworker/{instance}
StateDirectoryMode=0700
CacheDirectory=kworker
{writes}"""

_SERVICE = (
    """\
# Runs {file} as kworker@{example}: systemctl enable --now kworker@{example}
[Unit]
Description=kworker service {instance}
# After it: a stop of the target waits until this unit has stopped.
PartOf=kworker.target
Wants=network-online.target
After=network-online.target kworker.target
# kworker waits by itself while a dependency is down; this limits restarts after it gave up.
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
# Not notify-reload, which needs systemd 253: a reload is reported all the same.
Type=notify
NotifyAccess=main
User={user}
{environment}
ExecStart={kworker} start
ExecReload=/bin/kill -HUP $MAINPID

# TERM goes to the supervisor alone, which drains its workers; processes left over are killed.
KillMode=mixed
# Longer than workers.drain_timeout, leaving the group, and the end of Spark; a drain that still
# makes progress extends it by EXTEND_TIMEOUT_USEC.
TimeoutStopSec={stop_s}
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

"""
    + _SANDBOX
    + """
[Install]
WantedBy=multi-user.target kworker.target
"""
)

_SPARK = (
    """\
# Runs the Spark job of {file}, in which [spark] has run = "elsewhere":
# systemctl enable --now kworker-spark@{example}
[Unit]
Description=kworker Spark job {instance}
# After it: a stop of the target waits until this unit has stopped.
PartOf=kworker.target
Wants=network-online.target
After=network-online.target kworker.target
# Results wait in their topic for as long as the job cannot run, so it is started again and again.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
{environment}
ExecStart={kworker} spark run

# TERM goes to the job alone, which ends its JVM; processes left over are killed.
KillMode=mixed
TimeoutStopSec=60
# Also after exit code 0: with trigger = "available-now" the job ends when it has read all results.
Restart=always
RestartSec=30
# 78 and 2: the configuration or the command is wrong, and a restart does not help.
RestartPreventExitStatus=2 78
# The job itself sees a JVM that the kernel has killed for its memory, and writes smaller batches.
OOMPolicy=continue
LimitNOFILE=65536

"""
    + _SANDBOX
    + """
[Install]
WantedBy=multi-user.target kworker.target
"""
)

_TARGET = """\
# All kworker services of this host: systemctl enable --now kworker.target
# A stop waits until all of them have drained; a start starts those that are enabled.
[Unit]
Description=kworker services

[Install]
WantedBy=multi-user.target
"""
