"""Blocks of results: all that happens to them is what happens to single records."""

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from kworker.clients.errors import Broken, KafkaRequestError, Oversized, QueueFull
from kworker.clients.memory.producer import queue_each
from kworker.core.headers import SOURCE
from kworker.core.message import Fields
from kworker.core.outcome import NO_RESULTS, Output
from kworker.core.plain_results import Addressed, PlainValue
from kworker.core.record import Record
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.output_batch import OutputBatch, Queue
from kworker.worker.publish.result_block import ResultBlock
from tests.support.records import a_part, a_partition, a_record, with_outputs

BYTES = st.binary(max_size=20)
NONE_OR_BYTES = st.none() | BYTES
OWN_HEADERS = st.lists(st.tuples(st.sampled_from(["h", "hé"]), NONE_OR_BYTES), max_size=2)
ENTRIES = NONE_OR_BYTES | st.builds(Addressed, BYTES, NONE_OR_BYTES, OWN_HEADERS)
VALUES = st.lists(NONE_OR_BYTES, min_size=1, max_size=9) | st.lists(ENTRIES, min_size=1, max_size=9)
HEADERS = st.sampled_from([(), (("h", b"1"), ("h", None))])
ERRORS = [KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.NOT_ENOUGH_REPLICAS]


def told(record: Record) -> tuple[object, ...]:
    """What is to be known of a record and of its result."""
    [*outputs] = record.outputs
    return (
        record.partition,
        record.offset,
        record.lane,
        record.taken_ns,
        (record.raw.topic(), record.raw.partition(), record.raw.offset()),
        (record.raw.key(), record.raw.value(), record.raw.timestamp(), record.raw.headers()),
        type(record.outcome),
        [(o.topic, o.key, o.value, o.headers, o.size, o.partition) for o in outputs],
    )


def backlog_of(records: list[Record]) -> Outbox:
    backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
    backlog.add(records)
    return backlog


@given(VALUES, st.data())
def test_a_block_has_all_of_its_records(
    values: list[PlainValue | None], data: st.DataObject
) -> None:
    """Also in parts; and together they take as much room."""
    partition = a_partition("orders", 3)
    part = a_part(partition, 5, values, headers=data.draw(HEADERS))
    block = ResultBlock.of(part)
    at = data.draw(st.integers(0, len(values)))
    blocks = block.split(at) if 0 < at < len(values) else (block,)
    records = [record for each in blocks for record in each.records()]
    single = part.records()
    assert [told(record) for record in records] == [told(record) for record in single]
    assert sum(each.bytes for each in blocks) == block.bytes == backlog_of(single)._bytes
    assert sum(r.output_bytes + r.memory_bytes for r in records) == block.bytes
    assert all(each.records() is each.records() for each in blocks)


class Stage:
    """A backlog and its batch under one script of faults; parts of chunks come in either form."""

    def __init__(self, seed: int, form: str) -> None:
        self.chance = random.Random(seed)
        self.in_blocks = form == "blocks"
        self.backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
        # What topics took is noted for one record of many, and so differs.
        known = itertools.product(("results", "other"), (True, False))
        self.backlog.refusals._took.update(known)
        self.batch = OutputBatch(self.backlog)
        self.partitions = [a_partition("orders", number) for number in range(2)]
        self.ends = [0, 0]
        self.now = 100.0
        self.story: list[Any] = []

    def _next(self, number: int) -> tuple[Any, int]:
        which = self.chance.randrange(2)
        begin = self.ends[which]
        self.ends[which] += number
        return self.partitions[which], begin

    def add_part(self) -> None:
        number = self.chance.randrange(1, 6)
        partition, begin = self._next(number)
        made: Callable[[int], PlainValue | None] = lambda n: b"%d" % n  # noqa: E731
        if self.chance.random() < 0.3:
            made = lambda n: b"%d" % n if n % 3 else None  # noqa: E731
        elif self.chance.random() < 0.3:
            made = lambda n: Addressed(b"%d" % n, b"k", [("h", b"1")][n % 2 :])  # noqa: E731
        part = a_part(partition, begin, [made(n) for n in range(begin, begin + number)])
        if self.in_blocks:
            self.backlog.add_parts([part])
        else:
            self.backlog.add(part.records())

    def add_record(self) -> None:
        """With results for one topic or for two, or with none."""
        partition, begin = self._next(1)
        topics = self.chance.choice([[], ["results"], ["results", "other"], ["other"]])
        source = f"orders/{partition.number}/{begin}/1".encode()
        outputs = [Output(topic, None, b"s", [(SOURCE, source)]) for topic in topics]
        self.backlog.add([with_outputs(a_record(partition, begin), outputs)])

    def turn(self) -> None:
        self.now += 0.5
        sent: list[tuple[Output, Any]] = []
        room = self.chance.choice([0, 3, 7, 1000])
        closed = self.chance.choice(["", "", "", "results", "other"])
        after = self.chance.randrange(4)
        kind = self.chance.choice([KafkaRequestError("closed", retriable=True), Oversized("big")])

        def produce(output: Output, refused: Any) -> None:
            nonlocal after
            if len(sent) >= room:
                raise QueueFull
            if output.topic == closed:
                after -= 1
                if after < 0:
                    raise kind
            sent.append((output, refused))

        queue = Queue(produce, partial(queue_each, produce))
        self.story.append(self.batch.fill(queue, self.now))
        if self.chance.random() < 0.3:
            self.story.append(offsets(self.batch.begun))
        fails = self.chance.choice([0.0, 0.0, 0.2, 1.0])
        error = KafkaError(self.chance.choice(ERRORS))
        for output, refused in sent:
            place = output.topic, dict(output.headers)[SOURCE]
            if self.chance.random() < fails:
                refused(error, Fields((output.topic, 0, -1), 0, None, None, ()))
                self.story.append(("failed", place))
            else:
                self.story.append(("written", place))
        self.end()
        self.story.append((self.backlog.pending, self.backlog._bytes, self.backlog.full))

    def end(self) -> None:
        match self.chance.randrange(8):
            case 0 if not self.batch.torn:
                self.batch.give_up(self.now)
                settled = []
            case 1 if not self.batch.any_failed and not self.batch.torn:
                settled = self.batch.settle()
            case 2:
                going = self.chance.choice(self.partitions)
                self.story.append((self.batch.holds(going), offsets(self.backlog.drop(going))))
                settled = self.batch.finish(self.now)
            case _:
                settled = self.batch.finish(self.now)
        done = [*settled, *(r for block in self.batch.take_blocks() for r in block.records())]
        self.story.append(sorted((r.partition.number, r.offset) for r in done))
        condemned, self.backlog.undeliverable = self.backlog.undeliverable, []
        self.story.append(offsets([each.record for each in condemned]))
        self.backlog.let_go([each.record for each in condemned])
        everywhere = [*self.backlog]
        torn = self.batch.torn
        assert len(set(everywhere)) == len(everywhere) == self.backlog.pending - torn
        assert len(set(self.backlog.waiting)) == len(self.backlog.waiting)


