"""Records with results for several topics, of which some refuse: none is left behind."""

from functools import partial

from confluent_kafka import KafkaError

from kworker.clients.errors import KafkaRequestError, QueueFull
from kworker.clients.memory.producer import queue_each
from kworker.core.message import Fields
from kworker.core.outcome import Output
from kworker.core.record import Record
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.output_batch import OutputBatch, Queue
from tests.support.records import a_partition, a_record, with_outputs

INVALID = KafkaError(KafkaError.INVALID_RECORD)


class Stage:
    """A backlog and its batch, a producer that the test answers for, and a clock."""

    def __init__(self) -> None:
        self.backlog = Outbox(OutboxPolicy(bytes_max=1 << 20, records_max=100))
        self.batch = OutputBatch(self.backlog)
        self._partition = a_partition()
        self.invalid: set[tuple[int, str]] = set()  # offsets and topics that brokers refuse
        self.closed = ""  # the topic that the client refuses at once
        self.closes_after: int | None = None  # outputs of it that the client still takes
        self.room: int | None = None  # outputs until the client's queue is full
        self.written: list[tuple[int, str]] = []  # offsets and topics
        self.now = 100.0
        self.settled: list[int] = []
        self._sent: list[tuple[Record, Output]] = []

    def add(self, offset: int, *topics: str) -> None:
        """A record with a result for each topic."""
        outputs = [Output(topic, None, b"%d" % offset, []) for topic in topics]
        self.backlog.add([with_outputs(a_record(self._partition, offset), outputs)])

    def drop(self) -> list[Record]:
        """What is let go as the partition goes."""
        return self.backlog.drop(self._partition)

    def begin(self) -> list[Record]:
        """Produces what may be produced; returns the records in the batch."""
        return self._fill(only_torn=False)

    def turn(self, *, only_torn: bool = False) -> None:
        """Produces what may be produced, and hears its reports."""
        self._fill(only_torn=only_torn)
        self.end()
        condemned = [each.record for each in self.backlog.undeliverable]
        everywhere = [*self.backlog, *condemned]
        assert len(set(everywhere)) == len(everywhere) == self.backlog.pending - self.batch.torn

    def _fill(self, *, only_torn: bool) -> list[Record]:
        self.now += 0.5

        def produce(output: Output, record: object) -> None:
            if self.room is not None:
                if not self.room:
                    raise QueueFull
                self.room -= 1
            if output.topic == self.closed and not self.closes_after:
                raise KafkaRequestError(f"{output.topic} is closed", retriable=True)
            if output.topic == self.closed and self.closes_after is not None:
                self.closes_after -= 1
            assert isinstance(record, Record)
            self._sent.append((record, output))

        queue = Queue(produce, partial(queue_each, produce))
        self.batch.fill(queue, self.now, only_torn=only_torn)
        return self.batch.begun

    def end(self) -> None:
        """Hears the reports."""
        sent, self._sent = self._sent, []
        for record, output in sent:
            if (record.offset, output.topic) in self.invalid:
                record(INVALID, Fields((output.topic, 0, -1), 0, None, None, ()))
            else:
                self.written.append((record.offset, output.topic))
        self.settled += [record.offset for record in self.batch.finish(self.now)]


def test_a_record_searched_by_two_topics_is_not_forgotten() -> None:
    """It was in the portion of the one when the other closed: neither remembered it."""
    stage = Stage()
    for offset in range(4):
        stage.add(offset, "a")
    stage.add(4, "a", "b")
    stage.invalid = {(offset, "a") for offset in range(5)}
    stage.turn()
    for offset in (5, 6, 7):
        stage.add(offset, "b")
    stage.invalid = {(0, "a"), *((offset, "b") for offset in (5, 6, 7))}
    stage.turn()
    stage.closed = "b"
    for _ in range(12):
        stage.turn()
    stage.closed, stage.invalid = "", {(0, "a")}
    for _ in range(12):
        stage.turn()
    assert sorted(stage.settled) == [1, 2, 3, 4, 5, 6, 7]
    assert [each.record.offset for each in stage.backlog.undeliverable] == [0]


