"""What `kworker lag` finds in the brokers' answers, and how it shows it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from kworker.cli.lag.survey import LagReport, survey
from kworker.cli.lag.view import as_data, render
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.config.topics import TopicInfo
from kworker.core import headers as names
from kworker.core.message import Fields, PartitionId, RawMessage
from kworker.core.offset_map import Committed, Settled, TopicIdentity, encode, origin_of

NOW_MS = 1_790_000_000_000
FILE = """
name = "shop"
handler = "json:loads"
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[retry]
delays = ["10s", "1m"]
[[spark.tables]]
name = "sales"
path = "data/sales"
"""
OWN = ("shop.requeue", "shop.retry.10s", "shop.retry.1m", "shop.results")


class LagBrokers:
    """Brokers that hold `spans` of offsets, and the positions of groups; they count requests."""

    def __init__(self, spans: Mapping[PartitionId, range]) -> None:
        self.spans = dict(spans)
        self.positions: dict[str, dict[PartitionId, Committed]] = {}
        self.records: dict[PartitionId, RawMessage | None] = {}
        self.asked: list[str] = []
        self.settled: dict[PartitionId, Settled] = {}
        self.unread: set[PartitionId] = set()

    def topic_names(self) -> list[str]:
        return sorted({topic for topic, _ in self.spans})

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        counts = {name: sum(topic == name for topic, _ in self.spans) for name in names}
        return {name: TopicInfo(count, 1, {}) for name, count in counts.items() if count}

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        return {name: self.identity(name) for name in topics}

    def identity(self, name: str) -> TopicIdentity:
        return TopicIdentity("cluster", f"id of {name}")

    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId], *, stable: bool = True
    ) -> dict[PartitionId, Committed]:
        assert not stable, "a transaction that hangs would hide positions for days"
        self.asked.append(group)
        held = self.positions.get(group, {})
        return {at: held[at] for at in partitions if at in held}

    def list_offsets(
        self,
        partitions: Iterable[PartitionId],
        which: Literal["earliest", "latest"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionId, int]:
        assert committed is (which == "latest")
        self.asked.append(str(which))
        return {
            at: self.spans[at].start if which == "earliest" else self.spans[at].stop
            for at in partitions
        }

    def heads(self, settled: Mapping[PartitionId, Settled]) -> dict[PartitionId, RawMessage | None]:
        """What `HeadReader` says: a record of two seconds ago, unless the test has another."""
        self.settled |= settled
        return {
            at: self.records.get(at, record(at, 2_000)) for at in settled if at not in self.unread
        }


def record(at: PartitionId, ago_ms: int, **headers: bytes) -> Fields:
    named = tuple((getattr(names, name), value) for name, value in headers.items())
    return Fields((*at, 0), NOW_MS - ago_ms, None, b"", named)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "kworker.toml").write_text(FILE)
    return toml_file.load(tmp_path / "kworker.toml")


@pytest.fixture
def brokers() -> LagBrokers:
    """Two partitions of each topic, all empty but the source."""
    empty = {(topic, number): range(0) for topic in OWN for number in (0, 1)}
    return LagBrokers({("orders", 0): range(100), ("orders", 1): range(50, 80), **empty})


def read(config: Config, brokers: LagBrokers) -> LagReport:
    return survey(config, brokers, brokers.heads, NOW_MS)


def rows(report: LagReport, topic: str) -> list[dict[str, Any]]:
    [found] = [each for each in as_data(report)["topics"] if each["topic"] == topic]
    return list(found["partitions"])


def shown(report: LagReport, *, partitions: bool = False) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(report, partitions=partitions))
    return captured.get()


def test_what_the_offset_map_says_is_done_is_not_unfinished(
    config: Config, brokers: LagBrokers
) -> None:
    """Else a slow record would look like thousands."""
    origin = origin_of(brokers.identity("orders"), ("orders", 0))
    text = encode(origin, 10, [(11, 50), (60, 70)])
    brokers.positions["shop"] = {
        ("orders", 0): Committed(10, text),
        ("orders", 1): Committed(80),
    }
    report = read(config, brokers)
    [first, second] = rows(report, "orders")
    assert (first["committed"], first["end"], first["records"]) == (10, 100, 90)
    assert first["unfinished"] == 90 - 39 - 10
    assert (second["records"], second["unfinished"], second["age_s"]) == (0, 0, 0.0)
    assert brokers.settled[("orders", 0)].has(49)
    assert ("orders", 1) not in brokers.settled
    assert as_data(report)["lag"] == {"records": 90, "unfinished": 41, "age_s": 2.0}


def test_a_map_of_another_partition_counts_for_nothing(config: Config, brokers: LagBrokers) -> None:
    foreign = encode(origin_of(brokers.identity("orders"), ("orders", 7)), 10, [(11, 50)])
    brokers.positions["shop"] = {("orders", 0): Committed(10, foreign)}
    assert rows(read(config, brokers), "orders")[0]["unfinished"] == 90


def test_a_group_that_never_committed_has_all_records_before_it(
    config: Config, brokers: LagBrokers
) -> None:
    report = read(config, brokers)
    assert [row["records"] for row in rows(report, "orders")] == [100, 30]
    assert {row["committed"] for row in rows(report, "orders")} == {None}
    assert "2 partitions without a position, counted from the first offset" in shown(report)
    assert brokers.settled[("orders", 1)] == Settled(50)


def test_expired_records_and_recreated_topics_are_told(config: Config, brokers: LagBrokers) -> None:
    former = TopicIdentity("cluster", "former")
    text = encode(origin_of(former, ("orders", 0)), 90, [])
    brokers.positions["shop"] = {("orders", 0): Committed(90, text), ("orders", 1): Committed(45)}
    report = read(config, brokers)
    [first, second] = rows(report, "orders")
    assert (first["made_again"], first["records"]) == (True, 100)
    assert (second["expired"], second["records"]) == (5, 30)
    assert "5 expired before they were read" in shown(report)
    assert "the topic was deleted and created again" in shown(report, partitions=True)


def test_an_unknown_age_is_not_zero(config: Config, brokers: LagBrokers) -> None:
    """Nor hides it one that is known; markers alone have no age."""
    brokers.unread = {("orders", 0), ("orders", 1)}
    assert as_data(read(config, brokers))["lag"]["age_s"] is None
    brokers.unread = {("orders", 0)}
    brokers.records = {("orders", 1): record(("orders", 1), 7_000)}
    report = read(config, brokers)
    assert [row["age_s"] for row in rows(report, "orders")] == [None, 7.0]
    assert as_data(report)["lag"]["age_s"] == 7.0
    brokers.records = {("orders", 1): None}
    assert [row["age_s"] for row in rows(read(config, brokers), "orders")] == [None, 0.0]


def test_delays_are_told_by_tier_with_the_next_due(config: Config, brokers: LagBrokers) -> None:
    """As `status` does; of a delay that is no longer configured, too."""
    brokers.spans |= {
        ("shop.retry.10s", 0): range(3),
        ("shop.retry.10s", 1): range(2),
        ("shop.retry.5s", 0): range(1),
    }
    brokers.positions["shop.delay"] = {("shop.retry.10s", 0): Committed(1)}
    waiting = {"SOURCE": b"orders/0/1/0", "DUE": b"%d" % (NOW_MS + 60_000)}
    for number, ago_ms in ((0, 1_000), (1, 4_000)):
        at = ("shop.retry.10s", number)
        brokers.records[at] = record(at, ago_ms, **waiting)
    found = {row["delay"]: row for row in as_data(read(config, brokers))["delays"]}
    assert list(found) == ["5s", "10s", "1m"]
    assert [row["waiting"] for row in found.values()] == [1, 4, 0]
    assert found["10s"]["next_due_ms"] == NOW_MS + 6_000
    assert found["1m"]["next_due_ms"] is None


def test_each_table_has_the_lag_of_its_own_group(config: Config, brokers: LagBrokers) -> None:
    brokers.spans[("shop.results", 0)] = range(40)
    brokers.positions["shop.spark.sales"] = {("shop.results", 0): Committed(30)}
    report = read(config, brokers)
    [table] = as_data(report)["tables"]
    assert (table["table"], table["group"], table["topic"]) == (
        "sales",
        "shop.spark.sales",
        "shop.results",
    )
    assert table["records"] == 10
    assert "shop.results, for the table sales" in shown(report)


def test_missing_topics_are_named_and_make_the_lag_unknown(
    config: Config, brokers: LagBrokers
) -> None:
    """The others are shown all the same."""
    for number in (0, 1):
        del brokers.spans[("shop.requeue", number)]
        del brokers.spans[("shop.retry.1m", number)]
    report = read(config, brokers)
    data = as_data(report)
    assert data["missing"] == ["shop.requeue", "shop.retry.1m"]
    assert (data["lag"]["records"], data["lag"]["unfinished"]) == (None, None)
    assert [each["records"] for each in data["topics"]] == [130, None]
    assert "lag unknown" in shown(report)
    assert "missing on the brokers: shop.requeue, shop.retry.1m; create with" in shown(report)


def test_256_partitions_are_asked_for_together(config: Config, brokers: LagBrokers) -> None:
    """One request for the ends, one for the beginnings, one for each group."""
    brokers.spans |= {("orders", number): range(9) for number in range(256)}
    report = read(config, brokers)
    assert report.records == 256 * 9
    assert brokers.asked == ["latest", "earliest", "shop", "shop.delay", "shop.spark.sales"]
    assert len(shown(report, partitions=True).splitlines()) > 256
    assert json.dumps(as_data(report))


def test_no_topic_at_all_is_an_answer(config: Config) -> None:
    """A pattern may match nothing yet."""
    anything = config.source.model_copy(update={"topics": ["^orders-.*"]})
    report = read(config.model_copy(update={"source": anything}), LagBrokers({}))
    assert report.missing[0] == "shop.requeue"
    assert "lag unknown" in shown(report)
