"""The report of what a service did with its records, for a test to read."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kworker.core import headers as names
from kworker.core.headers import Envelope, Source, parted, restored
from kworker.core.message import Fields, HeaderList, PartitionId
from kworker.dead_letters.dead_letter import DeadLetter


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """A result that was published to a topic.

    `headers` are those that the handler gave, and the record's `traceparent`, if it has one.
    `table` is the name that the handler gave in `Result(table=…)`.
    """

    topic: str
    table: str | None
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    source: Source

    def json(self) -> Any:
        """Returns the value, parsed as JSON."""
        return json.loads(self.value or b"null")


@dataclass(frozen=True, slots=True)
class DelayedRun:
    """A run that waited in a delay topic.

    `attempt` is its number, `wait_s` the seconds for which it had to wait in all (to a tenth), and
    `error` the failure of the run before.
    """

    source: Source
    attempt: int
    wait_s: float
    error: str


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A dead letter: the record as it was, and why it failed.

    `attempt` is the number of its last run.
    """

    source: Source
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    reason: str
    exception: str
    message: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that became of the records; each list is ordered by source topic, partition, offset.

    `committed` has the committed position of each source partition. `passed_s` are the seconds that
    passed on the service's clock.
    """

    results: list[PublishedResult]
    retries: list[DelayedRun]
    dead: list[DeadRecord]
    committed: Mapping[PartitionId, int]
    passed_s: float

    def values(self) -> list[Any]:
        """Returns the values of all results, parsed as JSON."""
        return [result.json() for result in self.results]


def published_result(raw: Fields) -> PublishedResult:
    own, others = parted(raw.headers() or ())
    table = own[names.TABLE].decode() if names.TABLE in own else None
    source = Source.parse(own[names.SOURCE])
    return PublishedResult(raw.topic(), table, raw.key(), raw.value(), restored(others), source)


def delayed_runs(written: Iterable[Fields]) -> list[DelayedRun]:
    """Returns the runs for which these records waited in delay topics, each run once.

    If a wait is longer than the longest delay, several records are written for one run.
    """
    runs: dict[tuple[str, int, int, int, int], DelayedRun] = {}
    for raw in sorted(written, key=lambda each: each.timestamp()):
        envelope = Envelope.open(raw.headers() or ())
        source = envelope.source
        error = parted(raw.headers() or ())[0].get(names.ERROR, b"").decode()
        wait_s = round((envelope.due_ms - raw.timestamp()[1]) / 1000, 1)
        run = (*source.place, envelope.attempt, envelope.due_ms)
        runs.setdefault(run, DelayedRun(source, envelope.attempt, wait_s, error))
    return [runs[run] for run in sorted(runs)]


def dead_record(raw: Fields) -> DeadRecord:
    letter = DeadLetter.of(raw)
    assert letter.source is not None
    return DeadRecord(
        letter.source,
        letter.key,
        letter.value,
        letter.headers,
        letter.reason,
        letter.exception,
        letter.message,
        letter.attempt,
    )
