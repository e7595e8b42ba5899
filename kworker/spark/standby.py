"""A job in standby: waits for the lease on its checkpoints, then until no other job leads."""

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kworker.clients.leader import Leadership
from kworker.errors import KworkerError
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.progress import JobState, read_progress
from kworker.spark.stop import StopRequest

_LOG = structlog.get_logger()

STANDBY_S = 1.0
ELECTION_S = 2.0  # by then a group has elected its leader
POLL_S = 0.1


class Standby:
    """Waits until this job may start Spark. Owned by the job's main thread.

    The job needs the lease on its checkpoints, and the leadership in its consumer group. `report`
    writes the state and its reason to the progress file.
    """

    def __init__(
        self,
        state_dir: Path,
        lease: Lease,
        stop: StopRequest,
        report: Callable[[JobState, str], None],
    ) -> None:
        self._state_dir = state_dir
        self._lease = lease
        self._stop = stop
        self._report = report

    def await_lease(self) -> bool:
        """Waits for the lease. Returns False if a stop is requested before the job gets it."""
        reported = False
        while not self._take_lease():
            if not reported:
                holder = self._lease.holder()
                _LOG.info(
                    "this Spark job is in standby: another process holds the checkpoints",
                    holder=str(holder or "not known"),
                )
                reported = True
            self._report_holder()
            if self._stop.wait(STANDBY_S):
                return False
        return True

    def _take_lease(self) -> bool:
        try:
            return self._lease.take()
        except OSError as error:
            folder = self._lease.checkpoints
            raise KworkerError(f"spark.checkpoints: {folder} cannot be locked: {error}") from error

    def _report_holder(self) -> None:
        """Reports in the progress file that this job waits.

        Does nothing if the holder of the lease writes the same file.
        """
        reported = read_progress(self._state_dir) or {}
        holder = self._lease.holder()
        if holder is None or holder.gone or reported.get("pid") != holder.pid:
            who = holder or "another process"
            self._report(JobState.STANDBY, f"{who} holds {self._lease.checkpoints}")

    def await_leadership(self, leadership: Leadership) -> bool:
        """Waits until this job leads, or no leader is known.

        For the first ELECTION_S seconds, also waits while no leader is known, unless the election
        has a problem. Returns False if a stop is requested meanwhile.
        """
        election_ends = time.monotonic() + ELECTION_S
        reported = ""
        while not leads(leadership):
            late = time.monotonic() > election_ends
            if not leadership.leader and (leadership.problem or late):
                return True  # Spark may start meanwhile
            why = why_standby(leadership)
            if leadership.leader and why != reported:
                _LOG.info(f"this Spark job is in standby: {why}")
                reported = why
            self._report(JobState.STANDBY, why)
            if self._stop.wait(POLL_S):
                return False
        return True


def leads(leadership: Leadership) -> bool:
    """Polls the leader election; True if this job leads."""
    leadership.turn()
    return leadership.leads


def why_standby(leadership: Leadership) -> str:
    """Explains in one line that another job leads, or why no leader is known."""
    leader = leadership.leader
    return leadership.problem or (f"{leader} leads" if leader else "no leader elected yet")
