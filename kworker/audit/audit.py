"""Runs an audit: finds what became of every source record, and makes the report."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from kworker.audit.snapshot import AuditSnapshot
from kworker.audit.store import SourceKey, TraceStore
from kworker.audit.traces import Found, TraceFinder
from kworker.core.audit import Contradiction, Judgement, Outcome, Rules, Trace, TraceKind, judge
from kworker.core.headers import Source
from kworker.core.message import RawMessage
from kworker.core.times import TimeRange
from kworker.dead_letters.resolutions import Resolutions
from kworker.spark.tables.audited_table import AuditedTable, RowFault, TableAuditScope

Read = Callable[[str, Mapping[int, range]], Iterator[RawMessage]]
"""Reads a topic's committed records with these offsets by partition."""
AuditTables = Callable[[TableAuditScope], Iterable[AuditedTable]]


class AuditProgress(Protocol):
    """Shows how far an audit is."""

    def reading(self, topic: str, raws: Iterator[RawMessage]) -> Iterator[RawMessage]:
        """Yields the records of a topic unchanged, and counts them."""

    def judging(self, records: int) -> None:
        """Shows the number of source records judged so far."""


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The scope of an audit: a range of time of the source records, and what to report.

    With `every_record_has_a_result`, a record that was settled without a result counts as a hole.
    At most `problems_max` problems are listed; all are counted.
    """

    time_range: TimeRange
    every_record_has_a_result: bool = False
    problems_max: int = 100


@dataclass(frozen=True, slots=True)
class RecordProblem:
    """A double (an outcome too many) or a hole (a missing result or retry) of a source record.

    `what` describes the problem. `places` are the positions of the records at fault, or the tables
    of the rows at fault.
    """

    record: str  # topic:partition:offset
    kind: Literal["double", "hole"]
    what: str
    places: tuple[str, ...] = ()


@dataclass(slots=True)
class TableReport:
    """The outcome of the audit of one table; `refused` is the reason why it was not audited."""

    name: str
    refused: str
    rows: int
    missing: int  # results without a row
    repeated: int  # results with several rows


@dataclass(slots=True)
class AuditReport:
    """The outcomes of all audited records, and the problems found."""

    taken_ms: int
    time_range: TimeRange
    topics: tuple[str, ...]
    records: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    results: int = 0
    gone: int = 0  # traces of records that the source topics no longer hold
    next_due_ms: int = 0
    doubles: int = 0
    holes: int = 0
    problems: list[RecordProblem] = field(default_factory=list)
    tables: list[TableReport] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True if the audit found nothing twice (a double) and nothing missing (a hole)."""
        return not (self.doubles or self.holes)


