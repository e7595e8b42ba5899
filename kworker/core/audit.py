"""The audit of one source record: its traces in topics and tables decide what became of it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple


class TraceKind(IntEnum):
    """The kind of a trace, which is a record or row that shows what became of a source record.

    The traces of one source record are sorted by these values before they are judged.
    """

    SOURCE = 0  # the record itself
    RESULT = 1
    RETRY = 2  # a copy in a delay topic
    REQUEUE = 3
    DEAD = 4
    ROW = 5  # of a table, without a result in Kafka; `topic` is then the table's name


class LetterState(IntEnum):
    """The state of a dead letter."""

    OPEN = 0
    DISCARDED = 1
    SENT_BACK = 2  # redriven, or imported from a file


class Trace(NamedTuple):
    """One record of a topic, or one row, that shows what became of a source record.

    `topic` is an index into a list of names, which the owner of the traces keeps. `settled` is True
    if the group that reads the topic will not read this record again.
    """

    kind: TraceKind
    topic: int
    partition: int
    offset: int
    settled: bool = False
    result_index: int = 0  # among the results of one run
    attempt: int = 1  # of the run that wrote a result or a dead letter; else of the next run
    redriven: int = 0
    due_ms: int = 0  # of a retry
    letter: LetterState = LetterState.OPEN


class Outcome(StrEnum):
    """The fate of a source record; each record has exactly one."""

    RESULT = "result"
    DEAD = "dead letter"
    DISCARDED = "discarded"  # its dead letter was
    SENT_ELSEWHERE = "sent elsewhere"  # its dead letter was redriven to another topic
    WAITING = "waiting"  # in a delay topic or in the requeue topic
    NO_RESULT = "no result"  # settled: the handler returned none, or it was seen before
    NOT_SETTLED = "not settled"  # in hand, or not taken yet


class Contradiction(NamedTuple):
    """A double or a hole in the traces of a record, and the traces that show it.

    A double is an outcome too many, such as a second result; a hole is a missing result or retry.
    """

    kind: Literal["double", "hole"]
    what: str
    traces: Sequence[Trace] = ()


class Rules(NamedTuple):
    """Facts that decide what may be concluded from a missing result or requeue record.

    `results_complete` is True if no result was deleted from Kafka; `requeue_complete`, if no record
    was deleted from the requeue topic. If `every_record_has_a_result` is True, a settled record
    without a result is a hole.
    """

    results_complete: bool = True  # no result has been deleted
    requeue_complete: bool = True
    every_record_has_a_result: bool = False


class Judgement(NamedTuple):
    """The outcome of one source record, and the problems of its traces."""

    outcome: Outcome
    results: int
    due_ms: int  # of a waiting record: the earliest time of its next run
    problems: Sequence[Contradiction]


def judge(traces: Sequence[Trace], rules: Rules) -> Judgement:
    """Judges the traces of one source record; the first trace is the record itself.

    The caller must have read the groups' positions before the ends of the topics. So if these
    positions settle a record, everything that it led to before it was settled is among its traces.
    But a trace may be newer than the positions. Such a trace may show that a copy of the record has
    run, although the positions do not settle that copy.
    """
    kinds: dict[TraceKind, list[Trace]] = defaultdict(list)
    for trace in traces:
        kinds[trace.kind].append(trace)
    waiting = _waiting(kinds)
    told = _outcome(kinds, rules, waits=bool(waiting))  # without the rows
    outcome = Outcome.RESULT if kinds[TraceKind.ROW] and told in _WITHOUT_RESULT else told
    due_ms = min((copy.due_ms for copy in waiting), default=0)
    problems = [*_doubles(kinds), *_holes(kinds, outcome, rules)]
    # A row may be newer than the ends; but what has ended gets no more results.
    if kinds[TraceKind.ROW] and rules.results_complete and told in _ENDED:
        rows = kinds[TraceKind.ROW]
        problems.append(Contradiction("double", "a row without a result in the topic", rows))
    return Judgement(outcome, len(kinds[TraceKind.RESULT]), due_ms, problems)


_WITHOUT_RESULT = (
    Outcome.DISCARDED,
    Outcome.SENT_ELSEWHERE,
    Outcome.NO_RESULT,
    Outcome.NOT_SETTLED,
)
_ENDED = (Outcome.RESULT, Outcome.DISCARDED, Outcome.SENT_ELSEWHERE, Outcome.NO_RESULT)


def _waiting(kinds: dict[TraceKind, list[Trace]]) -> list[Trace]:
    """Returns a record's copies in delay and requeue topics that are neither forwarded nor run."""
    copies = [*kinds[TraceKind.RETRY], *kinds[TraceKind.REQUEUE]]
    return [copy for copy in copies if not copy.settled and not _is_overtaken(copy, kinds)]


