"""The status document of DESIGN 5, and the lines for systemd and `stop` made of the same."""

from time import monotonic_ns
from typing import Any

from kworker.core.phase import Phase
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard import Field
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.worker_process import WorkerProcess

_COUNTERS = (
    "consumed",
    "done",
    "failed",
    "retried",
    "dead",
    "duplicates",
    "dropped",
    "unguarded",
    "remembered",
    "maps_ignored",
)


def fleet_part(fleet: Fleet, now: float) -> dict[str, Any]:
    """The part of the document that the scoreboard tells."""
    counters = fleet.counters()
    return {
        "workers": [_row(member, now) for member in fleet.members],
        "held": fleet.sum(Field.HELD),
        "suspects": fleet.sum(Field.SUSPECTS),
        "counters": {name: counters[name] for name in _COUNTERS},
    }


def progress(fleet: Fleet, state: str) -> dict[str, Any]:
    """A line of what goes on, for `stop` and `restart`."""
    since = [s for member in fleet.members if (s := member.slot.oldest_since_ns())]
    return {
        "state": state,
        "workers": sum(member.alive for member in fleet.members),
        "in_hand": fleet.in_hand(),
        "oldest_s": round(_age_s(min(since)), 1) if since else 0.0,
    }


def sentence(fleet: Fleet, state: str, reasons: list[str]) -> str:
    """One line for `systemctl status`."""
    if reasons:
        return f"{state}: {'; '.join(reasons)}"
    joined = sum(member.running for member in fleet.members)
    workers = f"{joined} of {fleet.size} workers" if joined < fleet.size else f"{joined} workers"
    if state == "draining":
        workers = f"{sum(member.alive for member in fleet.members)} workers left"
    rate = sum(member.rate() for member in fleet.members)
    return f"{state}: {workers}, {rate:.0f}/s, {fleet.in_hand()} in hand"


def fleet_reasons(fleet: Fleet, now: float) -> list[str]:
    """Why the service is red because of its workers; each reason once."""
    reasons: dict[str, None] = {}
    for member in fleet.members:
        if not member.alive and member.why_dead and member.start_at and member.start_at > now:
            wait_s = member.start_at - now
            reasons[
                f"worker {member.number} exited ({member.why_dead}); next start in {wait_s:.0f} s"
            ] = None
        if member.alive and member.too_large:
            reasons[f"worker {member.number} {member.too_large}"] = None
        if member.alive and member.slot.words[Field.RED]:
            reasons.update(dict.fromkeys(member.slot.read_text().reasons))
    return list(reasons)


def _age_s(since_ns: int) -> float:
    """By a clock read after `since_ns` was: handlers go on while the document is made."""
    return (monotonic_ns() - since_ns) / 1e9


def _row(member: WorkerProcess, now: float) -> dict[str, Any]:
    words, text = member.slot.words, member.slot.read_text()
    oldest = member.slot.oldest_since_ns() if member.alive else None
    # A slot between two lives has no process, so nothing but its number and its history.
    phase: Phase = member.phase
    return {
        "slot": member.number,
        "pid": member.pid,
        "phase": phase.name.lower(),
        "partitions": [list(partition) for partition in text.partitions],
        "in_hand": words[Field.IN_HAND],
        "in_flight": words[Field.IN_FLIGHT],
        "oldest_s": round(_age_s(oldest), 3) if oldest else 0.0,
        "heartbeat_age_s": round(member.silent_s(now, 0.0), 3) if member.alive else None,
        "rate": round(member.rate(), 1),
        "rss_bytes": rss_bytes(member.pid),
        "restarts": member.restarts,
        "replacements": member.replacements,
        "reasons": list(text.reasons),
    }
