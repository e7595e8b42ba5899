"""Which records of a batch run together, for any batch and any poison in it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.batch import NOT_ATTEMPTED, BatchFailed, batch, mark_of
from kworker.core.bisection import Bisection, PartOutcomes, returned
from kworker.core.outcome import Reject, Retry, Snooze, Unavailable

Handler = Callable[[Sequence[int]], Any]


class Run:
    """A batch of the numbers from 0 through a handler: how each ended, how often it was called."""

    def __init__(self, size: int, handler: Handler) -> None:
        self.ends: dict[int, list[Any]] = {record: [] for record in range(size)}
        self.calls: list[Sequence[int]] = []
        bisection = Bisection(range(size))
        while part := bisection.next():
            self.calls.append(part)
            for record, end in zip(part, self._ends(bisection, part, handler), strict=False):
                self.ends[record].append(end)

    def _ends(
        self, bisection: Bisection[int], part: Sequence[int], handler: Handler
    ) -> PartOutcomes:
        try:
            value = handler(part)
        except Exception as error:  # noqa: BLE001 - as a handler may
            ends = bisection.raised(part, error)
            for record in bisection.given_up:
                self.ends[record].append(NOT_ATTEMPTED)
            return ends
        return returned(len(part), value)

    @property
    def once(self) -> dict[int, Any]:
        """The end of each record, which is one."""
        assert {len(ends) for ends in self.ends.values()} <= {1}
        return {record: end for record, [end] in self.ends.items()}

    @property
    def most_calls(self) -> int:
        return max(Counter(record for part in self.calls for record in part).values())


def bound(size: int) -> int:
    return 1 + math.ceil(math.log2(size))


def raising_for(poison: set[int], error: type[Exception] = ValueError) -> Handler:
    def handler(records: Sequence[int]) -> list[str]:
        for record in records:
            if record in poison:
                raise error(f"record {record}")
        return [f"done {record}" for record in records]

    return handler


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, set[int]]:
    size = draw(st.integers(1, 600))
    return size, draw(st.sets(st.integers(0, size - 1), max_size=size))


@given(batches())
def test_each_record_ends_once_and_only_poison_fails(drawn: tuple[int, set[int]]) -> None:
    size, poison = drawn
    run = Run(size, raising_for(poison))
    for record, end in run.once.items():
        if record in poison:
            assert isinstance(end, ValueError)
            assert str(end) == f"record {record}"
        else:
            assert end == f"done {record}"
    assert run.most_calls <= bound(size)


def test_one_poison_among_500_costs_no_record_more_than_10_calls() -> None:
    """Wherever in the batch it lies."""
    for poison in range(500):
        run = Run(500, raising_for({poison}))
        assert [r for r, end in run.once.items() if isinstance(end, ValueError)] == [poison]
        assert run.most_calls <= 10


@pytest.mark.parametrize("error", [Retry("busy", "30s"), Snooze("30s"), Reject(), TypeError()])
def test_an_error_about_one_record_isolates_it(error: Exception) -> None:
    def handler(records: Sequence[int]) -> list[None]:
        if 5 in records:
            raise error
        return [None] * len(records)

    assert Run(8, handler).once == {record: error if record == 5 else None for record in range(8)}


@given(st.integers(1, 600))
def test_a_service_that_is_down_is_not_asked_again_for_parts(size: int) -> None:
    """Halving 500 records would be 999 calls to what is down: what is left waits for it."""
    run = Run(size, raising_for(set(range(size)), Unavailable))
    assert len(run.calls) <= 3
    failed = {record for record, end in run.once.items() if isinstance(end, Unavailable)}
    assert len(failed) == min(size, 2)
    assert {run.once[record] for record in set(range(size)) - failed} <= {NOT_ATTEMPTED}


@given(st.integers(1, 600).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_a_single_unavailable_record_fails_alone(drawn: tuple[int, int]) -> None:
    """One customer for ever unavailable stops nobody else, wherever it is in the batch."""
    size, poison = drawn
    run = Run(size, raising_for({poison}, Unavailable))
    assert [r for r, end in run.once.items() if isinstance(end, Unavailable)] == [poison]
    assert run.most_calls <= bound(size)


@pytest.mark.parametrize("theirs", [range(10), range(90, 100), range(40, 60)])
def test_one_customers_failures_stop_only_part_of_a_batch(
    theirs: Sequence[int],
) -> None:
    """Where many that are turned away meet, a part is given up; never all that is left."""
    run = Run(100, raising_for(set(theirs), Unavailable))
    done = [record for record, end in run.once.items() if end == f"done {record}"]
    assert len(done) >= 0.6 * (100 - len(theirs))


def test_an_outage_within_a_batch_costs_few_calls() -> None:
    """What is left of a batch cannot know it from the calls that had their answer."""
    calls = 0

    def handler(records: Sequence[int]) -> list[None]:
        nonlocal calls
        calls += 1
        if calls > 3 or 7 in records:
            raise Unavailable("billing")
        return [None] * len(records)

    assert len(Run(500, handler).calls) <= 3 + 3 * bound(500)


@given(batches(), st.data())
def test_each_record_of_a_batch_ends_once_in_bounded_calls(
    drawn: tuple[int, set[int]], data: st.DataObject
) -> None:
    """One error of many may hide another, and a service may come and go."""
    size, poison = drawn
    errors = (ValueError("no"), Unavailable("billing"), None)

    def handler(records: Sequence[int]) -> list[None]:
        if poison.intersection(records) and (error := data.draw(st.sampled_from(errors))):
            raise error
        return [None] * len(records)

    run = Run(size, handler)
    assert len(run.once) == size
    assert run.most_calls <= bound(size)


def stopping_at(index: int, cause: Exception, results: list[Any] | None = None) -> Handler:
    def handler(_: Sequence[int]) -> None:
        raise BatchFailed(index, cause, results)

    return handler


@given(st.integers(1, 50).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_batch_failed_is_believed_about_its_index(drawn: tuple[int, int]) -> None:
    """Those before ended as it says, those after come again: no record is called a second time."""
    size, index = drawn
    cause = ValueError("bravo")
    results = [f"done {record}" for record in range(index)]
    run = Run(size, stopping_at(index, cause, results))
    ends = run.once
    assert len(run.calls) == 1
    assert [ends[record] for record in range(index)] == results
    assert ends[index] is cause
    assert all(ends[record] is NOT_ATTEMPTED for record in range(index + 1, size))


def test_records_before_a_stop_run_again_without_results() -> None:
    """Their calls may have led to something; counting them as nothing would drop it silently."""
    cause = ValueError("charlie")
    run = Run(4, stopping_at(2, cause))
    assert run.once == {0: NOT_ATTEMPTED, 1: NOT_ATTEMPTED, 2: cause, 3: NOT_ATTEMPTED}


@pytest.mark.parametrize("results", [[], ["a"], ["a", None, "c"]])
def test_a_wrong_number_of_results_is_the_handlers_error(results: list[Any]) -> None:
    """To be halved like any other: nobody can tell which result belongs to which record."""

    def handler(records: Sequence[int]) -> list[str]:
        if 2 in records and len(records) > 1:
            raise BatchFailed(2, ValueError("charlie"), results)
        return ["done"] * len(records)

    run = Run(4, handler)
    assert set(run.once.values()) == {"done"}
    with pytest.raises(ValueError, match=f"index 2 has {len(results)} results"):
        BatchFailed(2, ValueError("charlie"), results)


@pytest.mark.parametrize("index", [-1, 3, 100])
def test_a_stop_at_an_impossible_index_completes_no_record(index: int) -> None:
    """A record that may not be done is not done, whatever the handler meant."""
    ends = Run(3, stopping_at(index, ValueError("no"))).once
    assert {type(end) for end in ends.values()} == {IndexError}
    assert f"record {index} in a batch of 3" in str(ends[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned NoneType for 3"),
        ({}, "returned dict for 3"),
        ("abc", "returned str for 3"),
        ([], "returned 0 outcomes for 3"),
        ([None] * 4, "returned 4 outcomes for 3"),
        (iter([1, 2, 3]), "for 3 records"),
    ],
)
def test_a_wrong_answer_fails_every_record_of_the_batch(value: Any, words: str) -> None:
    """Taken for what they are not, records would be skipped in silence."""
    run = Run(3, lambda _: value)
    assert {type(end) for end in run.once.values()} == {TypeError}
    assert words in str(run.once[0])


def test_each_outcome_belongs_to_the_record_at_its_place() -> None:
    failure = Reject("unknown customer")
    assert Run(3, lambda _: [{"a": 1}, None, failure]).once == {0: {"a": 1}, 1: None, 2: failure}
    assert Run(2, lambda _: ("a", "b")).once == {0: "a", 1: "b"}


def test_a_decorated_function_is_still_a_function() -> None:
    """It is tested as one."""

    @batch(size=7, wait="1s")
    def handler(messages: list[int]) -> list[int]:
        return messages

    assert handler([1]) == [1]
    mark = mark_of(handler)
    assert mark is not None
    assert (mark.size, mark.wait_s) == (7, 1.0)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "100"])
def test_an_invalid_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="size is"):
        batch(size=size)


@pytest.mark.parametrize("wait", ["", "soon", "1", 1, None, "-1s"])
def test_an_invalid_wait_is_refused(wait: Any) -> None:
    """When the module is imported, so that `check` tells it."""
    with pytest.raises(ValueError, match="expected a duration"):
        batch(wait=wait)


def test_a_decorated_class_is_refused() -> None:
    """The mark would not reach its `__call__`, which would be called with one message."""
    with pytest.raises(TypeError, match=r"Handler\.__call__"):

        @batch()
        class Handler: ...


@pytest.mark.parametrize(
    ("index", "cause", "results"),
    [
        ("1", ValueError(), None),
        (1, ValueError, None),
        (1, "no", None),
        (1, ValueError(), "a"),
        (1, ValueError(), {"a": 1}),
        (1, ValueError(), iter(["a"])),
    ],
)
def test_a_stop_is_told_with_an_index_an_exception_and_a_list(
    index: Any, cause: Any, results: Any
) -> None:
    with pytest.raises(TypeError):
        BatchFailed(index, cause, results)
