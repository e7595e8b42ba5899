"""What is written for dead letters, which are passed, and in what portions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.clients.errors import KafkaRequestError
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.core.headers import Envelope
from kworker.core.message import Fields
from kworker.core.outcome import Output
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterIdentity
from kworker.dead_letters.repair import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    OtherTopic,
    RateLimit,
    RepairPlan,
    RepairStep,
    Requeue,
    Tally,
    batches,
    skip_resolved,
)
from kworker.dead_letters.resolutions import Resolution, Resolutions, resolution_record
from kworker.dead_letters.resolver import Interruption, Resolver, Signature, resolve_all
from kworker.dead_letters.selection import Selection
from kworker.errors import AlreadyRunning, Unreachable
from tests.support.dead import dead_headers

REQUEUE = Requeue("orders.requeue", 4)
STATE, DEAD = "orders.dead.state", "orders.dead"
NOTE = Resolution("discarded", "ann@host", 5)


def letter(offset: int = 0, value: bytes = b"v", **told) -> DeadLetter:
    told.setdefault("source", f"orders/6/{offset}/1700000000000")
    return DeadLetter.of(Fields((DEAD, 0, offset), 123, b"k", value, tuple(dead_headers(**told))))


def noted(*letters: DeadLetter) -> Resolutions:
    found = Resolutions(DEAD)
    for each in letters:
        state = resolution_record(STATE, DEAD, each.identity, NOTE)
        found.add(state.key, state.value)
    return found


def test_a_requeued_record_is_a_first_attempt_beside_its_source():
    """Partition p of requeue sits with partition p of the source, so it meets its lane."""
    own = [("a", b"1"), ("kworker-source", b"the producer's")]
    output = REQUEUE.output(letter(9, own=own, redriven=3))
    assert (output.topic, output.partition) == ("orders.requeue", 6 % 4)
    envelope = Envelope.open(output.headers)
    assert envelope == Envelope(letter(9).source, 1, 4, 0, envelope.carried)
    assert envelope.restored == own


def test_a_requeued_dead_letter_of_a_replay_says_of_which():
    """It was done live before, and would be taken for a second live result."""
    output = REQUEUE.output(letter(9, replay="0a1b2c"))
    assert Envelope.open(output.headers).replay == b"0a1b2c"


def test_a_record_redriven_elsewhere_is_as_originally_produced():
    """No other reader knows what to make of kworker's headers."""
    own = [("a", b"1"), ("kworker-source", b"the producer's")]
    output = OtherTopic("orders").output(letter(own=own, redriven=3))
    assert (output.headers, output.partition) == (own, -1)


def test_skipped_dead_letters_are_counted_by_reason():
    """Nothing that was meant is passed without a word."""
    foreign = DeadLetter.of(Fields((DEAD, 0, 3), 123, None, b"v", ()))
    letters = [letter(0), letter(1), letter(2, b"x" * 5_000), foreign, letter(4, reason="rejected")]
    work = RepairPlan(
        "redriven", Selection(reason="exhausted"), OtherTopic("orders"), bytes_max=4_000
    )
    tally = Tally()
    assert list(work.choose(letters, noted(letter(0)), tally)) == [letters[1]]
    assert tally == Tally(before=1, oversized=1)
    everything = RepairPlan("redriven", Selection(), REQUEUE)
    chosen = everything.choose(letters, Resolutions(DEAD), tally)
    assert [each.place.offset for each in chosen] == [0, 1, 2, 4]
    assert tally.unreadable == 1
    discard = RepairPlan("discarded", Selection())
    assert list(discard.choose(letters, Resolutions(DEAD), tally)) == letters
    assert discard.step(foreign) == RepairStep(foreign.identity, None)


def test_a_limit_counts_what_is_done_and_reads_no_further():
    """What was resolved before does not use it up."""
    letters = iter([letter(n) for n in range(10)])
    work = RepairPlan("redriven", Selection(), REQUEUE, limit=3)
    chosen = work.choose(letters, noted(letter(0), letter(1)), Tally())
    assert [each.place.offset for each in chosen] == [2, 3, 4]
    assert next(letters).place.offset == 5


@given(st.lists(st.integers(0, BATCH_BYTES_MAX * 2), max_size=30), st.integers(1, 7))
def test_batches_hold_all_in_order_and_are_bounded(sizes, most):
    """A transaction is bounded by what waits for it in memory; one record is always possible."""
    steps = [
        RepairStep(DeadLetterIdentity(0, n, 0), Output("t", None, None, [], size) if size else None)
        for n, size in enumerate(sizes)
    ]
    found = list(batches(steps, most))
    assert [step for batch in found for step in batch] == steps
    for batch in found:
        assert 1 <= len(batch) <= most
        size = sum(step.output.size for step in batch if step.output)
        assert size <= BATCH_BYTES_MAX or len(batch) == 1


