"""The destination of a service's log lines: a file, the journal, a terminal or a pipe."""

import os
from pathlib import Path

from kworker.config.model import Config
from kworker.errors import KworkerError
from kworker.instance.proc import journal_options, stderr_target
from kworker.instance.state_folder import StateFolder


def log_file(config: Config) -> Path:
    """Returns the file that the service logs to or, if it does not run, the file of its last run.

    Raises KworkerError if there is no such file; the error says where the lines are.
    """
    folder = StateFolder(config.state_dir)
    pid = folder.supervisor_pid()
    target = stderr_target(pid) if pid else ""
    if pid and target:
        if os.path.isfile(target):
            return Path(target)
        raise KworkerError(f"{config.name} (pid {pid}) has no log file: {_elsewhere(pid, target)}")
    if _may_exist(folder.log):
        return folder.log
    raise KworkerError(
        f"{config.name} has no log file: only `kworker start --daemon` writes one"
        f" ({folder.log}). Otherwise the lines go to standard error: under systemd, read them with"
        f" journalctl -u kworker@{config.file.stem}; in a container, read the container's log"
    )


def _may_exist(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # another user's folder
        return True


def _elsewhere(pid: int, target: str) -> str:
    """Returns the part of a message that says where a process logs to, if not to a file."""
    if target.startswith("socket:") and (unit := journal_options(pid)):
        return f"its lines are in the journal: journalctl {unit} -o cat -n 50 -f"
    if target.startswith("pipe:"):
        return (
            "its lines go to the program that started it; in a container they are in the"
            " container's log (kubectl logs, docker logs)"
        )
    if target.startswith(("/dev/pts/", "/dev/tty")):
        return f"its lines go to the terminal {target}, where it was started"
    return f"its lines go to {target}"
