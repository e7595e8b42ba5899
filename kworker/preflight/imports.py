"""Checks that references to Python can be imported, and that handlers can be called."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kworker.config.model import Config
from kworker.config.rules import WORKER_BYTES, memory_ceiling
from kworker.config.value_types import format_size
from kworker.core.event_id import names_function
from kworker.errors import ExitCode
from kworker.preflight.findings import Finding

IMPORT_TIMEOUT_S = 40.0
_CORRECT_IT = "correct it, or the module"


def check_handlers(config: Config, *, timeout_s: float = IMPORT_TIMEOUT_S) -> list[Finding]:
    """Checks, in a process of its own, that the handlers can be imported, and called with a record.

    Checks also that what they import fits in `workers.memory`.
    """
    keys = {config.handler: "handler"} if config.handler else {}
    for topic, reference in config.handlers.items():
        keys.setdefault(reference, f"handlers.{topic}")
    handlers = list(keys)
    if config.idempotency and names_function(config.idempotency.key):
        keys.setdefault(config.idempotency.key, "idempotency.key")
    imported = import_all(config, keys, timeout_s, handlers)
    return imported.findings or _unfit_for_memory(config, imported.rss_bytes)


class ImportedReferences(NamedTuple):
    """The findings from the import of all references, and the process's memory after the import.

    `rss_bytes` is 0 if the memory is unknown.
    """

    findings: list[Finding]
    rss_bytes: int


def _unfit_for_memory(config: Config, rss_bytes: int) -> list[Finding]:
    """Checks that the imports alone leave enough of `workers.memory` for a worker's records."""
    most, step = config.workers.memory, "raise it, or import less"
    limit, size = format_size(most), f"{rss_bytes >> 20} MiB"
    if rss_bytes > most:
        text = f"the limit is {limit}, but the imports of the handlers alone take {size}"
        return [Finding("workers.memory", text, step)]
    ceiling = memory_ceiling(config)
    records = ceiling.total - WORKER_BYTES if ceiling else 0
    if rss_bytes + records <= most:
        return []
    text = f"the imports of the handlers alone take {size} of {limit}, which leaves too little for"
    text += f" the records of a worker ({records >> 20} MiB): it would be replaced often"
    step = "raise it, import less, or lower in_flight_bytes"
    return [Finding("workers.memory", text, step, ExitCode.OK)]


def import_all(
    config: Config, keys: Mapping[str, str], timeout_s: float, handlers: Collection[str] = ()
) -> ImportedReferences:
    """Imports all Python references in `keys`, in another process.

    `keys` maps each reference to the configuration key whose value it is. `handlers` has those of
    the references that name handlers.
    """
    request = {
        "folder": str(config.file.parent),
        "references": list(keys),
        "handlers": list(handlers),
        "in_flight": config.workers.in_flight,
    }
    try:
        problems, rss_bytes = _probe(request, timeout_s)
    except subprocess.TimeoutExpired:
        # Perhaps the machine is busy: the next try may be in time.
        text = f"{', '.join(keys)} not imported within {timeout_s:g} s"
        step = "find out what the module waits for"
        late = Finding(next(iter(keys.values())), text, step, ExitCode.UNREACHABLE)
        return ImportedReferences([late], 0)
    found = [
        Finding(keys[reference], f"the Python reference {reference} {problem}", step or _CORRECT_IT)
        for reference, (problem, step) in problems.items()
    ]
    return ImportedReferences(found, rss_bytes)


def _probe(
    request: Mapping[str, Any], timeout_s: float
) -> tuple[Mapping[str, tuple[str, str]], int]:
    """Imports references in a new process; returns their problems and the process's memory.

    A problem comes with the next step, or "". The memory is in bytes; it is 0 if the process ended
    without a report. Raises `TimeoutExpired` if the process has not ended after `timeout_s`.
    """
    # Not a pipe, which has room for 64 KiB: a long report would wait there for a reader.
    with os.fdopen(os.memfd_create("kworker-import-probe", os.MFD_CLOEXEC), "rb") as report:
        # -P and our own path: what a worker can import, and nothing from the working directory.
        probe = "kworker.preflight.import_probe"
        command = [sys.executable, "-P", "-m", probe, str(report.fileno()), json.dumps(request)]
        done = subprocess.run(
            command,
            pass_fds=[report.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        report.seek(0)
        words = report.read()
    if not words:
        end = f"ends the process that imports it ({_exit_text(done)})"
        return dict.fromkeys(request["references"][:1], (end, "")), 0
    found = json.loads(words)
    return found["problems"], found["rss_bytes"]


def _exit_text(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return f"exit code {done.returncode}"
