"""What of a record is kept while its result waits for Kafka."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.producer import MemoryProducer
from kworker.core.message import with_headers
from kworker.core.record import PACKED, Record, pack
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.publisher import Publisher
from tests.support.records import a_partition, a_record, plain_result_of

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30)


def ended(partition_number: int, value: bytes | None, topic: str = "results") -> Record:
    """With a result as a handler's dictionary is one: it has its record's key, and its source."""
    partition = a_partition("orders", partition_number)
    record = a_record(partition, 7, key=b"k%d" % partition_number, value=value)
    record.outcome = plain_result_of(record, topic, b"{}")
    return record


def told(record: Record) -> tuple[object, ...]:
    return (record.raw.key(), record.raw.value(), record.raw.timestamp()[1], str(record.source))


@given(VALUES, st.randoms())
def test_a_packed_record_unpacks_unchanged(values: list[bytes | None], random) -> None:  # type: ignore[no-untyped-def]
    """In whatever order; a null is not an empty value."""
    records = [ended(nth, value) for nth, value in enumerate(values)]
    before = [told(record) for record in records]
    pack(records)
    assert [str(record.source) for record in records] == [source for *_, source in before]
    for record in random.sample(records, len(records)):
        assert record.raw is PACKED
        record.unpack()
    assert [told(record) for record in records] == before


def test_a_record_with_headers_keeps_them() -> None:
    """Its dead letter has them, should its result be refused."""
    record = ended(0, b"v")
    record.raw = with_headers(record.raw, (("h", b"1"),))
    other = ended(1, b"w")
    Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000)).add([record, other])
    assert (record.raw.headers(), other.raw) == ([("h", b"1")], PACKED)


def refusing(kind: str) -> MemoryKafka:
    """A cluster that takes what is for `results`, and nothing of this kind of topic."""
    kafka = MemoryKafka(lambda: 0.0)
    kafka.create("results")
    if kind == "small":
        kafka.create(kind)
        topic = kafka.topic(kind)
        assert topic
        topic.max_message_bytes = 1
    return kafka


@pytest.mark.parametrize("kind", ["missing", "small"])
def test_a_withdrawn_record_does_not_pin_the_others(kind: str) -> None:
    """One refused result among thousands, again and again, would keep all their values."""
    found = 0
    for turns in range(1, 8):
        kafka = refusing(kind)
        backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
        publisher = Publisher(lambda kafka=kafka: MemoryProducer(kafka, {}), backlog)  # type: ignore[misc]
        for turn in range(turns):
            topics = [kind, "results", kind, kind]
            backlog.add([ended(nth, b"%d" % nth, topic) for nth, topic in enumerate(topics)])
            publisher.flush(100.0 + turn / 10)
            publisher.turn(100.0 + turn / 10)
        aside = backlog.withdraw(lambda _: True)
        assert all(record.raw is not PACKED for record in aside)
        found += len(aside)
    assert found > 7
