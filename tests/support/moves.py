"""Who was given which partitions, and when they were taken away, by the service's own log."""

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from tests.support.ledgers import At, Invocation, by_position
from tests.support.lines import whole_lines
from tests.support.service import Service

GIVEN, TAKEN = "partitions assigned", ("partitions revoked", "partitions lost")


class Move(NamedTuple):
    """A partition came to a process, or went from it."""

    pid: int
    at: At
    given: bool
    time_ns: int


class Moves:
    """Of one service, all that its workers told."""

    def __init__(self, moves: Iterable[Move]) -> None:
        self._taken: dict[tuple[int, At], list[int]] = defaultdict(list)
        self._given: dict[At, list[Move]] = defaultdict(list)
        for move in sorted(moves, key=lambda move: move.time_ns):
            if move.given:
                self._given[move.at].append(move)
            else:
                self._taken[move.pid, move.at].append(move.time_ns)

    @classmethod
    def of(cls, service: Service) -> "Moves":
        lines = [json.loads(line) for line in whole_lines(service.output) if line[:1] == "{"]
        return cls(move for line in lines for move in _moves(line))

    def taken(self, run: Invocation, until_ns: int) -> int | None:
        """When a run's partition was first taken from its process, if that was by then."""
        times = self._taken[run.pid, run.at]
        first = bisect_left(times, run.start_ns)
        return times[first] if first < len(times) and times[first] <= until_ns else None

    def outlived(self, runs: Iterable[Invocation]) -> list[Invocation]:
        """Runs that went on when their partition was taken from their process."""
        return [r for r in runs if r.end_ns is not None and self.taken(r, r.end_ns) is not None]

    def returned(self, run: Invocation) -> bool:
        """Whether the next to have its partition, after a run that outlived it, was its process."""
        assert run.end_ns is not None
        taken_ns = self.taken(run, run.end_ns)
        assert taken_ns is not None
        return [move.pid for move in self._after(run.at, taken_ns)][:1] == [run.pid]

    def stayed(self, before: Invocation, again: Invocation) -> bool:
        """Whether nobody else was given the partition between the beginnings of two runs."""
        between = self._after(before.at, before.start_ns)
        return all(m.pid == before.pid for m in between if m.time_ns < again.start_ns)

    def _after(self, at: At, time_ns: int) -> Sequence[Move]:
        given = self._given[at]
        return given[bisect_right(given, time_ns, key=lambda move: move.time_ns) :]


def again_in_one_process(runs: Sequence[Invocation]) -> list[tuple[Invocation, Invocation]]:
    """Runs of one record in one process, each with the one before it there."""
    pairs = []
    for of_record in by_position(runs).values():
        of_process: dict[int, list[Invocation]] = defaultdict(list)
        for run in of_record:
            of_process[run.pid].append(run)
        for own in of_process.values():
            pairs += list(pairwise(own))
    return pairs


def _moves(line: dict[str, object]) -> Iterable[Move]:
    event = str(line.get("event"))
    if event != GIVEN and not event.startswith(TAKEN):
        return
    time_ns = int(datetime.fromisoformat(str(line["timestamp"])).timestamp() * 1e6) * 1000
    partitions, pid = line["partitions"], line["pid"]
    assert isinstance(partitions, list)
    assert isinstance(pid, int)
    for name in partitions:
        topic, number = name.rsplit("/", 1)
        yield Move(pid, (topic, int(number)), event == GIVEN, time_ns)
