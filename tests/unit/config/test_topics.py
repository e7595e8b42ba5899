"""How kworker's own topics are planned after those they serve."""

from pathlib import Path
from typing import Any

from kworker.config.model import Config
from kworker.config.topics import TopicInfo, differences, own_topics, plan, source_topics

SMALL = TopicInfo(3, 1, {"max.message.bytes": "1000", "min.insync.replicas": "1"})
LARGE = TopicInfo(2, 3, {"max.message.bytes": "9000", "min.insync.replicas": "2"})


def config(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "name": "orders",
            "handler": "h:f",
            "file": Path("kworker.toml"),
            "source": {"topics": ["a", "b"]},
            "kafka": {"common": {}},
            **sections,
        }
    )


def test_delays_of_one_length_share_a_topic_with_a_normal_name() -> None:
    """60s and 1m are one delay."""
    names = own_topics(config(retry={"delays": ["500ms", "60s", "1m"]}))
    assert names == [
        *("orders.results", "orders.retry.500ms", "orders.retry.1m"),
        *("orders.requeue", "orders.dead", "orders.dead.state"),
    ]


def test_own_topics_take_the_largest_limits_of_the_sources() -> None:
    """A record of any source must fit, in as many partitions and as safely."""
    planned = {spec.name: spec for spec in plan(config(), {"a": SMALL, "b": LARGE})}
    assert {(spec.partitions, spec.replication) for spec in planned.values()} == {(3, 3)}
    assert {spec.config["min.insync.replicas"] for spec in planned.values()} == {"2"}
    assert planned["orders.dead"].config["max.message.bytes"] == str(9000 + 65536)


def test_a_planned_size_limit_is_one_that_kafka_takes() -> None:
    """A source without a real limit has the most already, and a number above is refused."""
    source = TopicInfo(1, 1, {"max.message.bytes": "2147483647"})
    planned = {spec.name: spec.config for spec in plan(config(), {"a": source})}
    assert planned["orders.dead"]["max.message.bytes"] == "2147483647"


def test_topics_of_waiting_and_dead_records_never_expire() -> None:
    """Unread retries must outlast a service that is down for a month."""
    planned = {spec.name: spec.config for spec in plan(config(), {"a": SMALL})}
    for name in ("orders.retry.1s", "orders.requeue", "orders.dead"):
        assert planned[name]["retention.ms"] == "-1"
        assert planned[name]["retention.bytes"] == "-1"
        assert planned[name]["cleanup.policy"] == "delete"
    assert planned["orders.dead.state"]["cleanup.policy"] == "compact"
    assert "retention.ms" not in planned["orders.results"]


def test_differences_name_the_setting_and_both_values() -> None:
    """What is told must be enough to change it by hand."""
    [spec] = [spec for spec in plan(config(), {"a": SMALL}) if spec.name == "orders.results"]
    assert differences(spec, TopicInfo(3, 1, {"min.insync.replicas": "1"})) == []
    assert differences(spec, TopicInfo(1, 1, {})) == [
        "partitions 1, planned 3",
        "min.insync.replicas unknown, planned 1",
    ]


def test_a_pattern_finds_sources_but_no_topic_of_a_service() -> None:
    """It begins at the name's start, and need not reach its end, as in the client."""
    there = ["a1", "a1.results", "a1.retry.1s", "a1.requeue", "a1.dead", "a1.dead.state", "ba1"]
    assert source_topics(config(source={"topics": ["^a"]}), there) == ["a1"]
    assert source_topics(config(), there) == ["a", "b"]
