"""Looking at the workers from outside: who is stuck, who has grown too large, how fast they go."""

from dataclasses import dataclass

import structlog

from kworker.config.model import Config
from kworker.core.duration import format_duration
from kworker.core.wear import WornOut, reason
from kworker.instance import exit_plan
from kworker.instance.proc import CpuSample, rss_bytes
from kworker.instance.scoreboard import Field, Held
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.worker_process import ExitRequest, WorkerProcess
from kworker.supervisor.limits import Limits

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why a worker must be replaced, and the records to whose handlers that is due."""

    problem: str
    held: tuple[Held, ...] = ()


class WorkerHealth:
    """Judges by the scoreboard and by /proc. Owned by the supervisor."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._limits = limits
        self._since = 0.0
        self._sampled_at = 0.0
        self._weighed_at = 0.0

    def reset_timers(self, now: float) -> None:
        """We were stopped ourselves: silence before now proves nothing."""
        self._since = now

    def is_responsive(self, now: float) -> bool:
        """Whether no worker is stuck, which is what systemd's watchdog is told."""
        return not any(self._silent(worker, now) for worker in self._fleet.workers)

    def turn(self, config: Config, now: float) -> None:
        """Samples the counters, and ends workers whose poll thread or a handler is stuck."""
        if now - self._sampled_at >= self._limits.sample_every_s:
            self._sampled_at = now
            for worker in self._fleet.workers:
                worker.sample(now, self._limits.rate_over_s)
        for worker in self._fleet.workers:
            if worker.exit_request in (ExitRequest.NONE, ExitRequest.DRAIN):
                self._sample_cpu_time(worker, now)
                if stuck := self._stuck(worker, config, now):
                    self._abort(worker, stuck, now)

    def worn_out(self, config: Config, now: float) -> list[int]:
        """The numbers of those that should be replaced: over `memory`, or over `max_records`."""
        if now - self._weighed_at < self._limits.memory_every_s:
            return []
        self._weighed_at = now
        running = [worker for worker in self._fleet.workers if worker.running]
        return [
            m.number
            for m in running
            if self._is_over_memory(m, config, now) or _has_reached_max_records(m, config)
        ]

    def _abort(self, worker: WorkerProcess, stuck: Stuck, now: float) -> None:
        limits = self._limits
        abort_s = limits.dump_s + limits.term_s
        _log.error(
            f"worker {worker.number} {stuck.problem}: stacks are dumped, it is replaced; SIGTERM in"
            f" {limits.dump_s:g} s, SIGABRT in {abort_s:g} s, SIGKILL in"
            f" {abort_s + limits.abort_s:g} s",
            worker_pid=worker.pid,
            suspects=[f"{h.topic}/{h.partition}/{h.offset}" for h in stuck.held],
        )
        steps = exit_plan.for_stuck_process(now, limits.dump_s, limits.term_s, limits.abort_s)
        worker.abort(steps, stuck.held)
        worker.send_due_signals(now)

    def _stuck(self, worker: WorkerProcess, config: Config, now: float) -> Stuck | None:
        # A drain has its own deadline, and what it leaves behind is nobody's fault.
        judged = worker.exit_request is ExitRequest.NONE and worker.phase.taking
        if problem := self._silent(worker, now):
            return Stuck(problem, self._busy_records(worker, now) if judged else ())
        if judged and (problem := self._stalled(worker)):
            return Stuck(problem)
        limit_s = config.workers.handler_timeout
        overdue = self._overdue(worker, limit_s, now) if judged else ()
        if not overdue:
            return None
        timeout = format_duration(limit_s)
        return Stuck(f"has a handler over workers.handler_timeout = {timeout}", overdue)

    def _stalled(self, worker: WorkerProcess) -> str:
        """Slow handlers are for their time-out to judge, and none of what waits is in the pool."""
        words = worker.slot.words
        stalled_s = words[Field.STALLED_MS] / 1000
        if stalled_s <= self._limits.stalled_s or worker.slot.oldest_since_ns() is not None:
            return ""
        in_flight = words[Field.IN_FLIGHT]
        return (
            f"has ended no record for {stalled_s:.0f} s, with {in_flight} in flight and no handler"
            " at work"
        )

    def _overdue(self, worker: WorkerProcess, limit_s: float, now: float) -> tuple[Held, ...]:
        oldest_ns = worker.slot.oldest_since_ns()
        if oldest_ns is None or now - max(oldest_ns / 1e9, self._since) <= limit_s:
            return ()
        held = worker.slot.held()
        return tuple(h for h in held if now - max(h.since_ns / 1e9, self._since) > limit_s)

    def _sample_cpu_time(self, worker: WorkerProcess, now: float) -> None:
        """Who computes is seen by two looks; the first is at half of what is waited."""
        if worker.silent_s(now, self._since) < self._limits.heartbeat_s / 2:
            worker.cpu_sample = None
        elif worker.pid and worker.cpu_sample is None:
            worker.cpu_sample = CpuSample(worker.pid, now)

    def _busy_records(self, worker: WorkerProcess, now: float) -> tuple[Held, ...]:
        """Of a silent worker's records that whose thread computes; all, when none is found."""
        busy = worker.cpu_sample.busy_threads(now) if worker.cpu_sample else set()
        held = worker.slot.held()
        return tuple(h for h in held if h.thread in busy) or tuple(held)

    def _silent(self, worker: WorkerProcess, now: float) -> str:
        return why_silent(worker, self._limits, now, self._since)

    def _is_over_memory(self, worker: WorkerProcess, config: Config, now: float) -> bool:
        size, most = rss_bytes(worker.pid), config.workers.memory
        baseline = worker.slot.words[Field.BASELINE_BYTES]
        judgement = worker.wear.weigh(size, baseline, most, now)
        problem = reason(judgement, size, most)
        worn_out = isinstance(judgement, WornOut)
        if worn_out or (problem and not worker.size_problem):
            _log.warning(f"worker {worker.number} {problem}")
        if worn_out:
            worker.wear.replaced(now)
        worker.size_problem = "" if worn_out else problem
        return worn_out


def _has_reached_max_records(worker: WorkerProcess, config: Config) -> bool:
    """It has taken as many records as one may."""
    taken, most = worker.slot.words[Field.CONSUMED], config.workers.max_records
    if not 0 < most <= taken:
        return False
    _log.warning(
        f"worker {worker.number} has taken {taken} records, workers.max_records = {most}:"
        " it is drained and replaced"
    )
    return True


def why_silent(worker: WorkerProcess, limits: Limits, now: float, since: float) -> str:
    """What a process that beats no more is doing; silence before `since` does not count."""
    if not worker.alive:
        return ""
    silent_s = worker.silent_s(now, since)
    if worker.polled and silent_s > limits.heartbeat_s:
        return f"has not polled for {silent_s:.0f} s"
    # One that waits for what its handler needs at boot beats, too.
    if not worker.polled and silent_s > limits.boot_s:
        return f"is starting for {silent_s:.0f} s"
    return ""
