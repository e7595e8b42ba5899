"""The audit of one record: whatever it went through, its traces tell what became of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.audit import Contradiction, LetterState, Outcome, Rules, Trace, TraceKind, judge

SOURCE, RESULTS, DELAY, REQUEUE, DEAD, TABLE = range(6)
OPEN, DISCARDED, SENT_BACK = LetterState
RULES = Rules()


def source(*, settled: bool = True) -> Trace:
    return Trace(TraceKind.SOURCE, SOURCE, 0, 7, settled)


def result(index: int = 0, attempt: int = 1, offset: int = 0) -> Trace:
    return Trace(TraceKind.RESULT, RESULTS, 0, offset, result_index=index, attempt=attempt)


def retry(attempt: int = 2, *, settled: bool = False, due_ms: int = 0, redriven: int = 0) -> Trace:
    place = (TraceKind.RETRY, DELAY, 0, 0)
    return Trace(*place, settled, attempt=attempt, due_ms=due_ms, redriven=redriven)


def requeued(attempt: int = 2, *, settled: bool = True, redriven: int = 0) -> Trace:
    return Trace(TraceKind.REQUEUE, REQUEUE, 0, 0, settled, attempt=attempt, redriven=redriven)


def letter(state: LetterState = OPEN, attempt: int = 1, redriven: int = 0) -> Trace:
    return Trace(TraceKind.DEAD, DEAD, 0, 0, attempt=attempt, redriven=redriven, letter=state)


ROW = Trace(TraceKind.ROW, TABLE, 0, 0)


@pytest.mark.parametrize(
    ("traces", "outcome"),
    [
        ([source(settled=False)], Outcome.NOT_SETTLED),
        ([source()], Outcome.NO_RESULT),
        ([source(), result()], Outcome.RESULT),
        ([source(settled=False), result()], Outcome.RESULT),
        ([source(settled=False), ROW], Outcome.RESULT),
        ([source(), retry(), ROW], Outcome.WAITING),
        ([source(), letter()], Outcome.DEAD),
        ([source(), letter(DISCARDED)], Outcome.DISCARDED),
        ([source(), retry()], Outcome.WAITING),
        ([source(), retry(settled=True), requeued(settled=False)], Outcome.WAITING),
        ([source(), retry(settled=True), requeued()], Outcome.NO_RESULT),
        ([source(), letter(SENT_BACK)], Outcome.SENT_ELSEWHERE),
        ([source(), letter(SENT_BACK), requeued(1, redriven=1)], Outcome.NO_RESULT),
        ([source(), letter(SENT_BACK), requeued(1, settled=False, redriven=1)], Outcome.WAITING),
        ([source(), result(), letter(SENT_BACK), requeued(1, redriven=1)], Outcome.RESULT),
        ([source(), letter(SENT_BACK), requeued(1, redriven=1), letter(OPEN, 1, 1)], Outcome.DEAD),
    ],
)
def test_each_record_has_one_outcome_and_no_problem(traces: list[Trace], outcome: Outcome) -> None:
    found = judge(traces, RULES)
    assert (found.outcome, found.problems) == (outcome, [])


def test_a_waiting_record_tells_when_it_runs_next() -> None:
    assert judge([source(), retry(due_ms=500), retry(due_ms=300)], RULES).due_ms == 300


@pytest.mark.parametrize(
    ("copy", "later", "outcome"),
    [
        (retry(2), result(attempt=2), Outcome.RESULT),
        (requeued(2, settled=False), letter(attempt=2), Outcome.DEAD),
        (requeued(2, settled=False), result(attempt=1), Outcome.WAITING),
        (requeued(1, settled=False, redriven=1), letter(SENT_BACK, 3), Outcome.WAITING),
    ],
)
def test_a_copy_that_went_on_meanwhile_does_not_wait(
    copy: Trace, later: Trace, outcome: Outcome
) -> None:
    """The service runs on between the reading of positions and of ends."""
    assert judge([source(), later, copy], RULES).outcome is outcome


def test_a_snoozed_record_waits_though_its_attempt_stays() -> None:
    traces = [source(), retry(2, settled=True), requeued(2), retry(2)]
    assert judge(traces, RULES).outcome is Outcome.WAITING


@pytest.mark.parametrize(
    ("traces", "kind", "what"),
    [
        ([source(), result(), result()], "double", "2 results"),
        ([source(), result(), result(1), result(1)], "double", "2 results with index 1"),
        ([source(), result(), letter()], "double", "a result and an open dead letter"),
        ([source(), letter(), letter()], "double", "2 open dead letters"),
        ([source(), result(1)], "hole", "the result with index 0 is missing"),
        ([source(), ROW], "double", "a row without a result in the topic"),
        ([source(), result(), ROW], "double", "a row without a result in the topic"),
        (
            [source(), retry(settled=True)],
            "hole",
            "a retry was forwarded, and is not in the requeue topic",
        ),
    ],
)
def test_a_contradiction_is_a_problem(traces: list[Trace], kind: str, what: str) -> None:
    [found] = judge(traces, RULES).problems
    assert (found.kind, found.what) == (kind, what)
    assert set(found.traces) <= set(traces)


def test_without_a_result_is_a_hole_only_if_one_is_expected() -> None:
    expecting = Rules(every_record_has_a_result=True)
    assert judge([source()], expecting).problems == [
        Contradiction("hole", "settled without a result")
    ]
    assert judge([source(settled=False)], expecting).problems == []
    assert judge([source(), letter(DISCARDED)], expecting).problems == []


def test_nothing_is_concluded_from_topics_that_lost_records() -> None:
    """Retention may have deleted what would be missing."""
    lossy = Rules(results_complete=False, requeue_complete=False)
    for traces in ([source(), result(1)], [source(), retry(settled=True)]):
        assert judge(traces, lossy).problems == []
    assert judge([source(), letter(SENT_BACK)], lossy).outcome is Outcome.NO_RESULT


# Lives, as the service makes them.


@dataclass
class Life:
    """What a record went through, and what that left in the topics."""

    traces: list[Trace] = field(default_factory=lambda: [source()])
    outcome: Outcome = Outcome.NOT_SETTLED


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Runs, retries, snoozes and redrives, up to some moment."""
    life = Life()
    attempt, redriven = 1, 0
    for _ in range(draw(st.integers(0, 6))):
        end = draw(st.sampled_from(["retry", "snooze", "dead"]))
        if end == "dead":
            life.traces.append(letter(SENT_BACK, attempt, redriven))
            attempt, redriven = 1, redriven + 1
        else:
            attempt += end == "retry"
            life.traces.append(retry(attempt, settled=True, redriven=redriven))
        life.traces.append(requeued(attempt, redriven=redriven))
    life.outcome = draw(st.sampled_from(list(Outcome)))
    if life.outcome is Outcome.NOT_SETTLED and len(life.traces) > 1:
        life.outcome = Outcome.NO_RESULT  # its last copy has ended
    if life.outcome is Outcome.NOT_SETTLED:
        life.traces = [source(settled=False)]
    life.traces += _last(draw, life.outcome, attempt, redriven)
    return life