@given(st.floats(0.01, 10_000))
def test_a_rate_limits_the_records_of_each_second(rate):
    """What failed for overload comes back as slowly as it is told to."""
    pace = RateLimit(rate)
    assert 1 <= pace.batch_max <= max(1, rate)
    assert pace.rest_s(0) == 0
    assert pace.rest_s(100) * rate == pytest.approx(100)
    assert RateLimit().batch_max == BATCH_RECORDS_MAX
    assert RateLimit().rest_s(1_000_000) == 0


# Resolutions.


def test_a_resolution_is_read_as_it_was_written():
    """With who, how and when, for the next person."""
    found = noted(letter(3))
    assert letter(3).identity in found
    assert found.of(letter(3).identity) == NOTE
    assert letter(4).identity not in found


def test_a_resolution_is_of_that_dead_letter_only():
    """Not of one with its position in a topic that was made again, or in another's."""
    found = noted(letter(3))
    assert DeadLetterIdentity(0, 3, 124) not in found
    assert DeadLetterIdentity(1, 3, 123) not in found
    other = Resolutions("orders.dead2")
    state = resolution_record(STATE, DEAD, letter(3).identity, NOTE)
    other.add(state.key, state.value)
    assert letter(3).identity not in other


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"how": "forgotten", "by": "x", "at": 1, "timestamp": 123}',
        b'{"how": ["redriven"], "by": "x", "at": 1, "timestamp": 123}',
        b'{"how": "redriven", "by": "x", "at": "now", "timestamp": 123}',
        b'{"how": "redriven", "by": "x", "at": 1, "timestamp": "123"}',
        None,
    ],
)
def test_an_unreadable_resolution_resolves_nothing(value):
    """To redrive again is better than to lose one."""
    found = noted(letter(3))
    found.add(b"orders.dead/0/3", value)
    found.add(None, b"x")
    found.add(b"\xff", b"x")
    assert letter(3).identity not in found


# Doing it, on the twin.


SIGNED = Signature(STATE, DEAD, "redriven", "ann@host", "orders.redrive")


class Desk:
    """A broker with dead letters' topics, and commands that come one after another."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka()
        for topic in (REQUEUE.topic, STATE):
            self.kafka.create(topic, 4)

    def resolver(self) -> Resolver:
        transactor = MemoryTransactor(self.kafka, {}, "orders.redrive", 1.0)
        made = Resolver(transactor, SIGNED)
        made.open()
        return made

    def resolutions(self) -> Resolutions:
        found = Resolutions(DEAD)
        for record in self.kafka.records(STATE):
            found.add(record.key(), record.value())
        return found

    def requeued(self) -> list[int]:
        records = self.kafka.records(REQUEUE.topic)
        return sorted(Envelope.open(record.headers()).source.offset for record in records)


def steps(*offsets: int) -> list[RepairStep]:
    return [RepairStep(letter(n).identity, REQUEUE.output(letter(n))) for n in offsets]


def test_a_record_and_its_resolution_are_written_once_together():
    """Whoever does it again finds it done."""
    desk = Desk()
    told: list[int] = []
    assert (
        resolve_all(steps(0, 1, 2), desk.resolver(), RateLimit(), Interruption(), told.append) == 3
    )
    assert told == [3]
    again = desk.resolver()
    tally = Tally()
    assert (
        resolve_all(
            skip_resolved(steps(0, 1, 2, 3), desk.resolutions(), tally),
            again,
            RateLimit(),
            Interruption(),
            print,
        )
        == 1
    )
    assert tally.before == 3
    assert desk.requeued() == [0, 1, 2, 3]


def test_a_second_resolver_fences_the_first():
    """What the second has read of the state holds from then on."""
    desk = Desk()
    first = desk.resolver()
    first.resolve(steps(0))
    desk.resolver().resolve(steps(1))
    with pytest.raises(AlreadyRunning, match="another command has taken over the dead letters"):
        first.resolve(steps(2))
    assert desk.requeued() == [0, 1]


def test_a_lost_broker_ends_a_repair_with_how_to_go_on():
    """The exit code is that of what cannot be reached."""
    desk = Desk()
    resolver = desk.resolver()
    desk.kafka.up = False
    with pytest.raises(
        Unreachable, match="run the same command again to go on; nothing is done twice"
    ):
        resolver.resolve(steps(0))


def test_a_repair_stops_between_transactions():
    """What it has said it did, it did."""
    desk = Desk()
    stop = Interruption()

    def tell(done: int) -> None:
        stop.requested = done >= 4

    assert resolve_all(steps(*range(10)), desk.resolver(), RateLimit(4.0), stop, tell) == 4
    assert desk.requeued() == [0, 1, 2, 3]
    assert list(stop.until([1, 2])) == []


def test_a_permanent_refusal_is_reported_as_a_takeover():
    """The client's word for a fenced producer."""

    class Fenced:
        def open(self) -> None:
            raise KafkaRequestError("fenced", retriable=False)

    with pytest.raises(
        AlreadyRunning, match=r"or another program the transactional id orders\.redrive;"
    ):
        Resolver(Fenced(), SIGNED).open()