class Audit:
    """One audit of a service. Used by one thread; every call may block."""

    def __init__(
        self, snapshot: AuditSnapshot, scope: AuditScope, read: Read, progress: AuditProgress
    ) -> None:
        self._snapshot = snapshot
        self._scope = scope
        self._read = read
        self._progress = progress
        topics = snapshot.topics
        self._report = AuditReport(snapshot.taken_ms, scope.time_range, tuple(topics.sources))
        self._rules = Rules(
            snapshot.is_complete(topics.results),
            snapshot.is_complete([topics.requeue]),
            scope.every_record_has_a_result,
        )

    def run(self, tables: AuditTables) -> AuditReport:
        """Returns the report of what became of each source record in the scope.

        Until it returns, its findings are in a temporary folder.
        Raises Unreachable if Kafka sends nothing, and KworkerError if the tables cannot be read.
        """
        with _store() as store:
            for found in self._traces(store):
                store.add((_key(source, store), trace) for source, trace in found)
            for table in tables(self._table_scope()):
                self._add_table(table, store)
            self._judge_all(store)
        return self._report

    def _traces(self, store: TraceStore) -> Iterator[Found]:
        finder, topics = TraceFinder(self._scope.time_range, store.number), self._snapshot.topics
        for topic in topics.sources:
            yield finder.sources(self._records(topic), self._snapshot.settled_of(topic))
        for topic in topics.results:
            yield finder.results(self._records(topic))
        copies = {
            **dict.fromkeys(topics.delays, TraceKind.RETRY),
            topics.requeue: TraceKind.REQUEUE,
        }
        for topic, kind in copies.items():
            yield finder.copies(self._records(topic), kind, self._snapshot.settled_of(topic))
        resolutions = Resolutions(topics.dead)
        for raw in self._records(topics.dead_state):
            resolutions.add(raw.key(), raw.value())
        yield finder.dead_letters(self._records(topics.dead), resolutions)

    def _records(self, topic: str) -> Iterator[RawMessage]:
        return self._progress.reading(topic, self._read(topic, self._snapshot.spans_of(topic)))

    def _table_scope(self) -> TableAuditScope:
        topics = self._snapshot.topics
        return TableAuditScope(
            self._snapshot.spans_of(topics.results[0]),
            self._snapshot.table_positions,
            topics.sources,
            self._scope.time_range,
            self._scope.problems_max,
        )

    def _add_table(self, table: AuditedTable, store: TraceStore) -> None:
        row = Trace(TraceKind.ROW, store.number(table.name), 0, 0)
        store.add((_key(source, store), row) for source in table.unexplained)
        missing, repeated = table.counts.get("missing", 0), table.counts.get("repeated", 0)
        report = TableReport(table.name, table.refused, table.rows, missing, repeated)
        self._report.tables.append(report)
        self._report.holes += missing
        self._report.doubles += repeated
        self._list(_of_row(table.name, fault) for fault in table.faults)

    def _judge_all(self, store: TraceStore) -> None:
        names = store.names
        for key, traces in store.records():
            if traces[0].kind is not TraceKind.SOURCE:
                self._report.gone += 1
                continue
            judgement = judge(traces, self._rules)
            self._count(judgement)
            if judgement.problems:
                record = f"{names[key.topic]}:{key.partition}:{key.offset}"
                self._add_problems(record, judgement.problems, names)
            if self._report.records % 10_000 == 0:
                self._progress.judging(self._report.records)

    def _count(self, judgement: Judgement) -> None:
        report = self._report
        report.records += 1
        report.outcomes[judgement.outcome] += 1
        report.results += judgement.results
        if judgement.outcome is Outcome.WAITING:
            report.next_due_ms = min(report.next_due_ms or judgement.due_ms, judgement.due_ms)

    def _add_problems(
        self, record: str, problems: Iterable[Contradiction], names: list[str]
    ) -> None:
        for problem in problems:
            self._report.doubles += problem.kind == "double"
            self._report.holes += problem.kind == "hole"
            places = tuple(_place(trace, names) for trace in problem.traces)
            self._list([RecordProblem(record, problem.kind, problem.what, places)])

    def _list(self, problems: Iterable[RecordProblem]) -> None:
        room = self._scope.problems_max - len(self._report.problems)
        self._report.problems += list(problems)[: max(0, room)]


@contextmanager
def _store() -> Iterator[TraceStore]:
    with (
        tempfile.TemporaryDirectory(prefix="kworker-audit-") as folder,
        TraceStore(Path(folder) / "traces") as store,
    ):
        yield store


def _key(source: Source, store: TraceStore) -> SourceKey:
    return SourceKey(store.number(source.topic), source.partition, source.offset, source.timestamp)


def _record(source: Source) -> str:
    return "{}:{}:{}".format(*source.place)


def _place(trace: Trace, names: list[str]) -> str:
    if trace.kind is TraceKind.ROW:
        return f"table {names[trace.topic]}"
    return f"{names[trace.topic]}:{trace.partition}:{trace.offset}"


def _of_row(table: str, fault: RowFault) -> RecordProblem:
    record = _record(fault.source)
    which = f" with index {fault.result_index}" if fault.result_index else ""
    if fault.fault == "missing":
        return RecordProblem(record, "hole", f"its result{which} is not in table {table}")
    what = f"its result{which} is in table {table} {fault.rows} times"
    return RecordProblem(record, "double", what)
