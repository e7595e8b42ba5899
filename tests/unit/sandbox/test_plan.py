"""What a sandbox remembers, and what an option changes."""

import pytest

from kworker.errors import UsageError
from kworker.sandbox.plan import Options, Plan, options


def test_an_option_not_given_keeps_its_value() -> None:
    """`up` after `down` needs no option to find the same ports."""
    before = Plan(kafka_port=19092, redis=False, properties={"num.partitions": "1"})
    assert before.changed(Options()) == before


def test_the_heap_follows_the_brokers_unless_given() -> None:
    """Three brokers share the memory of a small machine."""
    assert Plan().heap == "512m"
    assert Plan().changed(Options(brokers=3)).heap == "320m"
    assert Plan(heap="1g").changed(Options(redis_port=7000)).heap == "1g"
    assert Plan().changed(Options(brokers=3, heap="1g")).heap == "1g"


def test_every_broker_is_told_to_clients() -> None:
    """A client that knows one broker only cannot start while that one is down."""
    told = Plan(kafka_port=7001, brokers=3).bootstrap
    assert told == "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"


def test_changes_of_one_server_do_not_concern_the_other() -> None:
    """Redis may be added while the brokers run."""
    with_redis = Plan(redis=True)
    assert with_redis.differences(Plan(redis=False), "kafka") == []
    assert with_redis.differences(Plan(redis=False), "redis") == ["redis"]


@pytest.mark.parametrize(
    ("name", "value"), [("brokers", 6), ("kafka_port", 0), ("heap", "much"), ("redis_port", 70000)]
)
def test_a_wrong_option_is_named_as_it_is_typed(name: str, value: object) -> None:
    """The reader typed `--kafka-port`, not `kafka_port`."""
    typed = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"^{typed} {value}: "):
        options(**{name: value})
