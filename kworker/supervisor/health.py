"""Watches the workers from outside: finds stuck and worn-out ones, and samples their counters.

A worker is worn out if it exceeds `memory` or has reached `max_records`.
"""

from dataclasses import dataclass

import structlog

from kworker.config.model import Config
from kworker.core.duration import format_duration
from kworker.core.wear import WornOut, reason
from kworker.instance import exit_plan
from kworker.instance.hand import Held
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard_fields import Field
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.worker_process import ExitRequest, WorkerProcess
from kworker.supervisor.limits import Limits

_LOG = structlog.get_logger()
_LOGGED_MAX = 20  # records in a log line


@dataclass(frozen=True, slots=True)
class Stuck:
    """The symptom of a stuck worker, and the records over the time-out, or all if it is silent."""

    problem: str
    held: tuple[Held, ...] = ()


class WorkerHealth:
    """Finds workers that are stuck, exceed `memory` or reach `max_records`.

    Reads the scoreboard and /proc. Owned by the supervisor.
    """

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._limits = limits
        self._since = 0.0
        self._sampled_at = 0.0
        self._weighed_at = 0.0

    def reset_timers(self, now: float) -> None:
        """Restarts the timers that find silent workers and late handlers.

        Called with the present time after the supervisor was suspended.
        """
        self._since = now

    def is_responsive(self, now: float) -> bool:
        """Returns True if no heartbeat is overdue; only then may systemd's watchdog be fed."""
        return not any(self._silent(worker, now) for worker in self._fleet.workers)

    def turn(self, config: Config, now: float) -> None:
        """Samples the counters, and ends workers with a stuck poll thread, pool or handler."""
        if now - self._sampled_at >= self._limits.sample_every_s:
            self._sampled_at = now
            for worker in self._fleet.workers:
                worker.sample(now, self._limits.rate_over_s)
        for worker in self._fleet.workers:
            if worker.exit_request in (ExitRequest.NONE, ExitRequest.DRAIN):
                if stuck := self._stuck(worker, config, now):
                    self._abort(worker, stuck, now)
            elif worker.exit_request is ExitRequest.ABORT:
                worker.watch_threads(now)

    def find_worn_out(self, config: Config, now: float) -> dict[int, str]:
        """Returns and logs the workers that exceed `memory` or reach `max_records`.

        The keys are the workers' numbers, the values name the setting that was exceeded or reached.
        """
        if now - self._weighed_at < self._limits.memory_every_s:
            return {}
        self._weighed_at = now
        running = [worker for worker in self._fleet.workers if worker.running]
        worn_out = {w.number: "memory" for w in running if self._check_memory(w, config, now)}
        rest = (worker for worker in running if worker.number not in worn_out)
        full = {w.number: "max_records" for w in rest if _check_max_records(w, config)}
        return {**worn_out, **full}

    def _abort(self, worker: WorkerProcess, stuck: Stuck, now: float) -> None:
        limits = self._limits
        abort_s = limits.dump_s + limits.term_s
        _LOG.error(
            f"worker {worker.number} is stuck: it {stuck.problem}; dumping its stacks and replacing"
            f" it, with SIGTERM in {limits.dump_s:g} s, SIGABRT in {abort_s:g} s, SIGKILL in"
            f" {abort_s + limits.abort_s:g} s",
            worker_pid=worker.pid,
            records=[f"{h.topic}:{h.partition}:{h.offset}" for h in stuck.held[:_LOGGED_MAX]],
        )
        steps = exit_plan.for_stuck_process(now, limits.dump_s, limits.term_s, limits.abort_s)
        worker.abort(steps, stuck.held, now)
        worker.send_due_signals(now)

    def _stuck(self, worker: WorkerProcess, config: Config, now: float) -> Stuck | None:
        # A drain has its own deadline, and no record is to blame for what it leaves behind.
        judged = worker.exit_request is ExitRequest.NONE and worker.phase.taking
        if problem := self._silent(worker, now):
            return Stuck(problem, tuple(worker.slot.held()) if judged else ())
        if judged and (problem := self._stalled(worker)):
            return Stuck(problem)
        limit_s = config.workers.handler_timeout
        overdue = self._overdue(worker, limit_s, now) if judged else ()
        if not overdue:
            return None
        timeout = format_duration(limit_s)
        return Stuck(f"has a handler over workers.handler_timeout = {timeout}", overdue)

    def _stalled(self, worker: WorkerProcess) -> str:
        """Returns the symptom of a worker whose handler pool finishes nothing, or "".

        Returns "" while a handler runs, since the handler's time-out applies then. Records that
        wait for a retry do not count as work of the pool.
        """
        words = worker.slot.words
        stalled_s = words[Field.STALLED_MS] / 1000
        if stalled_s <= self._limits.stalled_s or worker.slot.oldest_since_ns() is not None:
            return ""
        in_flight = words[Field.IN_FLIGHT]
        return (
            f"has finished no record for {stalled_s:.0f} s, with {in_flight} in flight and no"
            " handler running"
        )

    def _overdue(self, worker: WorkerProcess, limit_s: float, now: float) -> tuple[Held, ...]:
        oldest_ns = worker.slot.oldest_since_ns()
        if oldest_ns is None or now - max(oldest_ns / 1e9, self._since) <= limit_s:
            return ()
        held = worker.slot.held()
        return tuple(h for h in held if now - max(h.since_ns / 1e9, self._since) > limit_s)

    def _silent(self, worker: WorkerProcess, now: float) -> str:
        return why_silent(worker, self._limits, now, self._since)

    def _check_memory(self, worker: WorkerProcess, config: Config, now: float) -> bool:
        """Logs when the worker exceeds `memory`; returns True if it must be replaced for that."""
        size, size_max = rss_bytes(worker.pid), config.workers.memory
        baseline = worker.slot.words[Field.BASELINE_BYTES]
        judgement = worker.wear.weigh(size, baseline, size_max, now)
        problem = reason(judgement, size, size_max)
        worn_out = isinstance(judgement, WornOut)
        if worn_out or (problem and not worker.size_problem):
            _LOG.warning(f"worker {worker.number} uses too much memory: it {problem}")
        if worn_out:
            worker.wear.replaced(now)
        worker.size_problem = "" if worn_out else problem
        return worn_out


def _check_max_records(worker: WorkerProcess, config: Config) -> bool:
    taken, taken_max = worker.slot.words[Field.CONSUMED], config.workers.max_records
    if not 0 < taken_max <= taken:
        return False
    _LOG.warning(
        f"worker {worker.number} has taken {taken} records, workers.max_records = {taken_max}:"
        " draining and replacing it"
    )
    return True


def why_silent(worker: WorkerProcess, limits: Limits, now: float, since: float) -> str:
    """Returns a phrase that says how long a worker has had no heartbeat.

    Returns "" if the heartbeat is not overdue. The time before `since` does not count.
    """
    if not worker.alive:
        return ""
    silent_s = worker.silent_s(now, since)
    if worker.polled and silent_s > limits.heartbeat_s:
        return f"has not polled for {silent_s:.0f} s"
    # A worker whose handler waits for a dependency at its start has a heartbeat, too.
    if not worker.polled and silent_s > limits.boot_s:
        return f"has been starting for {silent_s:.0f} s"
    return ""
