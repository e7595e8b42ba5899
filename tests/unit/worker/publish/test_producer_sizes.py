"""The sizes of a worker's producer, by the limits of its topics."""

from pathlib import Path

from kworker.clients.property_refusals import refusals
from kworker.config.client_properties import worker_producer_properties
from kworker.config.model import Config
from kworker.worker.publish.producer_sizes import SizedProperties
from kworker.worker.topic_limits import TopicLimits

KIB = 1 << 10


def sized(**limits: int) -> SizedProperties:
    """Of a worker whose file has a queue of 64 KiB."""
    config = Config.model_validate(
        {
            "name": "orders",
            "handler": "h:f",
            "file": Path("kworker.toml"),
            "source": {"topics": ["orders"]},
            "kafka": {
                "common": {"bootstrap.servers": "127.0.0.1:9"},
                "producer": {"queue.buffering.max.kbytes": 64},
            },
        }
    )
    facts = TopicLimits(list(limits))
    facts.update(limits, dict.fromkeys(limits, 1))
    return SizedProperties(worker_producer_properties(config, slot=0), facts)


def test_a_batch_fits_every_topic_and_a_record_the_largest() -> None:
    properties = sized(small=5_000, large=300 * KIB).properties()
    assert properties["batch.size"] == 5_000
    assert properties["message.max.bytes"] == 300 * KIB
    assert int(properties["queue.buffering.max.kbytes"]) > 300


def test_a_topic_without_a_real_limit_does_not_end_the_worker() -> None:
    """Many set it to the most that Kafka takes; the library takes less than half of that."""
    assert list(refusals("producer", sized(results=2_147_483_647).properties())) == []
