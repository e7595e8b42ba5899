"""The producers of commands, by the size limits of the topics that they write."""

from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from kworker.cli.dead import access
from kworker.cli.records import send
from kworker.config.model import Config
from kworker.config.topics import BYTES_MAX, TopicInfo
from kworker.dead_letters.reader import DeadLetters
from kworker.dead_letters.repair import Requeue

MIB = 1 << 20
LIMITS = [2 * MIB, 2_147_483_647]

# With a queue of 64 KiB.
CONFIG = Config.model_validate(
    {
        "name": "orders",
        "handler": "h:f",
        "file": Path("kworker.toml"),
        "source": {"topics": ["orders"]},
        "kafka": {
            "common": {"bootstrap.servers": "127.0.0.1:9", "log_level": 0},
            "producer": {"queue.buffering.max.kbytes": 64},
        },
    }
)


def topic(limit: int) -> TopicInfo:
    return TopicInfo(1, 1, {BYTES_MAX: str(limit)})


def takes(producer: Producer) -> None:
    """Raises what the library says to a record of a mebibyte."""
    producer.produce("orders.requeue", bytes(MIB))
    producer.purge()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_redrive_takes_every_record_that_its_topic_takes(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """It waited in vain for room in a queue that no such record fits into."""
    given: list[dict[str, Any]] = []

    def transactor(properties: dict[str, Any], *_: object, **__: object) -> None:
        given.append(properties)

    monkeypatch.setattr(access, "KafkaTransactor", transactor)
    topics = {CONFIG.requeue_topic: topic(limit), CONFIG.dead_state_topic: topic(1_000_000)}
    found = access.Access(CONFIG, topics, cast(DeadLetters, None))
    access.resolver(found, "redriven", Requeue(CONFIG.requeue_topic, 1))
    takes(Producer(given[0]))


@pytest.mark.parametrize("limit", LIMITS)
def test_send_takes_every_record_that_its_topic_takes(limit: int) -> None:
    """It waited for ever."""
    takes(send._sender(CONFIG, topic(limit))._producer)
