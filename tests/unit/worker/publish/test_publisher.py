"""The publisher over the twin's producer: settled means that every output is in Kafka."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.producer import MemoryProducer
from kworker.core.outcome import Output, Results
from kworker.core.record import Record
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.output_batch import PRODUCE_MOST
from kworker.worker.publish.publisher import Publisher, ReportPolicy
from tests.support.records import a_partition, a_record, with_outputs

PLENTY = OutboxPolicy(bytes_max=1 << 20, records_max=1000)


class Stage:
    """A publisher, its producers, and a clock that the test moves."""

    def __init__(self, policy: OutboxPolicy = PLENTY, queue: int = 1000) -> None:
        self.kafka = MemoryKafka(lambda: 0.0)
        self.kafka.create("results", 2)
        self.producers: list[MemoryProducer] = []
        self.queue = queue
        self.backlog = Outbox(policy)
        self.publisher = Publisher(self.make, self.backlog)
        self.partition = a_partition()
        self.now = 100.0
        self.added: list[Record] = []
        self.settled: list[Record] = []
        self.condemned: list[Record] = []
        self.kafka.create("strict")
        strict = self.kafka.topic("strict")
        assert strict
        strict.compacted = True

    def make(self) -> MemoryProducer:
        properties = {"queue.buffering.max.messages": self.queue}
        self.producers.append(MemoryProducer(self.kafka, properties))
        return self.producers[-1]

    @property
    def troubles(self) -> list[str]:
        return [*self.backlog.problems, *filter(None, [self.publisher.problem])]

    def add(self, outputs: int = 1, topic: str = "results", key: bytes | None = None) -> Record:
        """A record with so many outputs, each with a value of its own."""
        offset = len(self.added)
        values = [b"%d/%d" % (offset, i) for i in range(outputs)]
        record = a_record(self.partition, offset)
        with_outputs(record, [Output(topic, key, value, []) for value in values])
        self.added.append(record)
        self.backlog.add([record])
        return record

    def turn(self, close: bool = True) -> list[Record]:
        self.now += 0.01
        if close:
            self.publisher.flush(self.now)
        settled = self.publisher.turn(self.now)
        self.settled += settled
        condemned, self.backlog.undeliverable = self.backlog.undeliverable, []
        for each in condemned:
            self.condemned.append(each.record)
            self.backlog.let_go([each.record])
        return settled

    def turn_until_idle(self) -> None:
        for _ in range(200):
            if not self.backlog.pending:
                return
            self.now += 0.5
            self.turn()
        raise AssertionError("never idle")

    def turn_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(100):
            if holds():
                return
            self.turn()
        raise AssertionError("never")

    def written(self, *topics: str) -> Counter[bytes | None]:
        every = [self.kafka.records(topic) for topic in topics or ["results"]]
        return Counter(raw.value() for records in every for raw in records)

    def mute(self, topic: str, *partitions: int) -> None:
        """Lets these partitions answer no producer, and the others of the topic answer."""
        muted = self.kafka.topic(topic)
        assert muted
        muted.silent = set(partitions)

    def wait_in_vain(self) -> None:
        """Until the brokers have answered others for too long; the next turn hears of it."""
        self.turn()
        self.turn()
        self.now += 16
        self.publisher.brokers_answered(self.now, since=0.0)
        self.turn(close=False)


def of(record: Record) -> Sequence[Output]:
    assert isinstance(record.outcome, Results)
    return record.outcome


def values_of(record: Record) -> list[bytes | None]:
    return [output.value for output in of(record)]


def test_a_record_is_settled_only_when_kafka_has_acknowledged_it() -> None:
    """A crash before that would lose its outputs."""
    stage = Stage()
    record = stage.add(outputs=3)
    stage.kafka.up = False
    assert [stage.turn() for _ in range(3)] == [[], [], []]
    assert stage.backlog.pending
    stage.kafka.up = True
    assert stage.turn() == [record]
    assert not stage.backlog.pending
    assert stage.publisher.published == 3


def test_an_open_batch_settles_nothing() -> None:
    """Its acknowledgements are not waited for one by one."""
    stage = Stage()
    stage.add()
    assert [stage.turn(close=False) for _ in range(3)] == [[], [], []]
    assert not stage.publisher.closing
    stage.turn()
    assert len(stage.settled) == 1


def test_a_large_batch_is_settled_before_its_interval_ends() -> None:
    """So that what it keeps is freed while the CPU's caches still have it."""
    stage = Stage(queue=5_000)
    most = ReportPolicy().close_at
    records = [stage.add() for _ in range(most - 1)]
    assert stage.turn(close=False) == []
    records.append(stage.add())
    assert stage.turn(close=False) == records


