"""Parts of `status --json`, and the lines for systemd, `stop` and `restart`."""

import os
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any

from kworker.config.model import Config
from kworker.core.durations import BOUNDS_S
from kworker.core.pauses import ALL
from kworker.core.phase import Phase
from kworker.distribution import package_version
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard_fields import (
    DEAD_BY_REASON,
    REDIS_CALLS,
    RUN_TIMES,
    TRANSACTIONS,
    WAIT_TIMES,
    Field,
)
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.worker_process import WorkerProcess

_LETTERS_MAX = 10
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
    "published",
    "commits",
    "rebalances",
)


def service_identity(config: Config, uptime_s: float) -> dict[str, Any]:
    """Returns the part of the status document that says which service and process this is."""
    return {
        "name": config.name,
        "instance": config.instance,
        "version": package_version(),
        "pid": os.getpid(),
        "uptime_s": round(uptime_s, 1),
    }


def fleet_status(fleet: Fleet, now: float) -> dict[str, Any]:
    """Returns the part of the status document that is read from the scoreboard."""
    counters = fleet.counters()
    return {
        "workers": [_worker_row(worker, now) for worker in fleet.workers],
        "held": fleet.sum(Field.HELD),
        "suspects": fleet.sum(Field.SUSPECTS),
        "counters": {name: counters[name] for name in _COUNTERS},
        "dead_letters": {
            reason: counters[field.name.lower()] for reason, field in DEAD_BY_REASON.items()
        },
        "deaths": dict(fleet.deaths),
        "replacements": dict(fleet.replacements),
        "last_dead_letters": _last_dead_letters(fleet),
        "runs": _histogram(counters, RUN_TIMES),
        "waits": _histogram(counters, WAIT_TIMES),
        "transactions": _by_end(counters, TRANSACTIONS, "committed", "aborted"),
        "redis_calls": _by_end(counters, REDIS_CALLS, "answered", "failed"),
        "rebalancing_s": counters[Field.REBALANCING_US.name.lower()] / 1e6,
    }


def progress(fleet: Fleet, state: str) -> dict[str, Any]:
    """Returns the progress that the commands `stop` and `restart` show."""
    since = [s for worker in fleet.workers if (s := worker.slot.oldest_since_ns())]
    return {
        "state": state,
        "workers": sum(worker.alive for worker in fleet.workers),
        "in_hand": fleet.in_hand(),
        "oldest_s": round(_age_s(min(since)), 1) if since else 0.0,
    }


def drain_end(fleet: Fleet, exit_code: int) -> dict[str, Any]:
    """Returns the last line of a drain's progress; `left` counts the records left in hand."""
    left = {"left": fleet.records_left} if fleet.records_left else {}
    return {"done": True, "exit_code": int(exit_code), **left}


def summary_line(
    fleet: Fleet, state: str, problems: list[str], paused: list[dict[str, Any]]
) -> str:
    """Returns the state and work of the service as one line, for `systemctl status`.

    `paused` has the rows of the status document for paused topics.
    """
    if problems:
        return f"{state}: {'; '.join(problems)}"
    joined = sum(worker.running for worker in fleet.workers)
    workers = f"{joined} of {fleet.size} workers" if joined < fleet.size else f"{joined} workers"
    if state == "draining":
        workers = f"{sum(worker.alive for worker in fleet.workers)} workers left"
    rate = sum(worker.rate() for worker in fleet.workers)
    line = f"{state}: {workers}, {rate:.0f}/s, {fleet.in_hand()} in hand"
    topics = [row["topic"] for row in paused if row["topic"] != ALL]
    return f"{line}, {', '.join(topics)} paused" if topics else line


def fleet_problems(fleet: Fleet, now: float) -> list[str]:
    """Returns the workers' problems, each once; any of them makes the service's state red."""
    problems: dict[str, None] = {}
    for worker in fleet.workers:
        if not worker.alive and worker.last_exit and worker.start_at and worker.start_at > now:
            wait_s = worker.start_at - now
            problems[
                f"worker {worker.number} exited ({worker.last_exit}); next start in {wait_s:.0f} s"
            ] = None
        if worker.alive and worker.size_problem:
            problems[f"worker {worker.number} {worker.size_problem}"] = None
        if worker.alive and worker.slot.words[Field.RED]:
            problems.update(dict.fromkeys(worker.slot.read_text().problems))
    return list(problems)


def _age_s(since_ns: int) -> float:
    """Returns the seconds since `since_ns`, a monotonic time in nanoseconds.

    Reads the clock itself: a time that the caller read earlier may lie before `since_ns`.
    """
    return (monotonic_ns() - since_ns) / 1e9


def _last_dead_letters(fleet: Fleet) -> list[dict[str, Any]]:
    """Returns the last dead letters of the living workers, the newest first."""
    found = [letter for worker in fleet.living for letter in worker.slot.read_text().letters]
    found.sort(key=lambda letter: letter.at_ms, reverse=True)
    return [letter._asdict() for letter in found[:_LETTERS_MAX]]


def _histogram(counters: Mapping[str, int], fields: Sequence[Field]) -> dict[str, Any]:
    """Returns a histogram of durations, with their sum.

    Each entry of `counts` is the number of durations that are above the previous bound and not
    above this entry's bound. The last entry is the number of durations above all bounds.
    """
    *counts, sum_us = (counters[field.name.lower()] for field in fields)
    return {"bounds_s": BOUNDS_S, "counts": counts, "sum_s": sum_us / 1e6}


def _by_end(
    counters: Mapping[str, int], fields: Sequence[Field], well: str, failed: str
) -> dict[str, Any]:
    """Returns number and total time of transactions or of calls to Redis, by how they ended.

    `well` and `failed` are the keys for those that succeeded and those that failed.
    """
    count, sum_us, failures, failures_us = (counters[field.name.lower()] for field in fields)
    return {
        well: {"count": count, "sum_s": sum_us / 1e6},
        failed: {"count": failures, "sum_s": failures_us / 1e6},
    }


def _worker_row(worker: WorkerProcess, now: float) -> dict[str, Any]:
    words, text = worker.slot.words, worker.slot.read_text()
    oldest = worker.slot.oldest_since_ns() if worker.alive else None
    # Between two lives a slot has no process: only its number and its history are shown.
    phase: Phase = worker.phase
    return {
        "slot": worker.number,
        "pid": worker.pid,
        "phase": phase.name.lower(),
        "partitions": [list(partition) for partition in text.partitions],
        "in_hand": words[Field.IN_HAND],
        "in_flight": words[Field.IN_FLIGHT],
        "oldest_s": round(_age_s(oldest), 3) if oldest else 0.0,
        "heartbeat_age_s": round(worker.silent_s(now, 0.0), 3) if worker.alive else None,
        "rate": round(worker.rate(), 1),
        "handlers": words[Field.HANDLERS],
        "utilisation": worker.utilisation(),
        "rss_bytes": rss_bytes(worker.pid),
        "restarts": worker.restarts,
        "replacements": worker.replacements,
        "reasons": list(text.problems),
    }
