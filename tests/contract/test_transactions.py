"""The contract of transactions: `KafkaTransactor` on a real broker and `MemoryTransactor` alike."""

import uuid
from typing import Any

import pytest

from kworker.clients.delivery import Queued
from kworker.clients.errors import Broken, KafkaRequestError
from kworker.core.offset_map import METADATA_MAX, Committed
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults
from tests.support.kafka_and_twin import Cluster
from tests.support.member import Member, for_a_while, new_group, until
from tests.support.waiting import eventually


def opened(kafka: Cluster, transactional_id: str = "") -> Any:
    transactor = kafka.transactor(transactional_id or new_id())
    transactor.open()
    return transactor


def new_id() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}"


def begun(kafka: Cluster, topic: str, *values: bytes, transactional_id: str = "") -> Any:
    """A transaction with records in it."""
    transactor = opened(kafka, transactional_id)
    transactor.begin()
    for value in values:
        transactor.produce(Output(topic, None, value, []))
    return transactor


def values_after(kafka: Cluster, topic: str, mark: bytes) -> list[bytes | None]:
    """What a reader gets from a topic of one partition up to a record written now."""
    kafka.write(topic, value=mark, key=mark)
    reader = Member(kafka, [topic])
    until(lambda: mark in reader.values(), reader)
    return reader.values()


def test_a_commit_makes_records_and_positions_visible(kafka: Cluster) -> None:
    source, target, group = kafka.create(), kafka.create(), new_group()
    for value in (b"one", b"two"):
        kafka.write(source, value=value)
    member = Member(kafka, [source], group=group)
    until(lambda: len(member.records) == 2, member)
    transactor = begun(kafka, target, b"result")
    transactor.send_positions({(source, 0): Committed(2)}, member.consumer.group_metadata())
    transactor.commit()
    assert values_after(kafka, target, b"end") == [b"result", b"end"]
    assert member.consumer.positions([(source, 0)], 10.0) == {(source, 0): Committed(2)}


def test_commit_metadata_is_taken_up_to_its_limit(kafka: Cluster) -> None:
    """One that is too long would make every later transaction fail, too."""
    source, group = kafka.create(), new_group()
    member = Member(kafka, [source], group=group)
    until(lambda: member.owned, member)
    longest = {(source, 0): Committed(2, "x" * METADATA_MAX)}
    transactor = begun(kafka, kafka.create(), b"fits")
    transactor.send_positions(longest, member.consumer.group_metadata())
    transactor.commit()
    assert member.consumer.positions(member.owned, 10.0) == longest
    transactor = begun(kafka, kafka.create(), b"does not")
    longer = {(source, 0): Committed(3, "x" * (METADATA_MAX + 1))}
    with pytest.raises(KafkaRequestError, match="OFFSET_METADATA_TOO_LARGE"):
        transactor.send_positions(longer, member.consumer.group_metadata())
    transactor.abort()
    assert member.consumer.positions(member.owned, 10.0) == longest
    transactor.close()


def test_a_flush_sends_at_once_what_linger_holds_back(kafka: Cluster) -> None:
    """Nothing follows at the end of a transaction, so its last records have nothing to wait for."""
    target, refused = kafka.create(), []
    transactor = kafka.transactor(new_id(), linger_ms=60_000, transaction_timeout_ms=90_000)
    transactor.open()
    transactor.begin()
    transactor.queue(Output(target, None, b"v", []), lambda error, _: refused.append(error))
    eventually(lambda: transactor.flush(0.002) or not transactor.unfinished, every_s=0.002)
    transactor.commit()
    assert values_after(kafka, target, b"end") == [b"v", b"end"]
    assert refused == []


def test_columns_of_results_are_part_of_the_transaction(kafka: Cluster) -> None:
    target, transactor = kafka.create(), opened(kafka)
    values = [b"0", None, b"2"]
    results = PlainResults(target, [None] * 3, values, [b"foo/0/0/1"] * 3, 200)
    for number in range(2):
        transactor.begin()
        assert transactor.queue_plain(results, [lambda *_: None] * 3) == Queued(3, None), number
        eventually(lambda: transactor.flush(0.002) or not transactor.unfinished, every_s=0.002)
        (transactor.abort, transactor.commit)[number]()
    assert values_after(kafka, target, b"end") == [b"0", b"2", b"end"]


def test_a_fenced_transaction_takes_no_columns(kafka: Cluster) -> None:
    target, transactional_id = kafka.create(), new_id()
    fenced = begun(kafka, target, transactional_id=transactional_id)
    opened(kafka, transactional_id)
    results = PlainResults(target, [None], [b"v"], [b"foo/0/0/1"], 200)
    stopped: list[Any] = []

    def broken() -> bool:
        fenced.poll()
        stopped.append(fenced.queue_plain(results, [lambda *_: None]).stopped)
        return isinstance(stopped[-1], Broken)

    eventually(broken)


def test_an_abort_hides_records_and_positions(kafka: Cluster) -> None:
    source, target, group = kafka.create(), kafka.create(), new_group()
    kafka.write(source, value=b"one")
    member = Member(kafka, [source], group=group)
    until(lambda: member.records, member)
    transactor = begun(kafka, target, b"result")
    transactor.send_positions({(source, 0): Committed(1)}, member.consumer.group_metadata())
    transactor.abort()
    assert values_after(kafka, target, b"end") == [b"end"]
    assert member.consumer.positions([(source, 0)], 10.0) == {(source, 0): None}


