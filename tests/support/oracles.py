"""The oracles: what must be true of ledgers, results and commits, whatever the service says.

Each returns what contradicts it, so that a test asserts an empty list and a failure shows why.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from tests.support.history import Commit
from tests.support.kafka import Read
from tests.support.ledgers import STOPPED, At, Fault, Invocation, Position, Produced, by_position

# The broker stamps a commit in whole milliseconds of the clock that the ledgers use.
MARGIN_NS = 2_000_000
MS = 1_000_000
CELL_ENDS_MS = 100  # after its worker, at most
STRAYS_MS = 500  # a process that was stopped learns within these, awake, what it has lost


def lost(produced: Iterable[Produced], runs: Iterable[Invocation]) -> list[Position]:
    """O1: records that Kafka acknowledged and whose handler never returned."""
    done = {run.position for run in runs if run.ended}
    return [record.position for record in produced if record.position not in done]


def phantoms(produced: Iterable[Produced], runs: Iterable[Invocation]) -> list[Position]:
    """O2: records that were handled and never acknowledged."""
    known = {record.position for record in produced}
    return [run.position for run in runs if run.position not in known]


def without_result(produced: Iterable[Produced], results: Iterable[Read]) -> list[Position]:
    """O1, in the results topic: records of which nothing is there."""
    there = {read.source for read in results}
    return [record.position for record in produced if record.position not in there]


def results_too_many(results: Iterable[Read], runs: Sequence[Invocation]) -> list[Position]:
    """O5: records with more results than their handler has returned."""
    returned = Counter(run.position for run in runs if run.ended)
    there = Counter(read.source for read in results)
    return [position for position, times in there.items() if times > returned[position]]


def twice(results: Iterable[Read]) -> list[Position]:
    """O5, exactly once: records with more than one visible result."""
    return [position for position, times in Counter(r.source for r in results).items() if times > 1]


def unsafe(
    commits: Sequence[Commit], produced: Iterable[Produced], reached_ns: dict[Position, int]
) -> list[tuple[Commit, Position]]:
    """O3, commit safety: commits above a record that had not reached its end by then.

    `reached_ns` is when each record first did: its handler returned, or its result was written.
    """
    records: dict[At, list[Produced]] = defaultdict(list)
    for record in produced:
        records[record.at].append(record)
    found = []
    for at, of_partition in records.items():
        of_partition.sort(key=lambda record: record.offset)
        latest = _running_latest(of_partition, reached_ns)
        offsets = [record.offset for record in of_partition]
        for commit in commits:
            below = bisect_left(offsets, commit.position) if commit.at == at else 0
            if below and latest[below - 1][0] > (commit.time_ms + 1) * MS + MARGIN_NS:
                found.append((commit, latest[below - 1][1]))
    return found


def _running_latest(
    records: Sequence[Produced], reached_ns: dict[Position, int]
) -> list[tuple[float, Position]]:
    """For each record, the one at or below it that was the last to reach its end, and when."""
    latest: list[tuple[float, Position]] = []
    for record in records:
        here = (reached_ns.get(record.position, float("inf")), record.position)
        latest.append(max(latest[-1], here) if latest else here)
    return latest


def unsafe_maps(
    commits: Sequence[Commit], produced: Iterable[Produced], reached_ns: dict[Position, int]
) -> list[tuple[Commit, Position]]:
    """O3, of what lies beyond the position: commits whose map names a record before its end.

    Each record is judged by the first commit that names it.
    """
    unnamed: dict[At, list[int]] = defaultdict(list)
    for record in produced:
        unnamed[record.at].append(record.offset)
    for offsets in unnamed.values():
        offsets.sort()
    found = []
    for commit in commits:
        latest_ns = (commit.time_ms + 1) * MS + MARGIN_NS
        offsets = unnamed[commit.at]
        for run in commit.beyond:
            begin, end = bisect_left(offsets, run.start), bisect_left(offsets, run.stop)
            for offset in offsets[begin:end]:
                position = (*commit.at, offset)
                if reached_ns.get(position, float("inf")) > latest_ns:
                    found.append((commit, position))
            del offsets[begin:end]
    return found


def first_ends(runs: Iterable[Invocation]) -> dict[Position, int]:
    """When each record's handler first returned."""
    found: dict[Position, int] = {}
    for run in runs:
        if run.ended and run.end_ns is not None:
            found[run.position] = min(run.end_ns, found.get(run.position, run.end_ns))
    return found


def first_results(results: Iterable[Read]) -> dict[Position, int]:
    """When each record's result was appended, where the topic stamps the time of appending."""
    found: dict[Position, int] = {}
    for read in results:
        found[read.source] = min(read.time_ms * MS, found.get(read.source, read.time_ms * MS))
    return found


def backward(commits: Iterable[Commit]) -> list[tuple[Commit, Commit]]:
    """O4: commits below an earlier one of their partition."""
    last: dict[At, Commit] = {}
    found = []
    for commit in commits:
        before = last.get(commit.at)
        if before and commit.position < before.position:
            found.append((before, commit))
        last[commit.at] = commit
    return found


