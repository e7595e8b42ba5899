"""Looking at the workers from outside: who is stuck, who has grown too large, how fast they go."""

import os

import structlog

from kworker.config import Config
from kworker.supervisor.fleet import Fleet
from kworker.supervisor.limits import Limits
from kworker.supervisor.member import Asked, Member
from kworker.supervisor.scoreboard import Field

_log = structlog.get_logger()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Watch:
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
        return not any(self._why_stuck(member, now) for member in self._fleet.members)

    def turn(self, now: float) -> None:
        """Samples the counters, and ends workers whose poll thread is stuck."""
        if now - self._sampled_at >= self._limits.sample_every_s:
            self._sampled_at = now
            for member in self._fleet.members:
                member.sample(now, self._limits.rate_over_s)
        for member in self._fleet.members:
            why = self._why_stuck(member, now)
            if why and member.asked in (Asked.NOTHING, Asked.DRAIN):
                _log.error(
                    f"worker {member.number} {why}: stacks are dumped, it is replaced",
                    worker_pid=member.pid,
                    in_hand=[f"{h.topic}/{h.partition}/{h.offset}" for h in member.slot.held()],
                )
                member.abort(now + self._limits.abort_s)

    def worn_out(self, config: Config, now: float) -> list[int]:
        """The numbers of those that should be replaced: over `memory`, or over `max_records`."""
        if now - self._weighed_at < self._limits.memory_every_s:
            return []
        self._weighed_at = now
        worn = []
        for member in self._fleet.members:
            why = self._wear(member, config) if member.running else ""
            if why:
                _log.warning(f"worker {member.number} {why}: it is drained and replaced")
                worn.append(member.number)
        return worn

    def _why_stuck(self, member: Member, now: float) -> str:
        return why_stuck(member, self._limits, now, self._since)

    def _wear(self, member: Member, config: Config) -> str:
        size = rss_bytes(member.pid)
        if size > config.workers.memory:
            most = config.workers.memory >> 20
            return f"has grown to {size >> 20} MiB, over workers.memory = {most} MiB"
        taken = member.slot.words[Field.CONSUMED]
        if 0 < config.workers.max_records <= taken:
            return f"has taken {taken} records, workers.max_records = {config.workers.max_records}"
        return ""


def why_stuck(member: Member, limits: Limits, now: float, since: float) -> str:
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


def rss_bytes(pid: int | None) -> int:
    """The resident size of a process; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
