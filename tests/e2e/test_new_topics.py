"""Topics that appear while a service runs whose `source.topics` is a pattern."""

import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.support import kafka
from tests.support.ledgers import invocations
from tests.support.service import service
from tests.support.waiting import eventually

HANDLERS = """
from tests.support.recorded import recorded

@recorded
def handle(message):
    return b"handled"

@recorded
def settle(message):
    if message.attempt == 1:
        raise ConnectionError("not yet")
    return b"settled"
"""


def test_a_new_topic_is_read_from_its_beginning_by_its_handler(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """`start` is for what is there at the first start; a retry finds its way, too."""
    prefix = f"new-{uuid.uuid4().hex[:8]}"
    early = topic(f"{prefix}-early", partitions=1)
    write(bootstrap, early, 1)
    settings = {
        "source": {"topics": [f"^{prefix}-"], "start": "latest"},
        # Within a minute is what is promised: librdkafka looks every 30 s, here every second.
        "kafka.consumer": {"topic.metadata.refresh.interval.ms": 1000},
        "handlers": {f"{prefix}-late": "handlers:settle"},
        "retry": {"delays": ["200ms"]},
        "workers": {"processes": 2},
    }
    with service(
        tmp_path / "service", bootstrap, [early], handlers=HANDLERS, settings=settings
    ) as live:
        live.serve()
        late = f"{prefix}-late"
        kafka.create_topic(bootstrap, late, 2)
        write(bootstrap, late, 3)
        write(bootstrap, early, 1)
        eventually(lambda: live.counter("done") == 4, timeout_s=60, what="all are done")
        found = kafka.read_all(bootstrap, live.results)
        assert sorted(read.value or b"" for read in found) == [b"handled", *[b"settled"] * 3]
        assert {run.at[0] for run in invocations(live.ledger)} == {early, late}
        assert "do not tell the ids" not in live.said()
        assert live.stop() == 0


def write(bootstrap: str, name: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(name, b"%d" % number, b"%d" % number)
    assert producer.flush(30) == 0
