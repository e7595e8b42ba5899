"""Which results of a batch fail alone, and where these are kept: without Spark."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.folders import LocalFolder
from kworker.spark.checkpoints.set_aside import (
    FailingResult,
    count_try,
    is_among,
    read_set_aside,
    skipped_offsets,
    write_set_aside,
)
from kworker.spark.tables.examined_batch import Part
from kworker.spark.tables.examiner import SET_ASIDE_MAX, search

BATCHES = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 10**9), st.integers(0, 300)), max_size=4
).map(lambda found: {part: (begin, begin + size) for part, (begin, size) in found.items()})


def places(part: Part) -> set[tuple[int, int]]:
    return {(number, at) for number, (begin, end) in part.items() for at in range(begin, end)}


class Batch:
    """Some of its results fail; counts what it is asked."""

    def __init__(self, bad: set[tuple[int, int]]) -> None:
        self._bad = bad
        self.asked = 0
        self.records = 0

    def fails(self, part: Part) -> Exception | None:
        self.asked += 1
        self.records += len(places(part))
        bad = sorted(self._bad & places(part))
        return ValueError(f"no {bad[0]}") if bad else None


@given(st.data(), BATCHES)
def test_exactly_the_results_that_fail_alone_are_found(data: st.DataObject, batch: Part) -> None:
    """A result that was left out wrongly is lost to the table."""
    there = sorted(places(batch))
    bad = set(data.draw(st.lists(st.sampled_from(there), max_size=5))) if there else set()
    assert search(batch, Batch(bad).fails) == {each: f"ValueError: no {each}" for each in bad}


def test_a_single_failing_result_is_found_in_few_calls() -> None:
    """Each is a job of Spark's."""
    batch = Batch({(1, 123_456)})
    assert search({0: (0, 250_000), 1: (0, 250_000)}, batch.fails) == {
        (1, 123_456): "ValueError: no (1, 123456)"
    }
    assert batch.asked <= 1 + 2 * 19
    assert batch.records <= 3 * 500_000


def test_a_failure_of_several_results_names_none() -> None:
    """A group that is too large, for instance: each of it would be good elsewhere."""

    def fails(part: Part) -> Exception | None:
        return ValueError("too many") if len(places(part)) > 10 else None

    assert search({0: (0, 100)}, fails) == {}


def test_the_search_ends_when_too_many_fail() -> None:
    """Then it is the transform that is wrong."""
    batch = Batch(places({0: (0, 5_000)}))
    assert len(search({0: (0, 5_000)}, batch.fails)) == SET_ASIDE_MAX + 1
    assert batch.asked < 4 * SET_ASIDE_MAX


def test_a_failure_that_is_no_result_s_ends_the_search() -> None:
    """A job that is stopped meanwhile fails everywhere: nothing may be set aside for that."""

    def cancelled(part: Part) -> Exception | None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        search({0: (0, 100)}, cancelled)


def failing(partition: int, offset: int, value: str | None = "{}") -> FailingResult:
    return FailingResult(partition, offset, f"orders/0/{offset}/1", None, value, "ValueError: no")


def test_results_set_aside_survive_a_restart(tmp_path: Path) -> None:
    """And only of what may come again it is read: there may be a file for each batch."""
    folder = LocalFolder(tmp_path / "checkpoint")
    assert read_set_aside(folder, 0) == (0, [])
    one, two, three = failing(0, 7, "ä\n\u2028"), failing(1, 9, None), failing(0, 3)
    write_set_aside(folder, 4, [one])
    write_set_aside(folder, 4, [two, two])
    write_set_aside(folder, 3, [three])
    assert read_set_aside(folder, 0) == (4, [three, one, two, two])
    assert read_set_aside(folder, 4) == (4, [one, two, two])
    assert read_set_aside(folder, 5) == (4, [])


def test_a_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    """Without it results would fail again, which is to be said."""
    folder = LocalFolder(tmp_path)
    file = write_set_aside(folder, 0, [failing(0, 7)])
    Path(file).write_text('{"partition": 0')
    with pytest.raises(Damaged, match=r"aside/000000000-0-7-1\.jsonl.*remove it"):
        read_set_aside(folder, 0)


def test_a_query_leaves_out_only_failures_still_ahead() -> None:
    """The list grows, and a query's plan should not."""
    found = [failing(0, 3), failing(0, 7), failing(1, 9)]
    assert skipped_offsets(found, {0: 5}) == {0: [7], 1: [9]}
    assert skipped_offsets(found, {0: 8, 1: 10}) == {}


def test_places_are_named_in_sql() -> None:
    told = is_among({1: [9], 0: [3, 7]})
    assert told == "(partition = 0 AND offset IN (3, 7)) OR (partition = 1 AND offset IN (9))"
    assert is_among({}) == "false"


def test_tries_of_a_batch_are_counted_beyond_the_end_of_a_job(tmp_path: Path) -> None:
    """A job that ends by itself gives up after five, and would never come to the last one."""
    folder = LocalFolder(tmp_path)
    assert [count_try(folder, batch) for batch in (7, 7, 7, 8, 8)] == [1, 2, 3, 1, 2]
    (tmp_path / "aside" / "tries.json").write_text("{")
    assert count_try(folder, 8) == 1
    assert read_set_aside(folder, 0) == (0, [])
