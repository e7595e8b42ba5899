"""The scope and the outcome of an audit of tables. Only the audit itself imports pyspark."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kworker.core.headers import Source
from kworker.core.times import TimeRange

Fault = Literal["missing", "repeated", "unexplained"]
"""A result without a row, a result with several rows, or a row without a result."""


class RowFault(NamedTuple):
    """A difference between a table and the results topic: a missing or repeated result.

    `rows` is the number of rows that the table has of this result.
    """

    fault: Fault
    source: Source
    result_index: int
    rows: int


@dataclass(frozen=True, slots=True)
class AuditedTable:
    """The number of a table's rows, and their differences from the results topic.

    `refused` is the reason why the table was not audited, else "". `counts` has the number of
    faults of each kind. `faults` has the first missing and repeated results, sorted by their
    position in the source topics. `unexplained` yields the source position of each row without a
    result: the result may have been deleted, or be newer than the audit. `unexplained` must be read
    before the next table is audited.
    """

    name: str
    refused: str = ""
    rows: int = 0
    counts: Mapping[Fault, int] = field(default_factory=dict)
    faults: Collection[RowFault] = ()
    unexplained: Iterator[Source] = field(default_factory=lambda: iter(()))


@dataclass(frozen=True, slots=True)
class TableAuditScope:
    """The scope of an audit of tables: results, sources, and the number of faults to return.

    `results` has the offsets of the results topic by partition. `positions` has, for each table,
    the table's position in each partition of that topic: a result beyond this position needs no row
    yet. `sources` are source topics. Only rows and results of records in `sources` and in
    `time_range` count.
    """

    results: Mapping[int, range]
    positions: Mapping[str, Mapping[int, int]]
    sources: Collection[str]
    time_range: TimeRange
    faults_max: int
