"""What each Kafka client is given."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from kworker import host
from kworker.clients.connection_failures import bare_reason
from kworker.clients.property_refusals import refusals
from kworker.clients.transactions import KafkaTransactor
from kworker.config.client_properties import (
    admin_properties,
    consumer_properties,
    delay_consumer_properties,
    delay_producer_properties,
    leader_properties,
    producer_properties,
    record_sizes,
    transactional,
)
from kworker.config.model import Config


def config(*, membership: str = "static", topic: str = "orders", **kafka: Any) -> Config:
    return Config.model_validate(
        {
            "name": "orders",
            "handler": "h:f",
            "instance": "host-1",
            "file": Path("kworker.toml"),
            "source": {"topics": [topic]},
            "kafka": {"common": {"bootstrap.servers": "127.0.0.1:9"}, **kafka},
            "workers": {"membership": membership},
        }
    )


def test_a_consumer_never_commits_or_chooses_by_itself() -> None:
    """The ledger alone knows what is settled; a position that is lost must not be guessed."""
    properties = consumer_properties(config(), slot=3)
    assert properties["group.id"] == "orders"
    assert properties["group.instance.id"] == "orders-host-1-3"
    assert properties["client.id"] == f"orders-host-1-3.{host.fingerprint()}"
    assert properties["enable.auto.commit"] is False
    assert properties["enable.auto.offset.store"] is False
    assert properties["auto.offset.reset"] == "error"
    assert properties["enable.partition.eof"] is True
    assert properties["isolation.level"] == "read_committed"
    assert properties["partition.assignment.strategy"] == "range"
    assert properties["session.timeout.ms"] == 10000
    assert properties["queued.max.messages.kbytes"] == 16384
    assert properties["fetch.queue.backoff.ms"] == 10


def test_dynamic_members_have_no_name_of_their_own() -> None:
    """With one, they would be static."""
    assert "group.instance.id" not in consumer_properties(config(membership="dynamic"), slot=0)


@pytest.mark.parametrize("section", ["common", "consumer"])
def test_the_newer_protocol_gets_its_own_assignor_and_no_times(section: str) -> None:
    """The client refuses those of the other protocol."""
    new: dict[str, Any] = {section: {"group.protocol": "consumer", "bootstrap.servers": "h:9"}}
    properties = consumer_properties(config(membership="dynamic", **new), slot=0)
    assert properties["group.remote.assignor"] == "range"
    assert not {"partition.assignment.strategy", "session.timeout.ms"} & set(properties)
    assert list(refusals("consumer", properties)) == []


def test_user_properties_win_and_client_ones_win_over_common() -> None:
    """Defaults are a proposal."""
    given = config(
        common={"bootstrap.servers": "h:9", "linger.ms": 1, "client.id": "mine"},
        consumer={"session.timeout.ms": 6000},
        producer={"linger.ms": 2},
    )
    assert consumer_properties(given, slot=0)["session.timeout.ms"] == 6000
    assert producer_properties(given, slot=0)["linger.ms"] == 2
    assert producer_properties(given, slot=0)["compression.type"] == "lz4"
    assert admin_properties(given)["client.id"] == "mine"


def test_a_producer_is_idempotent_and_partitions_like_java() -> None:
    """Results must stand beside other writers' records of the same key."""
    properties = producer_properties(config(), slot=0)
    assert properties["enable.idempotence"] is True
    assert properties["acks"] == "all"
    assert properties["partitioner"] == "murmur2_random"


def test_a_new_topic_is_looked_for_twice_a_minute() -> None:
    """librdkafka's own five minutes are long for who has just made one; measured: 29.7 s."""
    chosen = consumer_properties(config(topic="^orders-"), slot=0)
    assert int(chosen["topic.metadata.refresh.interval.ms"]) <= 30_000


def test_a_pattern_leaves_the_topics_of_kworker_services_out() -> None:
    """Else a service would be fed with results, or with what is dead."""
    assert "topic.blacklist" in consumer_properties(config(topic="^.*"), slot=0)
    assert "topic.blacklist" not in consumer_properties(config(), slot=0)


def test_librdkafka_takes_the_defaults() -> None:
    """For both kinds of client, without a broker."""
    assert list(refusals("consumer", consumer_properties(config(topic="^.*"), slot=0))) == []
    assert list(refusals("producer", producer_properties(config(), slot=0))) == []


@pytest.mark.parametrize("section", ["common", "consumer"])
@pytest.mark.parametrize("largest", [1_000, 4_194_304, 4_194_305, "10485760", 1_000_000_000])
def test_a_file_may_allow_large_records(section: str, largest: int | str) -> None:
    """librdkafka refuses a fetch.max.bytes below message.max.bytes, and 4 MiB are the default."""
    allowing: dict[str, Any] = {section: {"bootstrap.servers": "h:9", "message.max.bytes": largest}}
    given = config(**allowing)
    for properties in (consumer_properties(given, slot=0), delay_consumer_properties(given)):
        assert list(refusals("consumer", properties)) == []
        assert properties["fetch.max.bytes"] == max(4_194_304, int(largest))


def test_a_limit_of_fetches_in_the_file_wins() -> None:
    """Also if that is too low: then librdkafka says so."""
    sizes = {"message.max.bytes": 10_000_000, "fetch.max.bytes": 5_000_000}
    given = config(consumer=sizes)
    assert consumer_properties(given, slot=0)["fetch.max.bytes"] == 5_000_000
    [refusal] = refusals("consumer", consumer_properties(given, slot=0))
    assert "`fetch.max.bytes` must be >= `message.max.bytes`" in str(refusal)