def short_of_the_end(ends: dict[At, int], committed: dict[At, int]) -> dict[At, int]:
    """Partitions whose committed position is not their end, though all is done: lag for ever."""
    return {at: end - committed.get(at, 0) for at, end in ends.items() if committed.get(at) != end}


def repeated(runs: Sequence[Invocation]) -> list[tuple[Invocation, Invocation]]:
    """O5: each run of a record after its first, with the one before; retries do not count."""
    pairs = []
    for of_record in by_position(runs).values():
        pairs += [(before, again) for before, again in pairwise(of_record) if not before.raised]
    return pairs


def unexplained(
    repeats: Iterable[tuple[Invocation, Invocation]],
    faults: Sequence[Fault],
    commits: Sequence[Commit],
    workers: Collection[int],
) -> list[tuple[Invocation, Invocation]]:
    """O5: repeats that no fault excuses.

    A kill excuses one of what the killed process had begun, and which the group did not hold
    as done when it was killed, by position or map: in hand, or done and not yet committed. What
    a process ran that is none of the `workers`, a cell, its worker had in hand: the one that
    had the partition. One that was stopped may go on with what it had in hand, at first.
    """
    latest = Latest(commits)

    def excuses(fault: Fault, before: Invocation, again: Invocation) -> bool:
        cell = before.pid not in workers and before.at in fault.partitions
        in_hand = cell and before.start_ns <= fault.to_ns + CELL_ENDS_MS * MS
        return (
            (fault.pid == before.pid or in_hand)
            and fault.from_ns <= again.start_ns
            and not latest.holds(before.position, fault.from_ns)
        )

    return [
        (before, again)
        for before, again in repeats
        if not any(excuses(f, before, again) or _is_stray(again, f) for f in faults)
    ]


def _is_stray(run: Invocation, fault: Fault) -> bool:
    """Whether its process began it between waking and learning what it had lost."""
    awake_ns = run.start_ns - fault.to_ns
    return fault.what == STOPPED and fault.pid == run.pid and 0 <= awake_ns <= STRAYS_MS * MS


class Latest:
    """What a group held of each partition at any time."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._times: dict[At, list[int]] = defaultdict(list)
        self._commits: dict[At, list[Commit]] = defaultdict(list)
        for commit in commits:
            self._times[commit.at].append(commit.time_ms)
            self._commits[commit.at].append(commit)

    def holds(self, record: Position, time_ns: int) -> bool:
        """Whether a record was done, by a commit that was over by then."""
        at, offset = record[:2], record[2]
        before = bisect_right(self._times[at], time_ns // MS - 1)
        if not before:
            return False
        commit = self._commits[at][before - 1]
        return offset < commit.position or any(offset in run for run in commit.beyond)


def disordered(
    runs: Sequence[Invocation],
    faults: Sequence[Fault] = (),
    workers: Collection[int] | None = None,
) -> list[tuple[Invocation, Invocation]]:
    """O6 and one-at-a-time: of one key in one partition, pairs that overlap or change places.

    A killed process's runs end with it, and with a worker those of its cell, which is none of
    the `workers`. A record may begin only when the one before it has returned, be that in this
    process or another. What was going on when a process was stopped outlives its partition, and
    so do records that it begins before it knows: nothing waits for them.
    """
    over_ns = {fault.pid: fault.to_ns for fault in faults}

    def over(run: Invocation) -> int | None:
        """When a run was, at the latest; None: nobody knows."""
        known = run.end_ns or over_ns.get(run.pid)
        if known is not None or workers is None or run.pid in workers:
            return known
        ends = [f.to_ns + CELL_ENDS_MS * MS for f in faults if run.at in f.partitions]
        return min((end for end in ends if end >= run.start_ns), default=None)

    stopped = [fault for fault in faults if fault.what == STOPPED]
    returned = first_ends(runs)
    lanes: dict[tuple[At, str], list[Invocation]] = defaultdict(list)
    for run in runs:
        if run.key and not any(_is_stray(run, fault) for fault in stopped):
            lanes[run.at, run.key].append(run)
    found = []
    for lane in lanes.values():
        found += [
            (before, after)
            for before, after in pairwise(lane)
            if after.start_ns < (over(before) or after.start_ns + 1)
            and not any(_outlives(before, fault) for fault in stopped)
        ]
        found += _overtaking(lane, returned)
    return found


def _outlives(run: Invocation, fault: Fault) -> bool:
    """Whether it was going on when its process was stopped, and so until that went on."""
    ended_ns = run.end_ns or 0
    return run.pid == fault.pid and run.start_ns < fault.to_ns <= ended_ns


def _overtaking(
    lane: Sequence[Invocation], returned: dict[Position, int]
) -> list[tuple[Invocation, Invocation]]:
    """Runs that began before the record ahead of theirs had ever returned."""
    firsts: dict[int, Invocation] = {}
    for run in lane:
        firsts.setdefault(run.offset, run)
    ordered = [firsts[offset] for offset in sorted(firsts)]
    return [
        (before, after)
        for before, after in pairwise(ordered)
        if after.start_ns < returned.get(before.position, after.start_ns + 1)
    ]