def _is_overtaken(copy: Trace, kinds: dict[TraceKind, list[Trace]]) -> bool:
    """Returns True if a later trace shows that the run for which `copy` waits has taken place.

    The positions do not show this run, since they were read before it was settled.
    """
    run = copy.redriven, copy.attempt
    return (
        any(result.attempt >= copy.attempt for result in kinds[TraceKind.RESULT])
        or any((each.redriven, each.attempt) > run for each in kinds[TraceKind.RETRY])
        or any((letter.redriven, letter.attempt) >= run for letter in kinds[TraceKind.DEAD])
    )


def _outcome(kinds: dict[TraceKind, list[Trace]], rules: Rules, *, waits: bool) -> Outcome:
    letters = kinds[TraceKind.DEAD]
    states = {letter.letter for letter in letters}
    if waits:
        return Outcome.WAITING
    if LetterState.OPEN in states:
        return Outcome.DEAD
    if kinds[TraceKind.RESULT]:
        return Outcome.RESULT
    if LetterState.DISCARDED in states:
        return Outcome.DISCARDED
    if letters and rules.requeue_complete and not _came_back(letters, kinds[TraceKind.REQUEUE]):
        return Outcome.SENT_ELSEWHERE
    if any(each.settled for each in kinds[TraceKind.SOURCE]):
        return Outcome.NO_RESULT
    return Outcome.NOT_SETTLED


def _came_back(letters: Sequence[Trace], requeued: Sequence[Trace]) -> bool:
    last = max(letter.redriven for letter in letters)
    return any(copy.redriven > last for copy in requeued)


def _doubles(kinds: dict[TraceKind, list[Trace]]) -> Iterator[Contradiction]:
    results = kinds[TraceKind.RESULT]
    for index, same in sorted(_by_index(results).items()):
        if len(same) > 1:
            which = f" with index {index}" if index else ""
            yield Contradiction("double", f"{len(same)} results{which}", same)
    open_letters = [each for each in kinds[TraceKind.DEAD] if each.letter is LetterState.OPEN]
    if open_letters and results:
        yield Contradiction("double", "a result and an open dead letter", [*results, *open_letters])
    if len(open_letters) > 1:
        yield Contradiction("double", f"{len(open_letters)} open dead letters", open_letters)


def _holes(
    kinds: dict[TraceKind, list[Trace]], outcome: Outcome, rules: Rules
) -> Iterator[Contradiction]:
    results = kinds[TraceKind.RESULT]
    if rules.results_complete and results:
        there = _by_index(results)
        for index in range(max(there)):
            if index not in there:
                yield Contradiction("hole", f"the result with index {index} is missing", results)
    if outcome not in (Outcome.NO_RESULT, Outcome.NOT_SETTLED):
        return
    if rules.requeue_complete and (lost := _lost(kinds)):
        yield Contradiction("hole", "a retry was forwarded, and is not in the requeue topic", lost)
    elif outcome is Outcome.NO_RESULT and rules.every_record_has_a_result:
        yield Contradiction("hole", "settled without a result")


def _lost(kinds: dict[TraceKind, list[Trace]]) -> list[Trace]:
    """Returns a record's copies in delay topics that have no counterpart in the requeue topic.

    A counterpart has the same `redriven` and `attempt` as the copy.
    """
    arrived = {(copy.redriven, copy.attempt) for copy in kinds[TraceKind.REQUEUE]}
    retries = kinds[TraceKind.RETRY]
    return [copy for copy in retries if (copy.redriven, copy.attempt) not in arrived]


def _by_index(results: Sequence[Trace]) -> dict[int, list[Trace]]:
    found: dict[int, list[Trace]] = defaultdict(list)
    for result in results:
        found[result.result_index].append(result)
    return found