def test_a_largest_record_that_is_no_number_is_left_to_librdkafka() -> None:
    """Whose reason names it."""
    properties = consumer_properties(config(consumer={"message.max.bytes": "large"}), slot=0)
    assert [each.name for each in refusals("consumer", properties)] == ["message.max.bytes"]


@pytest.mark.parametrize("limit", [0, 999, 1_000_000_001, 2_147_483_647])
def test_librdkafka_takes_the_sizes_for_every_topic(limit: int) -> None:
    """A topic's limit may be any number of 31 bits; its own are from 1000 bytes to 1 GB."""
    properties = producer_properties(config(), slot=0)
    sizes = record_sizes(properties, largest=limit, smallest=limit)
    assert list(refusals("producer", {**properties, **sizes})) == []


def test_a_size_that_is_no_number_is_left_to_librdkafka() -> None:
    """Whose reason names it."""
    for name in ("batch.size", "queue.buffering.max.kbytes"):
        properties = {**producer_properties(config(), slot=0), name: "large"}
        sizes = record_sizes(properties, largest=2_000, smallest=2_000)
        assert [each.name for each in refusals("producer", {**properties, **sizes})] == [name]


def test_every_property_that_librdkafka_refuses_is_told() -> None:
    """All at once, as with every other mistake."""
    wrong = config(consumer={"sesion.timeout.ms": 1, "fetch.min.byte": 1, "fetch.min.bytes": "x"})
    found = {refusal.name for refusal in refusals("consumer", consumer_properties(wrong, slot=0))}
    assert found == {"sesion.timeout.ms", "fetch.min.byte", "fetch.min.bytes"}


@pytest.mark.parametrize(
    "state",
    [
        "",
        " (after 0ms in state CONNECT)",
        " (after 12ms in state CONNECT, 1 identical error(s) suppressed)",
    ],
)
def test_a_reason_is_told_without_the_clients_own_state(state: str) -> None:
    """What librdkafka adds changes from one refusal to the next."""
    reason = "Connect to ipv4#127.0.0.1:9 failed: Connection refused"
    assert bare_reason(f"127.0.0.1:9/bootstrap: {reason}{state}") == reason


def test_a_transaction_times_out_soon_whatever_the_file_says() -> None:
    """An open one stops every read_committed reader; and the library refuses longer time-outs."""
    for own in (
        {},
        {"socket.timeout.ms": 60_000, "delivery.timeout.ms": 120_000},
        {"transaction.timeout.ms": 30_000, "message.timeout.ms": 300_000},
    ):
        properties = transactional(producer_properties(config(producer=own), slot=0))
        assert 30_000 <= int(properties["transaction.timeout.ms"]) <= 60_000
        KafkaTransactor(properties, "orders-host-1-0", timeout_s=1.0)  # raises if refused


def test_a_delayed_record_fits_into_the_queue_of_any_file() -> None:
    """With less room than the record needs, its partition would stand still for ever."""
    small = config(producer={"queue.buffering.max.kbytes": 64, "log_level": 0})
    producer = Producer(delay_producer_properties(small))
    producer.produce("orders.requeue", bytes(1 << 20))  # raises if refused
    producer.purge()
    properties = delay_producer_properties(config())
    assert int(properties["queue.buffering.max.kbytes"]) * 1024 > 1_000_000_000
    assert properties["batch.size"] == 65_536


@given(st.text("orders.qu-", max_size=20))
def test_a_pattern_reads_no_requeue_topic_but_its_own(prefix: str) -> None:
    """The library ignores what its list names, even a topic subscribed to by name."""
    ignored = str(consumer_properties(config(topic="^.*"), slot=0)["topic.blacklist"]).split(",")
    name = f"{prefix}.requeue"
    assert any(re.match(pattern, name) for pattern in ignored) == (name != "orders.requeue")


def test_a_spark_job_is_a_classic_member_of_a_group_of_its_own() -> None:
    """Whatever the workers speak; its thread may be busy for minutes, its client never is."""
    new = {"group.protocol": "consumer", "group.remote.assignor": "range"}
    for each in (config(), config(membership="dynamic", consumer=new)):
        properties = leader_properties(each)
        assert properties["group.id"] == "orders.spark"
        assert properties["group.protocol"] == "classic"
        assert properties["partition.assignment.strategy"] == "range"
        assert properties["session.timeout.ms"] == 10_000
        assert properties["max.poll.interval.ms"] == 600_000
        assert properties["enable.auto.commit"] is False
        assert "group.instance.id" not in properties
        assert list(refusals("consumer", properties)) == []


def test_a_spark_job_takes_the_users_session() -> None:
    """Brokers may have limits of their own for it."""
    properties = leader_properties(config(consumer={"session.timeout.ms": 900_000}))
    assert properties["session.timeout.ms"] == 900_000
    assert list(refusals("consumer", properties)) == []


def test_two_spark_jobs_are_told_apart_by_their_clients() -> None:
    """On one host, too."""
    first, second = (str(leader_properties(config())["client.id"]) for _ in range(2))
    assert first.startswith(f"orders-host-1-spark.{host.fingerprint()}.")
    assert first != second