def _last(draw: st.DrawFn, outcome: Outcome, attempt: int, redriven: int) -> Iterator[Trace]:
    match outcome:
        case Outcome.RESULT:
            yield from (result(n, attempt, n) for n in range(draw(st.integers(1, 3))))
        case Outcome.DEAD:
            yield letter(OPEN, attempt, redriven)
        case Outcome.DISCARDED:
            yield letter(DISCARDED, attempt, redriven)
        case Outcome.SENT_ELSEWHERE:
            yield letter(SENT_BACK, attempt, redriven)
        case Outcome.WAITING:
            yield retry(attempt + 1, redriven=redriven)
        case Outcome.NO_RESULT | Outcome.NOT_SETTLED:
            pass


@given(life=lives(), order=st.randoms())
def test_every_life_is_told_whole(life: Life, order: object) -> None:
    first, *others = life.traces
    order.shuffle(others)  # type: ignore[attr-defined]
    found = judge([first, *others], Rules(every_record_has_a_result=False))
    assert (found.outcome, found.problems) == (life.outcome, [])


@given(life=lives(), data=st.data())
def test_an_end_that_comes_twice_is_a_double(life: Life, data: st.DataObject) -> None:
    ends = [
        trace
        for trace in life.traces
        if trace.kind is TraceKind.RESULT or (trace.kind is TraceKind.DEAD and not trace.letter)
    ]
    if ends:
        again = data.draw(st.sampled_from(ends))
        kinds = [problem.kind for problem in judge([*life.traces, again], RULES).problems]
        assert kinds == ["double"]


@given(life=lives())
def test_a_result_that_is_taken_out_is_a_hole(life: Life) -> None:
    """The last result of several leaves no gap: then only its table tells."""
    results = [trace for trace in life.traces if trace.kind is TraceKind.RESULT]
    expecting = Rules(every_record_has_a_result=True)
    for taken in results[: max(1, len(results) - 1)]:
        left = [trace for trace in life.traces if trace is not taken]
        problems = judge(left, expecting).problems
        assert [problem.kind for problem in problems] == ["hole"]
