"""Looking at the workers from outside: who is stuck, who has grown too large, how fast they go."""

from dataclasses import dataclass

import structlog

from kworker.config.model import Config
from kworker.core.duration import format_duration
from kworker.core.wear import WornOut, reason
from kworker.instance import exit_plan
from kworker.instance.proc import Runners, rss_bytes
from kworker.instance.scoreboard import Field, Held
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.worker_process import Asked, WorkerProcess
from kworker.supervisor.limits import Limits

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why a worker must be replaced, and the records to whose handlers that is due."""

    why: str
    held: tuple[Held, ...] = ()


class WorkerHealth:
    """Judges by the scoreboard and by /proc. Owned by the supervisor."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._limits = limits
        self._since = 0.0
        self._sampled_at = 0.0
        self._weighed_at = 0.0

    def excuse(self, now: float) -> None:
        """We were stopped ourselves: silence before now proves nothing."""
        self._since = now

    def fresh(self, now: float) -> bool:
        """Whether no worker is stuck, which is what systemd's watchdog is told."""
        return not any(self._silent(member, now) for member in self._fleet.members)

    def turn(self, config: Config, now: float) -> None:
        """Samples the counters, and ends workers whose poll thread or a handler is stuck."""
        if now - self._sampled_at >= self._limits.sample_every_s:
            self._sampled_at = now
            for member in self._fleet.members:
                member.sample(now, self._limits.rate_over_s)
        for member in self._fleet.members:
            if member.asked in (Asked.NOTHING, Asked.DRAIN):
                self._look_for_runners(member, now)
                if stuck := self._stuck(member, config, now):
                    self._end(member, stuck, now)

    def worn_out(self, config: Config, now: float) -> list[int]:
        """The numbers of those that should be replaced: over `memory`, or over `max_records`."""
        if now - self._weighed_at < self._limits.memory_every_s:
            return []
        self._weighed_at = now
        running = [member for member in self._fleet.members if member.running]
        return [m.number for m in running if self._too_large(m, config, now) or _done(m, config)]

    def _end(self, member: WorkerProcess, stuck: Stuck, now: float) -> None:
        limits = self._limits
        abort_s = limits.dump_s + limits.term_s
        _log.error(
            f"worker {member.number} {stuck.why}: stacks are dumped, it is replaced; SIGTERM in"
            f" {limits.dump_s:g} s, SIGABRT in {abort_s:g} s, SIGKILL in"
            f" {abort_s + limits.abort_s:g} s",
            worker_pid=member.pid,
            suspects=[f"{h.topic}/{h.partition}/{h.offset}" for h in stuck.held],
        )
        steps = exit_plan.of_a_stuck_one(now, limits.dump_s, limits.term_s, limits.abort_s)
        member.abort(steps, stuck.held)
        member.press(now)

    def _stuck(self, member: WorkerProcess, config: Config, now: float) -> Stuck | None:
        # A drain has its own deadline, and what it leaves behind is nobody's fault.
        judged = member.asked is Asked.NOTHING and member.phase.taking
        if why := self._silent(member, now):
            return Stuck(why, self._computing(member, now) if judged else ())
        if judged and (why := self._stopped(member)):
            return Stuck(why)
        limit_s = config.workers.handler_timeout
        overdue = self._overdue(member, limit_s, now) if judged else ()
        if not overdue:
            return None
        timeout = format_duration(limit_s)
        return Stuck(f"has a handler over workers.handler_timeout = {timeout}", overdue)

    def _stopped(self, member: WorkerProcess) -> str:
        """Slow handlers are for their time-out to judge, and none of what waits is in the pool."""
        words = member.slot.words
        still_s = words[Field.STILL_MS] / 1000
        if still_s <= self._limits.still_s or member.slot.oldest_since_ns() is not None:
            return ""
        in_flight = words[Field.IN_FLIGHT]
        return (
            f"has ended no record for {still_s:.0f} s, with {in_flight} in flight and no handler"
            " at work"
        )

    def _overdue(self, member: WorkerProcess, limit_s: float, now: float) -> tuple[Held, ...]:
        oldest_ns = member.slot.oldest_since_ns()
        if oldest_ns is None or now - max(oldest_ns / 1e9, self._since) <= limit_s:
            return ()
        held = member.slot.held()
        return tuple(h for h in held if now - max(h.since_ns / 1e9, self._since) > limit_s)

    def _look_for_runners(self, member: WorkerProcess, now: float) -> None:
        """Who computes is seen by two looks; the first is at half of what is waited."""
        if member.silent_s(now, self._since) < self._limits.heartbeat_s / 2:
            member.runners = None
        elif member.pid and member.runners is None:
            member.runners = Runners(member.pid, now)

    def _computing(self, member: WorkerProcess, now: float) -> tuple[Held, ...]:
        """Of a silent worker's records that whose thread computes; all, when none is found."""
        computing = member.runners.computing(now) if member.runners else set()
        held = member.slot.held()
        return tuple(h for h in held if h.thread in computing) or tuple(held)

    def _silent(self, member: WorkerProcess, now: float) -> str:
        return why_silent(member, self._limits, now, self._since)

    def _too_large(self, member: WorkerProcess, config: Config, now: float) -> bool:
        size, most = rss_bytes(member.pid), config.workers.memory
        baseline = member.slot.words[Field.BASELINE_BYTES]
        judgement = member.wear.weigh(size, baseline, most, now)
        why = reason(judgement, size, most)
        worn_out = isinstance(judgement, WornOut)
        if worn_out or (why and not member.too_large):
            _log.warning(f"worker {member.number} {why}")
        if worn_out:
            member.wear.replaced(now)
        member.too_large = "" if worn_out else why
        return worn_out


def _done(member: WorkerProcess, config: Config) -> bool:
    """It has taken as many records as one may."""
    taken, most = member.slot.words[Field.CONSUMED], config.workers.max_records
    if not 0 < most <= taken:
        return False
    _log.warning(
        f"worker {member.number} has taken {taken} records, workers.max_records = {most}:"
        " it is drained and replaced"
    )
    return True


def why_silent(member: WorkerProcess, limits: Limits, now: float, since: float) -> str:
    """What a process that beats no more is doing; silence before `since` does not count."""
    if not member.alive:
        return ""
    silent_s = member.silent_s(now, since)
    if member.polled and silent_s > limits.heartbeat_s:
        return f"has not polled for {silent_s:.0f} s"
    # One that waits for what its handler needs at boot beats, too.
    if not member.polled and silent_s > limits.boot_s:
        return f"is starting for {silent_s:.0f} s"
    return ""