def test_late_acknowledgements_make_the_next_batch_larger() -> None:
    """Else there were so few records in each time that an acknowledgement takes."""
    stage = Stage(queue=20_000)
    stage.add()
    stage.kafka.up = False
    stage.turn()
    stage.turn()
    assert stage.publisher.closing
    records = [stage.add() for _ in range(2 * PRODUCE_MOST)]
    stage.kafka.up = True
    assert len(stage.turn(close=False)) == 1
    assert stage.turn(close=False) == []  # half of them: this is what one turn takes
    assert stage.turn(close=False) == records


def test_a_flush_settles_what_waits_behind_a_closed_batch() -> None:
    """Else it waited for another commit interval."""
    stage = Stage()
    stage.kafka.up = False
    first = stage.add()
    stage.turn()
    stage.turn()
    assert stage.publisher.closing
    second = stage.add()
    stage.publisher.flush(stage.now)
    stage.kafka.up = True
    assert stage.turn(close=False) == [first]
    assert stage.publisher.flushing
    third = stage.add()
    assert stage.turn(close=False) == [second, third]
    assert not stage.publisher.flushing
    stage.add()
    assert stage.turn(close=False) == []


def test_a_closing_batch_takes_nothing_more() -> None:
    """Else a steady stream would keep it from ever being acknowledged."""
    stage = Stage()
    stage.add()
    stage.turn(close=False)
    stage.kafka.up = False
    stage.turn()
    stage.add()
    stage.turn()
    assert stage.publisher.closing
    assert stage.producers[0].unfinished == 1


def test_a_refused_output_is_retried_later() -> None:
    """A dead letter or a result without its ack is a loss."""
    stage = Stage()
    stage.add(topic="later")
    stage.turn(close=False)
    stage.turn()
    assert stage.settled == []
    assert stage.troubles
    stage.kafka.create("later")
    stage.turn()
    assert stage.kafka.records("later") == []
    stage.turn_until_idle()
    assert [raw.value() for raw in stage.kafka.records("later")] == [b"0/0"]
    assert stage.troubles == []


def test_a_refused_record_does_not_take_its_neighbours_with_it() -> None:
    stage = Stage()
    missing, fine = stage.add(topic="later"), stage.add()
    stage.turn(close=False)
    stage.turn()
    assert stage.settled == [fine]
    stage.kafka.create("later")
    stage.turn_until_idle()
    assert stage.settled == [fine, missing]
    assert stage.written() == Counter([b"1/0"])


def test_a_full_queue_only_delays() -> None:
    stage = Stage(queue=2)
    for _ in range(10):
        stage.add()
    stage.turn_until_idle()
    assert stage.settled == stage.added
    assert stage.written() == Counter(value for r in stage.added for value in values_of(r))


def test_a_record_with_more_outputs_than_the_queue_is_sent_once() -> None:
    """Begun from its first output each time it would never end, and fill the topic."""
    stage = Stage(queue=3)
    record = stage.add(outputs=10)
    stage.turn_until_idle()
    assert stage.settled == [record]
    assert stage.written() == Counter(values_of(record))


def test_a_refused_record_does_not_take_a_begun_records_place() -> None:
    """A count of outputs that are out belongs to one record; it was applied to another."""
    stage = Stage(queue=3)
    refused, begun = stage.add(topic="later"), stage.add(outputs=4)
    stage.turn(close=False)  # the queue is full with two outputs of the second
    stage.turn()
    stage.kafka.create("later")
    stage.turn_until_idle()
    assert {refused, begun} == set(stage.settled)
    assert [raw.value() for raw in stage.kafka.records("later")] == [b"0/0"]
    assert set(stage.written()) == set(values_of(begun))


def test_a_fatal_producer_is_replaced_and_nothing_is_lost() -> None:
    stage = Stage()
    first = stage.add(outputs=2)
    stage.kafka.up = False
    stage.turn(close=False)
    stage.producers[0].fail("sequence out of order")
    second = stage.add()
    stage.kafka.up = True
    stage.turn()
    assert len(stage.producers) == 2
    assert "sequence out of order" in str(stage.troubles)
    stage.turn_until_idle()
    assert stage.settled == [first, second]
    assert stage.written() == Counter([*values_of(first), *values_of(second)])


def test_a_producer_is_kept_through_a_broker_outage() -> None:
    """What an outage delayed is acknowledged when it is over: another would write it twice."""
    stage = Stage()
    stage.kafka.up = False
    record = stage.add()
    stage.turn()
    stage.turn()
    back = stage.now = stage.now + 60
    stage.publisher.brokers_answered(back, since=back)
    stage.publisher.brokers_answered(back + 14, since=back)
    stage.kafka.up = True
    stage.turn_until_idle()
    assert (stage.settled, len(stage.producers)) == ([record], 1)
    assert stage.written() == Counter(values_of(record))


