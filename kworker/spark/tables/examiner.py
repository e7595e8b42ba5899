"""The examiner of a failed batch: it finds the results that the table's transform fails on."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kworker.config.model import Config, TableSettings
from kworker.core.bisection import Bisection
from kworker.errors import KworkerError
from kworker.spark.batch_limits import Range
from kworker.spark.checkpoints.folders import Folder
from kworker.spark.checkpoints.set_aside import (
    FailingResult,
    is_among,
    read_set_aside,
    skipped_offsets,
    write_set_aside,
)
from kworker.spark.progress import TableProgress
from kworker.spark.reasons import reason
from kworker.spark.rows.columns import encoded, header, text_of
from kworker.spark.rows.frames import Span, positions_of, records_between, transformed
from kworker.spark.rows.transforms import TransformRaised
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.spark_log import quiet_tasks

_LOG = structlog.get_logger()

SET_ASIDE_MAX = 100  # of a batch, or in a row: with more the transform itself is wrong
_SAMPLE = 8  # results tried first: if all fail, the transform fails always
_TRIES_MAX = 4  # failures of a batch whose whole sample fails, before its results are set aside
_OF_DATA = re.compile(r"Python worker exited unexpectedly|Traceback \(most|SQLSTATE: (?:22|39|P0)")
_KEPT = (
    "partition",
    "offset",
    f"{header('kworker-source')} AS source",
    f"coalesce({text_of('key')}, {encoded('key')}) AS key",
    f"coalesce({text_of('value')}, {encoded('value')}) AS value",
)

Part = Mapping[int, Range]
"""Some records of a batch: a range of offsets in each partition."""
Found = dict[tuple[int, int], str]
"""The errors of failing results, by partition and offset."""


class ResultsSetAside(KworkerError):
    """Raised when results were set aside, so that the batch is written again without them."""


class TransformFails(KworkerError):
    """Raised when the transform fails on so many results that it must be wrong itself."""


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
        self._set_aside_in_row = 0  # results set aside without a success between them
        self._rows = 0
        self._failed = -1, 0  # a batch, and how often in a row

    def __call__(self, session: SparkSession, batch: int, span: Span, error: Exception) -> None:
        if not _is_of_data(error):
            return
        tries = self._failed[1] + 1 if self._failed[0] == batch else 1
        self._failed = batch, tries
        if tries == 1:
            return  # the next try may pass
        gone = skipped_offsets(read_set_aside(self._folder, batch).recent, span[0] or {})
        records = records_between(session, self._config, span).where(f"NOT ({is_among(gone)})")
        records.persist()
        try:
            there = positions_of(records, self._table)
            number = there.count()
            why = self._try_sample(records, there)
            if why and (tries < _TRIES_MAX or number > SET_ASIDE_MAX):
                raise TransformFails(
                    f"{self._table.transform} fails on each of the results that were tried: {why}"
                )
            if found := self._search(records, there):
                self._count(len(found), number)
                self._set_aside(batch, records, found)
        except (*CALL_FAILED, ValueError, TransformRaised) as problem:
            _LOG.warning(
                "the results on which the table's transform fails cannot be singled out;"
                " the batch is tried again",
                table=self._table.name,
                reason=reason(problem),
            )
        finally:
            records.unpersist()

    def _try_sample(self, records: DataFrame, there: DataFrame) -> str:
        """Runs the transform on a sample of results, one by one.

        Returns the last error if the transform fails on all of these results, else "". A failure on
        all of them suggests that the transform is wrong, or that a service which it uses is down.
        Then it would be useless to search the batch for the results that the transform fails on.
        """
        why = ""
        for at in there.orderBy(f.xxhash64("partition", "offset")).limit(_SAMPLE).collect():
            error = self._fails_at(records, *at)
            if error is None:
                return ""
            why = reason(error)
        return why

    def _fails_at(self, records: DataFrame, partition: int, offset: int) -> Exception | None:
        return self._fails(records.where(is_among({partition: [offset]})))

    def _search(self, records: DataFrame, there: DataFrame) -> Found:
        extents = there.groupBy("partition").agg(f.min("offset"), f.max("offset")).collect()
        batch = {partition: (first, last + 1) for partition, first, last in extents}
        found = search(batch, lambda part: self._fails(records.where(_within(part))))
        if len(found) > SET_ASIDE_MAX:
            first_error = next(iter(found.values()))
            transform = self._table.transform
            raise TransformFails(
                f"{transform} fails on more than {SET_ASIDE_MAX} results of a batch: {first_error}"
            )
        # Only proven results are set aside: they fail again, and the rest does not.
        found = {at: why for at, why in found.items() if self._fails_at(records, *at)}
        rest = records.where(f"NOT ({is_among(_offsets(found))})")
        return {} if not found or self._fails(rest) else found

    def _fails(self, records: DataFrame) -> Exception | None:
        try:
            rows = transformed(records, self._table, self._config)
            with quiet_tasks(records.sparkSession):
                rows.write.format("noop").mode("overwrite").save()
        except CALL_FAILED as error:
            if _is_of_data(error):
                return error
            raise
        return None

    def _set_aside(self, batch: int, records: DataFrame, found: Found) -> None:
        those = records.where(is_among(_offsets(found))).selectExpr(*_KEPT)
        failing = [
            FailingResult(**row.asDict(), reason=found[row["partition"], row["offset"]])
            for row in those.collect()
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
        raise ResultsSetAside(
            f"{len(failing)} results are not in the table but in {file}: {first.reason}"
        )

    def _count(self, found: int, records: int) -> None:
        if found < records or self._progress.rows != self._rows:
            self._set_aside_in_row = 0
        self._rows = self._progress.rows
        self._set_aside_in_row += found
        if self._set_aside_in_row > SET_ASIDE_MAX:
            raise TransformFails(
                f"{self._table.transform} fails on all of the last {self._set_aside_in_row}"
                " results, so it is at fault itself"
            )


def _is_of_data(error: Exception) -> bool:
    """True if a row may have caused the error; False for a cancelled job or lost results."""
    text = str(error)
    return _OF_DATA.search(text) is not None and "KAFKA_DATA_LOSS" not in text


def _within(part: Part) -> str:
    each = (
        f"(partition = {partition} AND offset >= {begin} AND offset < {end})"
        for partition, (begin, end) in part.items()
    )
    return " OR ".join(each)


def _offsets(found: Found) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for partition, offset in found:
        offsets.setdefault(partition, []).append(offset)
    return offsets
