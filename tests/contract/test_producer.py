"""The producer's contract: `KafkaProducer` on a real broker and `MemoryProducer` alike."""

import os
from typing import Any

import pytest

from kworker.clients.delivery import Queued
from kworker.clients.errors import KafkaRequestError, Oversized, QueueFull
from kworker.core.message import HeaderList
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults
from tests.support.kafka_and_twin import Cluster
from tests.support.member import Member, until
from tests.support.waiting import eventually

# Java's murmur2 of the key, its sign bit cleared, modulo seven partitions.
OF_SEVEN = {
    b"": 2,
    b"a": 5,
    b"ab": 0,
    b"abc": 4,
    b"abcd": 5,
    b"customer-17": 6,
    b"\xff\x80\x00\x7f\xfe": 3,
}


class Reports:
    """Hears of what was refused."""

    def __init__(self) -> None:
        self.errors: list[Any] = []

    def __call__(self, error: Any, _message: object) -> None:
        self.errors.append(error)


def finish(producer: Any) -> None:
    """Until every record has its delivery report."""

    def finished() -> bool:
        producer.poll()
        return producer.unfinished == 0

    eventually(finished)


def read(kafka: Cluster, topic: str, count: int) -> list[Any]:
    member = Member(kafka, [topic])
    until(lambda: len(member.records) >= count, member)
    return sorted(member.records, key=lambda raw: (raw.partition(), raw.offset()))


def test_acknowledged_records_read_back_unchanged(kafka: Cluster) -> None:
    topic, producer, refused = kafka.create(), kafka.producer(), Reports()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None), ("a", b"2")]
    producer.produce(Output(topic, b"k", b"v", headers), refused)
    producer.produce(Output(topic, None, None, []), refused)
    finish(producer)
    raws = read(kafka, topic, 2)
    assert [(r.key(), r.value(), r.headers()) for r in raws] == [
        (b"k", b"v", headers),
        (None, None, None),
    ]
    assert refused.errors == []


def plain(topic: str, *values: bytes | None) -> PlainResults:
    keys = [b"k" if n else None for n in range(len(values))]
    return PlainResults(topic, keys, values, [b"foo/0/%d/1" % n for n in range(len(values))], 200)


def test_columns_of_results_read_back_as_single_ones_do(kafka: Cluster) -> None:
    """But for those without a result, and each has the function of its record."""
    topic, producer, refused = kafka.create(), kafka.producer(), Reports()
    results = plain(topic, b"0", None, b"2", b"")
    assert producer.produce_plain(results, [refused] * 4) == Queued(4, None)
    finish(producer)
    raws = read(kafka, topic, 3)
    assert [(r.key(), r.value(), r.headers()) for r in raws] == [
        (None, b"0", [("kworker-source", b"foo/0/0/1")]),
        (b"k", b"2", [("kworker-source", b"foo/0/2/1")]),
        (b"k", b"", [("kworker-source", b"foo/0/3/1")]),
    ]
    assert refused.errors == []


def test_columns_of_results_may_have_further_headers(kafka: Cluster) -> None:
    topic, producer, refused = kafka.create(), kafka.producer(), Reports()
    headers: list[HeaderList] = [[], [("h", b"1"), ("h", None)], [("h", b"1")]]
    sources = [b"foo/0/%d/1" % n for n in range(3)]
    results = PlainResults(topic, [b"k"] * 3, [b"0", b"1", None], sources, 200, headers)
    assert producer.produce_plain(results, [refused] * 3) == Queued(3, None)
    finish(producer)
    raws = read(kafka, topic, 2)
    assert [(r.value(), r.headers()) for r in raws] == [
        (b"0", [("kworker-source", sources[0])]),
        (b"1", [("kworker-source", sources[1]), ("h", b"1"), ("h", None)]),
    ]
    assert refused.errors == []


def test_columns_stop_at_what_is_not_taken(kafka: Cluster) -> None:
    """The number is that of the records before it, those without results as well."""
    topic, refused = kafka.create(), [Reports() for _ in range(6)]
    producer = kafka.producer(queue_buffering_max_messages=2)
    results = plain(topic, None, b"1", b"2", None, b"4", b"5")
    queued = producer.produce_plain(results, refused)
    assert (queued.number, type(queued.stopped)) == (4, QueueFull)
    finish(producer)
    assert producer.produce_plain(results.part(4, 6), refused[4:]) == Queued(2, None)
    producer.purge()
    finish(producer)
    assert {bool(each.errors) for each in refused[:4]} == {False}
    small = kafka.producer(message_max_bytes=2000)
    queued = small.produce_plain(plain(topic, b"0", os.urandom(3000), b"2"), refused[:3])
    assert (queued.number, type(queued.stopped)) == (1, Oversized)
    small.purge()
    finish(small)
    assert [len(each.errors) for each in refused[:3]] == [1, 0, 0]


def test_a_produced_record_is_unfinished_until_flushed(kafka: Cluster) -> None:
    """A record is settled only when nothing of its batch is unfinished."""
    topic, producer = kafka.create(), kafka.producer(linger_ms=200)
    producer.produce(Output(topic, None, b"v", []), Reports())
    assert producer.unfinished == 1
    finish(producer)