def test_a_silent_producer_is_replaced_though_brokers_answer() -> None:
    """Its library may have lost a leader, for good."""
    stage = Stage()
    stage.kafka.up = False
    record = stage.add()
    stage.turn()
    stage.turn()
    back = stage.now = stage.now + 60
    stage.publisher.brokers_answered(back + 16, since=back)
    stage.now += 16
    stage.turn()
    stage.kafka.up = True
    stage.turn_until_idle()
    assert (stage.settled, len(stage.producers)) == ([record], 2)


def test_a_late_acknowledgement_keeps_the_producer() -> None:
    """It came in the moment in which the producer was given up."""
    stage = Stage()
    stage.kafka.up = False
    record = stage.add()
    stage.turn()
    stage.turn()
    stage.publisher.brokers_answered(stage.now + 16, since=stage.now)
    stage.kafka.up = True
    stage.now += 16
    stage.turn_until_idle()
    second = stage.add()
    stage.turn_until_idle()
    assert (stage.settled, len(stage.producers)) == ([record, second], 1)


def test_other_topics_go_on_while_one_does_not_answer() -> None:
    """Its leader is gone, or it has too few replicas: the client says nothing for minutes."""
    stage = Stage()
    stage.kafka.create("later")
    stage.mute("later", 0)
    bad = stage.add(topic="later")
    good = [stage.add() for _ in range(3)]
    stage.wait_in_vain()
    assert stage.settled == good
    assert any(line.startswith("later: no acknowledgement") for line in stage.troubles)
    stage.now += 1.0  # in which the new producer rests
    more = [stage.add() for _ in range(3)]
    stage.turn_until(lambda: stage.settled == [*good, *more])
    stage.mute("later")
    stage.turn_until_idle()
    assert stage.settled == [*good, *more, bad]
    assert set(stage.written("results", "later").values()) == {1}
    assert stage.troubles == []


def test_a_silent_partition_holds_up_no_others_records() -> None:
    """Keys of its topic's other partitions are acknowledged, and settled with the batch."""
    stage = Stage()
    stage.mute("results", 1)
    for i in range(20):
        stage.add(key=b"%d" % i)
    stage.wait_in_vain()
    there = set(stage.written())
    assert 0 < len(there) < 20
    assert stage.settled == [r for r in stage.added if there.issuperset(values_of(r))]
    stage.mute("results")
    stage.turn_until_idle()
    assert set(stage.settled) == set(stage.added)
    assert stage.written() == Counter(value for r in stage.added for value in values_of(r))


def test_a_topic_that_stays_silent_is_tried_ever_more_rarely() -> None:
    """All others wait while it is tried."""
    stage = Stage()
    stage.mute("results", 0, 1)
    stage.add()
    tried_at = []
    for _ in range(6):
        while not stage.producers[-1].unfinished:
            stage.now += 0.1
            stage.turn()
        tried_at.append(stage.now)
        stage.wait_in_vain()
    pauses = [later - before - 16 for before, later in pairwise(tried_at)]
    assert pauses == pytest.approx([5, 10, 20, 40, 60], abs=0.5)


