"""The changes between two status documents, in lines for a person. Pure."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kworker.core.pauses import named

# Durations and counts, which change while a problem lasts; not the numbers of workers, partitions.
_AMOUNTS = re.compile(r"\d[\d.,]*(?= ?(?:ms|s|min|h|records?|results?|bytes)\b)")


class Change(NamedTuple):
    """A change of the service, and the time when it was seen, in seconds since 1970."""

    at: float
    text: str


def problem_kind(problem: str) -> str:
    """Returns a problem's text without its amounts, so that it is the same when they change."""
    return _AMOUNTS.sub("#", problem)


def changes(before: dict[str, Any] | None, after: dict[str, Any]) -> Iterator[str]:
    """Yields a line for each change: of the state, of processes, of partitions, of problems."""
    if before is None:
        return
    if before["pid"] != after["pid"]:
        yield f"the supervisor is new: pid {after['pid']}, version {after['version']}"
    if before["state"] != after["state"]:
        yield f"the service was {before['state']}, and is {after['state']}"
    known = {problem_kind(problem) for problem in before["reasons"]}
    yield from (each for each in after["reasons"] if problem_kind(each) not in known)
    yield from _pauses(before, after)
    yield from _workers(before, after)
    if before["delay"]["pid"] != after["delay"]["pid"]:
        yield _moved("the delay process", before["delay"]["pid"], after["delay"]["pid"])
    if before["spark"]["state"] != after["spark"]["state"]:
        yield f"the Spark job was {before['spark']['state']}, and is {after['spark']['state']}"


def _pauses(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old = {row["topic"]: row for row in before["paused"]}
    new = {row["topic"]: row for row in after["paused"]}
    for topic, row in new.items():
        if topic not in old:
            yield f"{row['by']} paused {named(topic)}"
    yield from (f"the pause of {named(topic)} is over" for topic in old if topic not in new)


def _workers(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old = {worker["slot"]: worker for worker in before["workers"]}
    new = {worker["slot"]: worker for worker in after["workers"]}
    yield from (f"worker {slot} was removed" for slot in old if slot not in new)
    for slot, worker in new.items():
        was = old.get(slot)
        if was is None:
            yield f"worker {slot} was added"
        elif was["pid"] != worker["pid"]:
            yield _moved(f"worker {slot}", was["pid"], worker["pid"])
        elif sorted(was["partitions"]) != sorted(worker["partitions"]):
            counts = len(was["partitions"]), len(worker["partitions"])
            yield f"worker {slot} had {counts[0]} partitions, and has {counts[1]}"


def _moved(who: str, was: int, now: int) -> str:
    if not now:
        return f"{who} has ended: it was pid {was}"
    return f"{who} has started: pid {now}" if not was else f"{who} was pid {was}, and is pid {now}"
