"""When a table waits for its transform, and when results are set aside instead: without Spark."""

import random
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kworker.config.model import TableSettings
from kworker.spark.checkpoints.folders import LocalFolder
from kworker.spark.checkpoints.set_aside import read_set_aside
from kworker.spark.progress import TableProgress
from kworker.spark.tables import examiner
from kworker.spark.tables.examined_batch import Part, Place
from kworker.spark.tables.examiner import (
    ALL_BAD_MAX,
    ALL_BAD_TRIES,
    Examiner,
    ResultsSetAside,
    TransformFails,
)

OF_DATA = RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


class Batch:
    """Stands in for ExaminedBatch: the results of one partition, some of which are bad."""

    def __init__(self, offsets: Iterable[int], bad: Iterable[int] | None = None) -> None:
        self.offsets = set(offsets)
        self.bad = self.offsets if bad is None else set(bad)

    def close(self) -> None: ...

    def count(self) -> int:
        return len(self.offsets)

    def sample(self, size: int, seed: int) -> list[Place]:
        offsets = random.Random(seed).sample(sorted(self.offsets), min(size, self.count()))
        return [(0, offset) for offset in offsets]

    def extents(self) -> Part:
        return {0: (min(self.offsets), max(self.offsets) + 1)} if self.offsets else {}

    def failure_of(self, part: Part) -> Exception | None:
        begin, end = part[0]
        return self._failure({offset for offset in self.offsets if begin <= offset < end})

    def failure_without(self, places: Collection[Place]) -> Exception | None:
        return self._failure(self.offsets - {offset for _, offset in places})

    def _failure(self, offsets: set[int]) -> Exception | None:
        return OF_DATA if offsets & self.bad else None

    def read(self, places: Collection[Place]) -> list[Any]:
        found = [
            {"partition": 0, "offset": offset, "source": "o/0/1/1", "key": None, "value": "{}"}
            for _, offset in sorted(places)
        ]
        return [Row(each) for each in found]


class Row(dict[str, Any]):
    """A row of Spark's."""

    def asDict(self) -> dict[str, Any]:
        return dict(self)


class Table:
    """A table with a transform, and the job that writes its batches."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = LocalFolder(folder)
        self.progress = TableProgress("t")
        self._batch = Batch(())
        patch.setattr(examiner, "ExaminedBatch", lambda *_: self._batch)
        self.start_job()

    def start_job(self) -> None:
        settings = TableSettings.model_validate({"name": "t", "path": "/d", "transform": "m:f"})
        self.progress.rows = 0
        self._examine = Examiner(settings, cast(Any, None), self.folder, self.progress)

    @property
    def aside(self) -> int:
        return read_set_aside(self.folder, 0).number

    def fails(self, number: int, batch: Batch) -> None:
        """One try of a batch; raises what ends its query."""
        self._batch = batch
        self._examine(cast(Any, SimpleNamespace()), number, (None, {0: 1_000}), OF_DATA)

    def tries(self, number: int, batch: Batch, *, most: int = 200) -> int:
        """Tries a batch until results are set aside; returns the tries, or `most` without that."""
        for tries in range(1, most):
            try:
                self.fails(number, batch)
            except TransformFails:
                continue
            except ResultsSetAside:
                return tries
        return most


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(tmp_path / "checkpoint", monkeypatch)


@pytest.mark.parametrize("results", [ALL_BAD_MAX + 1, 50, 100, 200])
def test_a_table_waits_for_a_transform_that_always_fails(table: Table, results: int) -> None:
    """A service that is down for an hour shall not cost the table its results."""
    assert table.tries(0, Batch(range(results))) == 200
    with pytest.raises(TransformFails, match=r"^m:f fails on each of the results that were tried"):
        table.fails(0, Batch(range(results)))
    assert table.aside == 0


def test_a_batch_of_one_poison_result_ends_at_last(table: Table) -> None:
    """Its range is planned, so that no later result comes to its help."""
    assert table.tries(0, Batch([7])) == ALL_BAD_TRIES + 1
    assert table.aside == 1


def test_the_tries_of_a_poison_result_outlive_a_job(table: Table) -> None:
    """With `--once`, each job gives a table up after five failures in a row."""
    for _ in range(40):
        table.start_job()
        if table.tries(0, Batch([7]), most=6) < 6:
            break
    assert table.aside == 1


def test_an_outage_takes_three_results_at_most(table: Table) -> None:
    """They come one by one, each in a batch of its own, and none of them is bad."""
    for number in range(ALL_BAD_MAX):
        assert table.tries(number, Batch([number])) < 200
    assert table.tries(ALL_BAD_MAX, Batch([ALL_BAD_MAX])) == 200
    assert table.aside == ALL_BAD_MAX
    table.progress.rows += 1  # the service is back, and later fails again
    assert table.tries(9, Batch([9])) < 200


@pytest.mark.parametrize("bad", [1, 40, 49])
def test_bad_results_among_good_ones_are_set_aside(table: Table, bad: int) -> None:
    """Most of them may be bad: a later sample has a good one."""
    assert table.tries(0, Batch(range(50), range(bad))) < 50
    assert table.aside == bad


def test_an_outage_during_the_search_sets_nothing_aside(table: Table) -> None:
    """The sample had passed, and then all results fail, each of them twice."""
    batch = Batch(range(50), [17])
    taken = batch.extents

    def goes_down() -> Part:
        batch.bad = set(batch.offsets)
        return taken()

    batch.extents = goes_down  # type: ignore[method-assign]
    table.fails(0, batch)
    with pytest.raises(TransformFails):
        table.fails(0, batch)
    assert table.aside == 0