def test_with_a_report_missing_all_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may lose sight of a record in a purge: what it was is not known."""
    stage = Stage()
    stage.mute("results", 1)
    for i in range(20):
        stage.add(key=b"%d" % i)
    monkeypatch.setattr(stage.producers[0], "purge", lambda: None)
    stage.wait_in_vain()
    assert stage.settled == []
    stage.mute("results")
    stage.turn_until_idle()
    assert stage.settled == stage.added
    assert set(stage.written().values()) == {1, 2}


def test_the_search_of_a_topic_ends_when_it_falls_silent() -> None:
    """The records that it tried would be written at once again, and all would wait again."""
    stage = Stage()
    doubtful = [stage.add(topic="strict", key=key) for key in (b"k", None, b"l", b"m")]
    stage.turn()
    stage.turn()  # refused together, and to be tried in parts
    stage.mute("strict", 0)
    stage.now += 0.1
    stage.wait_in_vain()
    good = stage.add()
    stage.now += 1.0
    stage.turn_until(lambda: stage.settled == [good])
    stage.mute("strict")
    stage.turn_until_idle()
    assert stage.condemned == [doubtful[1]]
    assert set(stage.written("strict", "results").values()) == {1}


def test_an_outbox_is_full_by_bytes_and_has_room_again() -> None:
    """Outputs that Kafka does not accept are held, and no more are taken meanwhile."""
    stage = Stage(OutboxPolicy(bytes_max=5000, records_max=1000))
    stage.kafka.up = False
    count = 0
    while not stage.backlog.full:
        stage.add()
        count += 1
        assert count < 50
    stage.turn(close=False)
    assert stage.backlog.full
    stage.kafka.up = True
    stage.turn_until_idle()
    assert not stage.backlog.full


def test_an_outbox_is_full_by_records() -> None:
    """Small results cost more beside their bytes than in them."""
    stage = Stage(OutboxPolicy(bytes_max=1 << 30, records_max=3))
    for expected in (False, False, True):
        stage.add()
        assert stage.backlog.full is expected
    assert stage.backlog.pending == 3


TOPICS = st.sampled_from(["results", "results", "later"])
ACTS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4), TOPICS),
    st.tuples(st.just("add"), st.integers(1, 4), st.just("strict"), st.sampled_from([b"k", None])),
    st.sampled_from([("turn",), ("turn",), ("close",)]),
    st.sampled_from([("down",), ("up",), ("up",), ("fatal",), ("create",)]),
    st.sampled_from([("mute", 0), ("mute", 1), ("answer", 0), ("wait", 0)]),
)


@settings(max_examples=200)
@given(acts=st.lists(ACTS, min_size=4, max_size=30), queue=st.integers(2, 4))
def test_a_settled_record_is_written_and_each_is_settled_once(
    acts: list[tuple[str, ...]], queue: int
) -> None:
    """Broker away, topics missing or silent, records refused for good, queues full."""
    stage = Stage(queue=queue)
    for act in [*acts, ("up",), ("create",), ("answer",)]:
        perform(stage, *act)
        check(stage)
    stage.turn_until_idle()
    check(stage)
    ended = [*stage.settled, *stage.condemned]
    assert sorted(r.offset for r in ended) == [r.offset for r in stage.added]
    invalid = [r for r in stage.added if any(o.topic == "strict" and o.key is None for o in of(r))]
    assert sorted(r.offset for r in stage.condemned) == [r.offset for r in invalid]


def perform(
    stage: Stage, act: str, outputs: int = 1, topic: str = "", key: bytes | None = None
) -> None:
    stage.now += 0.4
    match act:
        case "add":
            stage.add(outputs, topic, key)
        case "turn" | "close":
            stage.turn(close=act == "close")
        case "down" | "up":
            stage.kafka.up = act == "up"
        case "fatal":
            stage.producers[-1].fail("broken")
        case "create":
            stage.kafka.create("later")
        case "mute":
            stage.mute("results", outputs)
            stage.mute("strict", 0)
        case "answer":
            stage.mute("results")
            stage.mute("strict")
        case "wait":
            stage.wait_in_vain()


def check(stage: Stage) -> None:
    later = stage.kafka.records("later") if stage.kafka.topic("later") else []
    others = [*later, *stage.kafka.records("strict")]
    written = {raw.value() for raw in [*stage.kafka.records("results"), *others]}
    missing = [v for record in stage.settled for v in values_of(record) if v not in written]
    assert missing == [], "settled without its output"
    assert len(set(stage.settled)) == len(stage.settled), "settled twice"


@pytest.mark.parametrize("seconds", [0.0, 0.99])
def test_a_topic_that_refused_is_left_alone_for_a_while(seconds: float) -> None:
    """A missing topic must not be a hot loop."""
    stage = Stage()
    stage.add(topic="later")
    stage.turn(close=False)
    stage.turn()
    stage.add(topic="later")
    stage.now += seconds
    stage.turn(close=False)
    assert stage.producers[0].unfinished == 0


def test_other_topics_go_on_while_one_refuses() -> None:
    """A dead-letter topic that is missing must not hold up the results."""
    stage = Stage()
    poison = stage.add(topic="later")
    stage.turn()
    stage.turn()
    good = [stage.add() for _ in range(3)]
    stage.turn_until(lambda: stage.settled == good)
    assert stage.backlog.pending
    assert "later" in stage.troubles[0]
    stage.kafka.create("later")
    stage.turn_until_idle()
    assert stage.settled == [*good, poison]
    assert stage.troubles == []


def test_outputs_of_one_topic_keep_their_order_over_a_refusal() -> None:
    """Results of one key are read in the order in which its records ended."""
    stage = Stage()
    added = [stage.add(topic="later")]
    stage.turn()
    stage.turn()
    added += [stage.add(topic="later") for _ in range(5)]
    stage.turn()
    stage.kafka.create("later")
    stage.turn_until_idle()
    assert stage.settled == added
    assert [raw.value() for raw in stage.kafka.records("later")] == [
        value for record in added for value in values_of(record)
    ]
