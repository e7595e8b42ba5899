"""The examiner of a failed batch: it finds the results that the table's transform fails on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import structlog
from pyspark.sql import SparkSession

from kworker.config.model import Config, TableSettings
from kworker.core.bisection import Bisection
from kworker.errors import KworkerError
from kworker.spark.batch_limits import Range
from kworker.spark.checkpoints.folders import Folder
from kworker.spark.checkpoints.set_aside import (
    FailingResult,
    count_try,
    read_set_aside,
    skipped_offsets,
    write_set_aside,
)
from kworker.spark.progress import TableProgress
from kworker.spark.reasons import reason
from kworker.spark.rows.frames import Span
from kworker.spark.rows.transforms import TransformRaised
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.tables.examined_batch import ExaminedBatch, Part, Place, is_of_data

_LOG = structlog.get_logger()

SET_ASIDE_MAX = 100  # of a batch: with more the transform itself is wrong
_SAMPLE = 8  # results tried first: if all fail, the batch is not searched
# A batch may be made of a few bad results alone, and must not stop its table for ever.
ALL_BAD_MAX = 3  # results of such batches, without a success between them
ALL_BAD_TRIES = 25  # of such a batch before it is set aside: about ten minutes of back-off

Found = dict[Place, str]
"""The errors of failing results, by partition and offset."""


class ResultsSetAside(KworkerError):
    """Raised when failing results were set aside: the batch is to be tried again without them."""


class TransformFails(KworkerError):
    """Raised when the transform fails on so many results that they are not set aside.

    Then the transform itself is wrong, or a service that it calls is down. The whole batch is tried
    again later.
    """


def search(batch: Part, fails: Callable[[Part], Exception | None]) -> Found:
    """Finds each result that fails alone, by bisection. Ignores results that only fail together.

    Ends early when more than SET_ASIDE_MAX results are found. Raises what `fails` raises. To find
    one failing result among n, it calls `fails` about 1 + 2 log2 n times. All these calls together
    process about 3 n results.
    """
    parts = Bisection(range(sum(end - begin for begin, end in batch.values())))
    found: Found = {}
    while len(found) <= SET_ASIDE_MAX and (numbers := parts.next()):
        part = dict(_part(batch, numbers))
        error = fails(part)
        if error is None or not parts.raised(numbers, error):
            continue
        [(partition, (offset, _))] = part.items()
        found[partition, offset] = reason(error)
    return found


def _part(batch: Part, numbers: Sequence[int]) -> Iterator[tuple[int, Range]]:
    """Yields, for each partition, the range of offsets of the records with these numbers.

    The records of the batch are numbered partition by partition.
    """
    before = 0
    for partition, (begin, end) in sorted(batch.items()):
        first = max(begin, begin + numbers[0] - before)
        last = min(end, begin + numbers[-1] + 1 - before)
        if first < last:
            yield partition, (first, last)
        before += end - begin


class Examiner:
    """Finds the results of a failed batch on which the transform fails, and sets them aside.

    Lives as long as the job. Owned by the thread of the table's query. A table never has two such
    threads at a time.
    """

    def __init__(
        self, table: TableSettings, config: Config, folder: Folder, progress: TableProgress
    ) -> None:
        self._table = table
        self._config = config
        self._folder = folder
        self._progress = progress
        self._all_bad = 0  # results of batches set aside as a whole, without a success since
        self._rows = 0  # of the table when that was last asked
        self._failed = -1, 0  # a batch, and how often in a row

    def __call__(self, session: SparkSession, batch: int, span: Span, error: Exception) -> None:
        if not is_of_data(error):
            return
        tries = self._failed[1] + 1 if self._failed[0] == batch else 1
        self._failed = batch, tries
        if tries == 1:
            return  # the next try may pass
        gone = skipped_offsets(read_set_aside(self._folder, batch).recent, span[0] or {})
        with closing(ExaminedBatch(session, self._table, self._config, span, gone)) as examined:
            try:
                self._examine(batch, examined, tries)
            except (*CALL_FAILED, ValueError, TransformRaised) as problem:
                _LOG.warning(
                    "the results on which the table's transform fails cannot be singled out;"
                    " the batch is tried again",
                    table=self._table.name,
                    reason=reason(problem),
                )

    def _examine(self, batch: int, examined: ExaminedBatch, tries: int) -> None:
        number = examined.count()
        if why := self._try_sample(examined, tries):
            self._check_all_bad(batch, number, why)
        found = self._search(examined)
        if not found:
            return
        all_bad = len(found) == number
        if all_bad:  # since the sample was tried, a service may have gone down
            self._check_all_bad(batch, number, next(iter(found.values())))
        file, first = self._set_aside(batch, examined, found)
        if all_bad:
            self._all_bad += number
        raise ResultsSetAside(
            f"{len(found)} results are not in the table but in {file}: {first.reason}"
        )

    def _check_all_bad(self, batch: int, number: int, why: str) -> None:
        """Raises TransformFails unless all `number` results of the batch can be set aside now.

        If all results of a batch fail, they are set aside only after ALL_BAD_TRIES tries. From such
        batches, at most ALL_BAD_MAX results are set aside until a row is written again: if more
        fail, the transform is probably wrong, or a service that it uses is down. `why` is the error
        of one result.
        """
        if self._progress.rows != self._rows:
            self._all_bad = 0
        self._rows = self._progress.rows
        too_many = self._all_bad + number > ALL_BAD_MAX
        if too_many or count_try(self._folder, batch) < ALL_BAD_TRIES:
            raise TransformFails(
                f"{self._table.transform} fails on each of the results that were tried: {why}"
            )

    def _try_sample(self, examined: ExaminedBatch, tries: int) -> str:
        """Runs the transform on a sample of results, one by one.

        Returns the last error if the transform fails on all of these results, else "".
        """
        why = ""
        # Each try takes another sample: a batch in which most results fail has some that do not.
        for place in examined.sample(_SAMPLE, seed=tries):
            error = _failure_at(examined, place)
            if error is None:
                return ""
            why = reason(error)
        return why

    def _search(self, examined: ExaminedBatch) -> Found:
        found = search(examined.extents(), examined.failure_of)
        if len(found) > SET_ASIDE_MAX:
            first_error = next(iter(found.values()))
            transform = self._table.transform
            raise TransformFails(
                f"{transform} fails on more than {SET_ASIDE_MAX} results of a batch: {first_error}"
            )
        # Only proven results are set aside: they fail again, and the rest does not.
        found = {place: why for place, why in found.items() if _failure_at(examined, place)}
        return {} if not found or examined.failure_without(found) else found

    def _set_aside(
        self, batch: int, examined: ExaminedBatch, found: Found
    ) -> tuple[str, FailingResult]:
        """Saves the failing results in the checkpoint; returns the file and the first of them."""
        failing = [
            FailingResult(**row.asDict(), reason=found[row["partition"], row["offset"]])
            for row in examined.read(found)
        ]
        file = write_set_aside(self._folder, batch, failing)
        first = failing[0]
        _LOG.error(
            "results are set aside and left out of the table: its transform fails on them",
            table=self._table.name,
            results=len(failing),
            file=file,
            first_source=first.source,
            first_reason=first.reason,
        )
        return file, first


def _failure_at(examined: ExaminedBatch, place: Place) -> Exception | None:
    partition, offset = place
    return examined.failure_of({partition: (offset, offset + 1)})
