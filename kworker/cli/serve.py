"""Wires the supervisor to the real worker, delay process, preflight checks and kworker.toml."""

import time
from functools import partial
from pathlib import Path

from kworker import log
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.errors import ExitCode
from kworker.preflight import second_copy
from kworker.preflight.findings import exit_code
from kworker.preflight.preflight import before_start
from kworker.supervisor.code_watch import CodeWatch
from kworker.supervisor.preflight_child import PreflightReport
from kworker.supervisor.supervisor import Supervisor
from kworker.supervisor.wiring import Wiring


def serve(
    config: Config, named: Path | None, ready_fd: int | None = None, *, reload: bool = False
) -> int:
    """Runs the supervisor until the service ends, and returns its exit code.

    A reload reads `named`, the file of --config. The supervisor reports its start to `ready_fd`.
    With `reload`, the service reloads when kworker.toml, or Python code in its folder, changes.
    """
    # Imported before the fork, so that a replaced worker starts at once. Modules only: no client
    # of Kafka, Redis or Spark may exist before the fork.
    from kworker.delay import process
    from kworker.worker import worker

    log.configure(config.log)
    began = time.monotonic()
    wiring = Wiring(
        worker_main=partial(worker.run, began=began),
        delay_main=partial(process.run, began=began),
        preflight=_preflight,
        read_config=lambda: toml_file.load(named),
        changed_files=CodeWatch(config.file).turn if reload else lambda _: (),
    )
    return Supervisor(config, wiring, ready_fd).run()


def _preflight(config: Config) -> PreflightReport:
    findings = before_start(config)
    fit = exit_code(findings) is ExitCode.OK
    others = second_copy.search(config) if fit else second_copy.Twins()
    sorted_by: dict[ExitCode, list[str]] = {}
    for finding in [*findings, *others.findings]:
        sorted_by.setdefault(finding.exit_code, []).append(str(finding))
    return PreflightReport(
        problems=sorted_by.get(ExitCode.CONFIG, []),
        taken=sorted_by.get(ExitCode.ALREADY_RUNNING, []),
        unreachable=sorted_by.get(ExitCode.UNREACHABLE, []),
        warnings=sorted_by.get(ExitCode.OK, []),
        elsewhere=[str(finding) for finding in others.elsewhere],
        session_s=others.session_s,
        cluster=others.cluster,
    )