def test_one_of_a_portion_that_is_under_way_is_written_once() -> None:
    """The client refused the topic amid the portion: what it had taken of that is in the batch."""
    stage = Stage()
    for offset in range(8):
        stage.add(offset, "a")
    stage.invalid = {(offset, "a") for offset in range(8)}
    stage.turn()
    stage.invalid, stage.closed, stage.closes_after = set(), "a", 2
    stage.turn()
    assert stage.settled == [0, 1]
    stage.closed, stage.closes_after = "", None
    for _ in range(12):
        stage.turn()
    assert sorted(stage.written) == [(offset, "a") for offset in range(8)]
    assert (sorted(stage.settled), stage.backlog.pending) == ([*range(8)], 0)


def test_a_successor_does_not_part_another_records_outputs() -> None:
    """It comes before all others, but for one whose first output is in the client's queue."""
    stage = Stage()
    stage.add(0, "b")
    stage.invalid = {(0, "b")}
    stage.turn()
    [condemned] = stage.backlog.undeliverable
    stage.add(1, "a", "a")
    stage.room = 1
    stage.turn()
    stage.backlog.undeliverable.clear()
    stage.backlog.write(with_outputs(condemned.record, [Output("dead", None, b"0", [])]))
    stage.room = 0
    stage.turn()
    stage.room = None
    stage.turn()
    assert sorted(stage.written) == [(0, "dead"), (1, "a"), (1, "a")]
    assert (sorted(stage.settled), stage.backlog.pending) == ([0, 1], 0)


def test_only_the_rest_of_a_torn_record_goes_to_an_outdated_producer() -> None:
    """It may refuse the next record, which is larger than its topic took before."""
    stage = Stage()
    stage.add(0, "a", "a")
    stage.add(1, "a")
    stage.room = 1
    stage.turn()
    assert stage.batch.torn
    stage.room = None
    stage.turn(only_torn=True)
    assert stage.written == [(0, "a"), (0, "a")]
    stage.turn()
    assert stage.settled == [0, 1]


def both_looking() -> Stage:
    """Both topics have refused some of a batch, and the second record has results for both."""
    stage = Stage()
    stage.add(0, "a")
    stage.add(1, "a", "b")
    stage.add(2, "b")
    stage.invalid = {(0, "a"), (1, "b"), (2, "b")}
    stage.begin()
    stage.end()
    return stage


def test_a_record_that_two_topics_look_for_counts_once() -> None:
    """It was let go twice when its partition went, and the backlog counted fewer than it had."""
    stage = both_looking()
    assert sorted(record.offset for record in stage.drop()) == [0, 1, 2]
    assert stage.backlog.pending == 0


def test_what_is_tried_for_one_topic_is_not_let_go_for_another() -> None:
    """It was in the batch: it left the backlog a second time when that ended."""
    stage = both_looking()
    for _ in range(2):
        tried = stage.begin()
        assert tried
        assert not {*tried} & {*stage.backlog}
        stage.end()


def test_a_record_that_two_topics_look_for_is_written_once() -> None:
    """One of them closed: the record waited for that one, and was tried for the other as well."""
    stage = Stage()
    stage.add(0, "a")
    stage.add(1, "a", "b")
    stage.add(2, "a", "b")
    stage.invalid = {(0, "a"), (1, "a"), (2, "a"), (1, "b"), (2, "b")}
    stage.turn()
    stage.invalid, stage.closed = set(), "a"
    for _ in range(3):
        stage.turn()
    stage.closed = ""
    for _ in range(12):
        stage.turn()
    assert sorted(stage.settled) == [0, 1, 2]
    assert stage.backlog.pending == 0
