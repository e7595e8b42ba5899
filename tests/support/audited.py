"""Topics in memory as an audit reads them, and what their broker tells of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from kworker.audit.audit import Audit, AuditReport, AuditScope
from kworker.audit.snapshot import take_snapshot
from kworker.config.model import Config
from kworker.config.topics import TopicInfo
from kworker.core.message import Fields, Headers, PartitionId, RawMessage
from kworker.core.offset_map import Committed, TopicIdentity
from kworker.core.times import TimeRange
from kworker.spark.tables.audited_table import AuditedTable, TableAuditScope

STAMP = 1_700_000_000_000
ALL = TimeRange()


class Brokers:
    """The topics of one service, `orders` and its own; one partition each. Implements GroupAdmin.

    Records are appended by the test. `positions` are committed ones, by group and topic.
    """

    def __init__(self) -> None:
        own = ("results", "retry.1s", "requeue", "dead", "dead.state")
        self.records: dict[str, list[RawMessage]] = {
            name: [] for name in ("orders", *(f"clicks.{each}" for each in own))
        }
        self.positions: dict[tuple[str, str], Committed] = {}
        self.lows: dict[str, int] = defaultdict(int)
        self.hidden: dict[str, list[int]] = {}  # stable ends, told before the real one
        self.asked: list[str] = []

    def append(
        self,
        topic: str,
        headers: Headers = (),
        *,
        key: bytes | None = None,
        value: bytes | None = b"{}",
        timestamp: int = STAMP,
    ) -> int:
        """Returns the record's offset."""
        offset = len(self.records[topic])
        place = (topic, 0, offset)
        self.records[topic].append(Fields(place, timestamp, key, value, headers))
        return offset

    def orders(self, *stamps: int) -> None:
        for stamp in stamps:
            self.append("orders", timestamp=stamp)

    def result(self, offset: int, stamp: int = STAMP, *more: tuple[str, bytes]) -> None:
        self.append("clicks.results", (of(offset, stamp), *more))

    def settle(self, topic: str, position: int, group: str = "clicks") -> None:
        self.positions[group, topic] = Committed(position)

    # What an audit asks.

    def topic_names(self) -> list[str]:
        return sorted(self.records)

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        return {name: TopicInfo(1, 1, {}) for name in names if name in self.records}

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        return {name: TopicIdentity("cluster", f"id of {name}") for name in topics}

    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId]
    ) -> dict[PartitionId, Committed]:
        self.asked.append(f"positions of {group}")
        asked = {(group, at[0]): at for at in partitions}
        return {asked[each]: held for each, held in self.positions.items() if each in asked}

    def list_offsets(
        self,
        partitions: Iterable[PartitionId],
        which: Literal["earliest", "latest"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionId, int]:
        self.asked.append(f"{which}, {committed}")
        return {at: self._offset(at[0], which, committed=committed) for at in partitions}

    def _offset(self, topic: str, which: str | int, *, committed: bool) -> int:
        if which == "earliest":
            return self.lows[topic]
        if which == "latest":
            hidden = self.hidden.get(topic, [])
            return hidden.pop(0) if committed and hidden else len(self.records[topic])
        assert isinstance(which, int)
        later = (r.offset() for r in self.records[topic] if r.timestamp()[1] >= which)
        return next(later, -1)

    def read(self, topic: str, spans: Mapping[int, range]) -> Iterator[RawMessage]:
        for span in spans.values():
            yield from (raw for raw in self.records[topic] if raw.offset() in span)


def of(offset: int, stamp: int = STAMP) -> tuple[str, bytes]:
    """The header that tells of which order a record came."""
    return "kworker-source", b"orders/0/%d/%d" % (offset, stamp)


class Unseen:
    """A progress that nobody watches."""

    def reading(self, topic: str, raws: Iterator[RawMessage]) -> Iterator[RawMessage]:
        return raws

    def judging(self, records: int) -> None:
        pass


def service(folder: Path, **sections: object) -> Config:
    """A service named `clicks` that reads `orders`."""
    return Config.model_validate(
        {
            "name": "clicks",
            "handler": "m:f",
            "source": {"topics": ["orders"]},
            "kafka": {"common": {"bootstrap.servers": "none:1"}},
            "file": folder / "kworker.toml",
            **sections,
        }
    )


def audited(
    brokers: Brokers,
    config: Config,
    time_range: TimeRange = ALL,
    *,
    tables: Iterable[AuditedTable] = (),
    expect_results: bool = False,
    problems_max: int = 100,
) -> AuditReport:
    """Audits what the brokers hold. `tables` are told as Spark would find them."""
    scope = AuditScope(time_range, expect_results, problems_max)
    snapshot = take_snapshot(config, brokers, time_range.from_ms, lambda _: None)

    def found(_: TableAuditScope) -> Iterable[AuditedTable]:
        return tables

    return Audit(snapshot, scope, brokers.read, Unseen()).run(found)