def test_an_open_transaction_is_invisible_to_readers(kafka: Cluster) -> None:
    topic = kafka.create()
    kafka.write(topic, value=b"before")
    transactor = begun(kafka, topic, b"within")
    reader = Member(kafka, [topic])
    until(lambda: reader.records, reader)
    for_a_while(reader)
    assert reader.values() == [b"before"]
    transactor.commit()
    until(lambda: len(reader.records) == 2, reader)
    assert reader.values() == [b"before", b"within"]


def test_a_transaction_can_follow_a_commit_or_an_abort(kafka: Cluster) -> None:
    """Also after one that was aborted: with another producer, if that is in doubt.

    A broker may refuse to abort what has only just begun.
    """
    topic, name = kafka.create(), new_id()
    transactor = opened(kafka, name)
    for value in (b"one", b"aborted", b"two", b"three"):
        transactor.begin()
        transactor.produce(Output(topic, None, value, []))
        try:
            transactor.abort() if value == b"aborted" else transactor.commit()
        except KafkaRequestError:
            assert value == b"aborted"
            transactor.close()
            transactor = opened(kafka, name)
    assert values_after(kafka, topic, b"end") == [b"one", b"two", b"three", b"end"]


def test_a_transaction_takes_the_partition_that_is_asked_for(kafka: Cluster) -> None:
    """A record that comes again meets its lane only in its source's partition."""
    topic, transactor = kafka.create(5), opened(kafka)
    transactor.begin()
    for partition in (3, 0, 4):
        transactor.produce(Output(topic, b"same", b"%d" % partition, [], partition=partition))
    transactor.commit()
    reader = Member(kafka, [topic])
    until(lambda: len(reader.records) == 3, reader)
    assert {raw.value(): raw.partition() for raw in reader.records} == {b"3": 3, b"0": 0, b"4": 4}


def test_a_successor_aborts_what_was_left_open(kafka: Cluster) -> None:
    """Else every reader would wait for `transaction.timeout.ms` after each kill."""
    topic, name = kafka.create(), new_id()
    left = begun(kafka, topic, b"left", transactional_id=name)
    successor = begun(kafka, topic, b"right", transactional_id=name)
    successor.commit()
    assert values_after(kafka, topic, b"end") == [b"right", b"end"]
    left.close()


def test_a_fenced_predecessor_cannot_commit(kafka: Cluster) -> None:
    """It may have been stopped, and knows nothing of its successor."""
    topic, name = kafka.create(), new_id()
    predecessor = begun(kafka, topic, b"old", transactional_id=name)
    opened(kafka, name)
    with pytest.raises(KafkaRequestError) as refused:
        predecessor.commit()
    assert not refused.value.retriable
    assert values_after(kafka, topic, b"end") == [b"end"]
    predecessor.close()


def test_a_member_whose_generation_is_over_cannot_send_positions(kafka: Cluster) -> None:
    """Another may have forwarded the same records already."""
    source, group = kafka.create(2), new_group()
    member = Member(kafka, [source], group=group)
    until(lambda: member.owned, member)
    metadata = member.consumer.group_metadata()
    other = Member(kafka, [source], group=group)
    until(lambda: len(member.owned) == 1 and len(other.owned) == 1, member, other)
    transactor = begun(kafka, kafka.create(), b"late")
    with pytest.raises(KafkaRequestError):
        transactor.send_positions({(source, 0): Committed(1)}, metadata)
    transactor.close()


def test_positions_in_an_open_transaction_cannot_be_read_back(kafka: Cluster) -> None:
    """The new owner of a partition waits for the end of its predecessor's transaction."""
    source, group = kafka.create(), new_group()
    member = Member(kafka, [source], group=group)
    until(lambda: member.owned, member)
    transactor = begun(kafka, kafka.create(), b"result")
    transactor.send_positions({(source, 0): Committed(1)}, member.consumer.group_metadata())
    with pytest.raises(KafkaRequestError):
        member.consumer.positions([(source, 0)], 1.0)
    transactor.abort()
    assert member.consumer.positions([(source, 0)], 10.0) == {(source, 0): None}


def test_a_former_member_has_no_group_metadata(kafka: Cluster) -> None:
    """A transaction that shows none would commit positions, and nothing would fence it."""
    member = Member(kafka, [kafka.create()])
    until(lambda: member.owned, member)
    assert member.consumer.group_metadata()
    member.consumer.unsubscribe()
    until(lambda: not member.consumer.joined, member)
    with pytest.raises(KafkaRequestError):
        member.consumer.group_metadata()


def test_after_a_close_no_record_is_without_its_report(kafka: Cluster) -> None:
    """By that it is known which topics did not answer, also of what was in flight."""
    topic, transactor = kafka.create(), opened(kafka)
    for number in range(10):
        transactor.begin()
        transactor.queue(Output(topic, None, b"v", []), lambda *_: None)
        transactor.close()
        assert transactor.unfinished == 0, number
        transactor = opened(kafka)