def offsets(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition.number, record.offset) for record in records]


@pytest.mark.parametrize("seed", range(300))
def test_blocks_and_records_meet_the_same_end(seed: int) -> None:
    """Whatever Kafka refuses, and in whatever order: nothing is lost, or written more often."""
    stories = []
    for form in ("blocks", "records"):
        stage = Stage(seed, form)
        for _ in range(40):
            for _ in range(stage.chance.randrange(4)):
                stage.chance.choice([stage.add_part, stage.add_part, stage.add_record])()
            stage.turn()
        stories.append(stage.story)
    assert stories[0] == stories[1]


def test_a_broken_transaction_keeps_what_it_has_taken() -> None:
    backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
    batch, partition = OutputBatch(backlog), a_partition()
    backlog.add_parts([a_part(partition, 0, [b"0", b"1", b"2"])])
    taken: list[Output] = []

    def produce(output: Output, _: object) -> None:
        if len(taken) == 2:
            raise Broken("over")
        taken.append(output)

    with pytest.raises(Broken, match="over"):
        batch.fill(Queue(produce, partial(queue_each, produce)), 100.0)
    assert len(batch) == 2
    assert batch.offsets() == {partition: [0, 1]}
    assert offsets(batch.take()) == [(0, 0), (0, 1)]
    assert offsets([*backlog]) == [(0, 2)]


def test_an_unforeseen_error_leaves_the_block_where_it_is() -> None:
    backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
    backlog.add_parts([a_part(a_partition(), 0, [b"0", b"1"])])

    def produce(_: Output, __: object) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError):
        OutputBatch(backlog).fill(Queue(produce, partial(queue_each, produce)), 100.0)
    assert offsets([*backlog]) == [(0, 0), (0, 1)]


def test_late_reports_of_a_batch_given_up_are_of_no_other() -> None:
    """A producer that was replaced may still report; the numbers are used again."""
    backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
    batch, partition = OutputBatch(backlog), a_partition()
    reports: list[Any] = []
    queue = Queue(
        lambda _, refused: reports.append(refused),
        partial(queue_each, lambda _, refused: reports.append(refused)),
    )
    backlog.add_parts([a_part(partition, 0, [b"0", b"1"])])
    batch.fill(queue, 100.0)
    batch.give_up(100.0)
    backlog.drop(partition)
    late = reports[:]
    backlog.add_parts([a_part(partition, 2, [b"2", b"3"])])
    batch.fill(queue, 101.0)
    for report in late:
        report(KafkaError(KafkaError._PURGE_QUEUE), Fields(("results", 0, -1), 0, None, None, ()))
    assert not batch.any_failed
    assert batch.finish(101.0) == []
    assert [list(block.offsets) for block in batch.take_blocks()] == [[2, 3]]


def test_a_part_without_results_waits_behind_others() -> None:
    backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=1000))
    backlog.add_parts([a_part(a_partition(), 0, [None, None])._replace(values=())])
    assert backlog.number_waiting == 2
    assert [record.outcome for record in backlog] == [NO_RESULTS, NO_RESULTS]
