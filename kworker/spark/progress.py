"""The progress of the job and its tables, and the file that `status` reads it from."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
import structlog

from kworker.clock import now_ms

_LOG = structlog.get_logger()


class JobState(StrEnum):
    """The state of the whole job, or of the query of one table."""

    STARTING = "starting"  # or waiting: the reason says for what
    RUNNING = "running"
    STANDBY = "standby"  # another job leads, or holds the checkpoints
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class TableProgress:
    """The progress of one table. Rows are counted from the start of the job.

    `batch` is the number of the last finished batch. `rescued` counts rows with a value in the
    column `_rescued`, and `foreign` records of the results topic that kworker did not write.
    """

    name: str
    state: JobState = JobState.STARTING
    reason: str = ""
    batch: int | None = None  # the last finished one; a new checkpoint counts from 0 again
    rows: int = 0
    rescued: int = 0
    foreign: int = 0
    aside: int = 0  # results set aside in its checkpoint, since its transform fails on them
    batch_records: int = 0  # the most that a batch takes
    last: tuple[int, int] = (0, 0)  # records of the last batch, and bytes of their values
    positions: dict[int, int] = field(default_factory=dict)  # of each partition, read below it

    def add_batch(self, reported: Mapping[str, Any]) -> bool:
        """Adds the batch of Spark's report; False if it was added before or has no records yet."""
        batch = int(reported["batchId"])
        if self.batch is not None and batch <= self.batch:
            return False
        positions = _positions(reported, "endOffset")
        if not reported.get("numInputRows") and positions == _positions(reported, "startOffset"):
            return False  # the query found no records: this batch is still to come
        counted = reported.get("observedMetrics") or {}
        self.batch = batch
        self.rows += _counted(counted, "taken", "rows")
        self.rescued += _counted(counted, "taken", "rescued")
        self.foreign += _counted(counted, "read", "foreign")
        self.last = int(reported.get("numInputRows") or 0), _counted(counted, "read", "bytes")
        self.positions.update(positions)
        return True

    def behind(self, ends: Mapping[int, int]) -> int | None:
        """The number of offsets that the query has not reached yet; None if it is unknown.

        Offsets of transaction markers are counted too.
        """
        if not ends:
            return None
        return sum(max(0, end - self.positions.get(part, 0)) for part, end in ends.items())


def _counted(metrics: Mapping[str, Any], observation: str, name: str) -> int:
    return int((metrics.get(observation) or {}).get(name) or 0)


def _positions(reported: Mapping[str, Any], which: str) -> dict[int, int]:
    """The offsets at which the reported batch began (`startOffset`) or ended (`endOffset`)."""
    found = [source.get(which) for source in reported.get("sources") or ()]
    topics = (topic for topic in found if isinstance(topic, dict))
    return {int(p): int(o) for topic in topics for at in topic.values() for p, o in at.items()}


def job_state(tables: list[TableProgress]) -> JobState:
    """The worst state of any query, in the order failed, restarting, starting, running, stopped."""
    states = {table.state for table in tables}
    for state in (JobState.FAILED, JobState.RESTARTING, JobState.STARTING, JobState.RUNNING):
        if state in states:
            return state
    return JobState.STOPPED


def summary(table: TableProgress, ends: Mapping[int, int]) -> dict[str, object]:
    """The entry of one table in the progress file, and in the output of `kworker status`."""
    return {
        "name": table.name,
        "batch": table.batch,
        "rows": table.rows,
        "behind": table.behind(ends),
        "rescued": table.rescued,
        "foreign": table.foreign,
        "aside": table.aside,
        "batch_records": table.batch_records,
        "state": table.state.value,
        "reason": table.reason,
    }


class ProgressFile:
    """The file `<state_dir>/spark/progress.json`. Owned by the job's main thread."""

    def __init__(self, state_dir: Path) -> None:
        self._path = progress_path(state_dir)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._warned = False

    def write(self, state: JobState, reason: str, tables: list[dict[str, object]]) -> None:
        """Replaces the file, which `kworker status` shows. Logs a full disk once, as a warning."""
        reported = {
            "state": state.value,
            "pid": os.getpid(),
            "updated": now_ms(),
            "reason": reason,
            "tables": tables,
        }
        draft = self._path.with_name(f"progress.{os.getpid()}.part")
        try:
            draft.write_text(json.dumps(reported, indent=1))
            draft.replace(self._path)
        except OSError as error:
            self._warn(str(error))  # a full disk must not end the job
        else:
            self._warned = False

    def _warn(self, why: str) -> None:
        if not self._warned:
            _LOG.warning(
                "the Spark job cannot write its progress file, so `kworker status` shows an old"
                " state of it; the job goes on",
                reason=why,
            )
        self._warned = True


def progress_path(state_dir: Path) -> Path:
    return state_dir / "spark" / "progress.json"


def read_progress(state_dir: Path) -> dict[str, Any] | None:
    """Reads the job's last report; None if there is no readable report.

    If the job's process ended without reporting its end, the state is `stopped`.
    """
    try:
        found: dict[str, Any] = json.loads(progress_path(state_dir).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if found["state"] not in (JobState.FAILED, JobState.STOPPED) and not psutil.pid_exists(
        found["pid"]
    ):
        found |= {"state": JobState.STOPPED.value, "reason": f"process {found['pid']} is gone"}
    return found
