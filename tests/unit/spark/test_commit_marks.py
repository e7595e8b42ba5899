"""What a table says of itself, and what a job does by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.spark.checkpoints.commit_marks import BatchStep, CommitMark, epoch_of, step

PARTS = st.dictionaries(st.integers(0, 50), st.integers(0, 1 << 48), max_size=5)


@given(PARTS)
def test_a_mark_is_read_as_it_was_written(positions: dict[int, int]) -> None:
    mark = CommitMark("orders/t", 3, "5d3f", 7, "id-1", positions, 17)
    assert CommitMark.parse(mark.text(), "orders/t") == mark
    assert CommitMark.parse(mark.text(), "others/t") is None


@pytest.mark.parametrize(
    "text", [None, "", "nightly load", "{}", "[]", '{"kworker": 1}', '{"kworker": {"query": "a"}}']
)
def test_foreign_commit_information_is_no_mark(text: str | None) -> None:
    """A compaction, a person's UPDATE, another tool."""
    assert CommitMark.parse(text, "orders/t") is None


@pytest.mark.parametrize(
    ("held", "begin", "expected"),
    [
        (None, {}, BatchStep.WRITE),  # a new table
        (("q", 6, {0: 5}), {0: 5}, BatchStep.WRITE),
        (("q", 7, {0: 9}), {0: 5}, BatchStep.LEAVE),  # killed before it was noted
        (("q", 7, {0: 9}), None, BatchStep.LEAVE),
        (("q", 6, {0: 5, 1: 0}), {0: 5, 1: 0}, BatchStep.WRITE),  # whatever it brings, or nothing
        (("other", 7, {0: 7}), {0: 5}, BatchStep.STOP),  # another job's batch ended there
        (("other", 7, {0: 5}), {0: 5}, BatchStep.WRITE),  # a checkpoint that goes on after it
        (("q", 9, {0: 99}), {0: 5}, BatchStep.STOP),  # an old copy of the checkpoint
        (("q", 6, {0: 5}), {0: 5, 1: 0}, BatchStep.WRITE),  # a partition was added
        (("q", 6, {0: 5, 1: 0}), {0: 5}, BatchStep.WRITE),
        (("other", 7, {0: 500}), None, BatchStep.WRITE),  # a person's reset
    ],
)
def test_a_batch_is_written_only_at_the_tables_end(
    held: tuple[str, int, dict[int, int]] | None, begin: dict[int, int] | None, expected: BatchStep
) -> None:
    mark = held and CommitMark("orders/t", 1, held[0], held[1], "id-1", held[2], 0)
    assert step(mark, "q", 7, begin) is expected


def test_versions_only_grow() -> None:
    """What an earlier job writes after a claim is left out by the table."""
    marks = [
        CommitMark("w", 1, "a", 0, "", {}, 0),
        CommitMark("w", 1, "a", 1_000_000, "", {}, 0),
        CommitMark.claim("w", 2, "", 0),
        CommitMark("w", 2, "b", 0, "", {}, 0),
    ]
    versions = [mark.version for mark in marks]
    assert sorted(set(versions)) == versions
    assert [epoch_of(version) for version in versions] == [1, 1, 2, 2]
    assert epoch_of(-1) == 0
