"""A batch that could not be written, on parts of which the table's transform runs again."""

import re
from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from kworker.config.model import Config, TableSettings
from kworker.spark.batch_limits import Range
from kworker.spark.checkpoints.set_aside import is_among
from kworker.spark.rows.columns import encoded, header, text_of
from kworker.spark.rows.frames import Span, positions_of, records_between, transformed
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.spark_log import quiet_tasks

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
Place = tuple[int, int]
"""The partition and the offset of a record."""


class ExaminedBatch:
    """The records of a batch that could not be written, and the table's transform.

    Spark keeps the records until `close`. The other methods run Spark jobs. `failure_of` and
    `failure_without` return an error that a result may have caused. Any other error is raised:
    Spark's error, ValueError or TransformRaised.
    """

    def __init__(
        self,
        session: SparkSession,
        table: TableSettings,
        config: Config,
        span: Span,
        left_out: Mapping[int, Sequence[int]],
    ) -> None:
        self._table = table
        self._config = config
        records = records_between(session, config, span)
        self._records = records.where(f"NOT ({is_among(left_out)})").persist()
        self._positions = positions_of(self._records, table)

    def close(self) -> None:
        self._records.unpersist()

    def count(self) -> int:
        """The number of results for this table."""
        return self._positions.count()

    def sample(self, size: int, seed: int) -> list[Place]:
        """Returns the places of `size` random results, or of all results if there are fewer."""
        shuffled = self._positions.orderBy(f.xxhash64("partition", "offset", f.lit(seed)))
        return [(row["partition"], row["offset"]) for row in shuffled.limit(size).collect()]

    def extents(self) -> Part:
        """Returns the range of offsets of the results in each partition."""
        ends = self._positions.groupBy("partition").agg(f.min("offset"), f.max("offset"))
        return {partition: (first, last + 1) for partition, first, last in ends.collect()}

    def failure_of(self, part: Part) -> Exception | None:
        """Runs the transform on a part of the batch; returns the error if it fails, else None."""
        return self._failure(self._records.where(_within(part)))

    def failure_without(self, places: Collection[Place]) -> Exception | None:
        """Runs the transform on all records not in `places`; returns the error if it fails."""
        return self._failure(self._records.where(f"NOT ({is_among(_offsets(places))})"))

    def read(self, places: Collection[Place]) -> list[Row]:
        """Reads the records at `places`: partition, offset, source, key and value."""
        return self._records.where(is_among(_offsets(places))).selectExpr(*_KEPT).collect()

    def _failure(self, records: DataFrame) -> Exception | None:
        try:
            rows = transformed(records, self._table, self._config)
            with quiet_tasks(records.sparkSession):
                rows.write.format("noop").mode("overwrite").save()
        except CALL_FAILED as error:
            if is_of_data(error):
                return error
            raise
        return None


def is_of_data(error: Exception) -> bool:
    """True if a row may have caused the error; False for a cancelled job or data lost in Kafka."""
    text = str(error)
    return _OF_DATA.search(text) is not None and "KAFKA_DATA_LOSS" not in text


def _within(part: Part) -> str:
    each = (
        f"(partition = {partition} AND offset >= {begin} AND offset < {end})"
        for partition, (begin, end) in part.items()
    )
    return " OR ".join(each)


def _offsets(places: Collection[Place]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for partition, offset in places:
        offsets.setdefault(partition, []).append(offset)
    return offsets
