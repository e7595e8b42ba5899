"""Records with results for several topics, of which some refuse: none is left behind."""

from confluent_kafka import KafkaError

from kworker.clients.errors import KafkaRequestError, QueueFull
from kworker.core.message import Fields
from kworker.core.outcome import Output
from kworker.core.record import Record
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.output_batch import OutputBatch
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

    def add(self, offset: int, *topics: str) -> None:
        """A record with a result for each topic."""
        outputs = [Output(topic, None, b"%d" % offset, []) for topic in topics]
        self.backlog.add([with_outputs(a_record(self._partition, offset), outputs)])

    def turn(self, *, only_torn: bool = False) -> None:
        """Produces what may be produced, and hears its reports."""
        self.now += 0.5
        sent: list[tuple[Record, Output]] = []

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
            sent.append((record, output))

        self.batch.fill(produce, self.now, only_torn=only_torn)
        for record, output in sent:
            if (record.offset, output.topic) in self.invalid:
                record(INVALID, Fields((output.topic, 0, -1), 0, None, None, ()))
            else:
                self.written.append((record.offset, output.topic))
        self.settled += [record.offset for record in self.batch.finish(self.now)]
        condemned = [each.record for each in self.backlog.undeliverable]
        everywhere = [*self.backlog, *condemned]
        assert len(set(everywhere)) == len(everywhere) == self.backlog.pending - self.batch.torn


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