def test_a_key_goes_where_java_would_put_it(kafka: Cluster) -> None:
    """Results stand beside other writers' records of the same key."""
    topic, producer = kafka.create(7), kafka.producer()
    for key in OF_SEVEN:
        producer.produce(Output(topic, key, b"v", []), Reports())
    finish(producer)
    found = {raw.key(): raw.partition() for raw in read(kafka, topic, len(OF_SEVEN))}
    assert found == OF_SEVEN


def test_a_record_goes_to_the_partition_that_is_asked_for(kafka: Cluster) -> None:
    """A record that comes again meets its lane only in its source's partition."""
    topic, producer, refused = kafka.create(3), kafka.producer(), Reports()
    for partition in (2, 0, 7):
        output = Output(topic, b"same", b"%d" % partition, [], partition=partition)
        try:
            producer.produce(output, refused)
        except KafkaRequestError as error:
            refused(error, None)
    finish(producer)
    raws = read(kafka, topic, 2)
    assert [(raw.partition(), raw.value()) for raw in raws] == [(0, b"0"), (2, b"2")]
    assert len(refused.errors) == 1


def test_a_refused_record_leaves_its_neighbour_publishable(
    kafka: Cluster,
) -> None:
    topic, producer, refused = kafka.create(max_message_bytes="5000"), kafka.producer(), Reports()
    small = Output(topic, None, b"small", [])
    producer.produce(Output(topic, None, os.urandom(6000), []), refused)
    finish(producer)
    assert [error.name() for error in refused.errors] == ["MSG_SIZE_TOO_LARGE"]
    producer.produce(small, refused)
    finish(producer)
    assert [raw.value() for raw in read(kafka, topic, 1)] == [b"small"]


def test_one_record_too_large_fails_the_batch_it_is_in(kafka: Cluster) -> None:
    """That is why each is measured before it is produced."""
    topic, refused = kafka.create(max_message_bytes="5000"), Reports()
    producer = kafka.producer(linger_ms=200)
    for value in (b"one", os.urandom(6000), b"two"):
        producer.produce(Output(topic, None, value, []), refused)
    finish(producer)
    assert len(refused.errors) == 3


def test_a_record_too_large_for_the_client_is_refused_at_once(kafka: Cluster) -> None:
    topic, producer = kafka.create(), kafka.producer(message_max_bytes=2000)
    with pytest.raises(KafkaRequestError, match="too large"):
        producer.produce(Output(topic, None, os.urandom(3000), []), Reports())
    assert producer.unfinished == 0


def test_a_record_of_the_measured_size_is_taken(kafka: Cluster) -> None:
    """`Output.size` is an upper bound: what fits by it fits in Kafka."""
    topic, refused = kafka.create(max_message_bytes="5000"), Reports()
    producer = kafka.producer()
    headers: list[tuple[str, bytes | None]] = [("é" * 20, b"x" * 300), ("n", None)] * 5
    empty = Output(topic, b"k" * 50, b"", headers)
    fitting = Output(topic, b"k" * 50, os.urandom(5000 - empty.size), headers)
    assert fitting.size == 5000
    producer.produce(fitting, refused)
    finish(producer)
    assert refused.errors == []


def test_a_topic_that_does_not_exist_is_refused(kafka: Cluster) -> None:
    """First in a report, afterwards perhaps at once."""
    producer, refused = kafka.producer(topic_metadata_propagation_max_ms=500), Reports()
    output = Output("contract-no-such-topic", None, b"v", [])
    producer.produce(output, refused)
    finish(producer)
    assert len(refused.errors) == 1
    with pytest.raises(KafkaRequestError, match="nknown topic"):
        producer.produce(output, refused)


def test_a_full_queue_says_so_and_has_room_after_polling(kafka: Cluster) -> None:
    topic, producer = kafka.create(), kafka.producer(queue_buffering_max_messages=5)
    output = Output(topic, None, b"v", [])
    for _ in range(5):
        producer.produce(output, Reports())
    with pytest.raises(QueueFull):
        producer.produce(output, Reports())
    finish(producer)
    producer.produce(output, Reports())
    finish(producer)
    assert len(read(kafka, topic, 6)) == 6


def test_a_purged_record_is_reported_as_refused(kafka: Cluster) -> None:
    """A producer that is given up leaves nothing in doubt."""
    topic, producer, refused = kafka.create(), kafka.producer(linger_ms=5000), Reports()
    producer.produce(Output(topic, None, b"v", []), refused)
    producer.purge()
    finish(producer)
    assert len(refused.errors) == 1
    assert producer.fatal is None


def test_after_a_purge_every_record_has_its_report(kafka: Cluster) -> None:
    """Also those in flight; so what was not refused is in Kafka, and is not written again."""
    topic, producer, refused = kafka.create(), kafka.producer(), Reports()
    for number in range(1, 31):
        producer.produce(Output(topic, None, b"v", []), refused)
        producer.purge()
        producer.poll()
        assert producer.unfinished == 0, number
    written = 30 - len(refused.errors)
    assert len(read(kafka, topic, written)) >= written
