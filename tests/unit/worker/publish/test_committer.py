"""The committer: what is settled and owned, one under way, never back."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, encode
from kworker.core.record import Partition
from kworker.worker.publish.committer import CommitPolicy, Committer
from tests.support.records import ORIGIN, a_partition

POLICY = CommitPolicy(interval_s=0.2, records=100, answer_s=30.0)
AT = ("orders", 0)
NOTHING = Committed(-1)


class Broker:
    """Takes commits and leaves the answering to the test."""

    def __init__(self) -> None:
        self.sent: list[dict[PartitionId, Committed]] = []
        self.refusing = False

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        if self.refusing:
            raise KafkaRequestError("no coordinator", retriable=True)
        self.sent.append(dict(positions))

    commit_now = commit


def told(position: int) -> Committed:
    """As it is committed where nothing beyond it is done."""
    return Committed(position, encode(ORIGIN, position, []))


def committing() -> tuple[Broker, Committer, Partition]:
    broker = Broker()
    committer = Committer(broker, POLICY)
    committer.learn(AT, told(0))
    return broker, committer, a_partition()


def settle(partition: Partition, count: int = 1) -> None:
    """The next records are delivered and done."""
    end = partition.ledger.end or 0
    partition.ledger.deliver_run(list(range(end, end + count)))
    for offset in range(end, end + count):
        partition.ledger.settle([offset])


def test_a_commit_is_due_after_the_interval_or_enough_outcomes() -> None:
    _, committer, _ = committing()
    committer.start_interval(5.0)
    assert not committer.due(5.19, 99)
    assert committer.due(5.2, 0)
    assert committer.due(5.0, 100)


def test_a_partition_without_progress_is_not_committed() -> None:
    broker, committer, partition = committing()
    committer.commit([partition], 1.0)
    assert broker.sent == []


def test_an_empty_partitions_first_position_is_committed() -> None:
    """Lag tools show zero instead of nothing."""
    broker, committer, partition = committing()
    committer.learn(AT, None)
    committer.commit([partition], 1.0)
    assert broker.sent == [{AT: told(0)}]


def test_one_commit_is_in_flight_and_the_next_takes_all_since() -> None:
    broker, committer, partition = committing()
    for _ in range(3):
        settle(partition)
        committer.commit([partition], 1.0)
    assert broker.sent == [{AT: told(1)}]
    committer.answered(None)
    committer.commit([partition], 1.2)
    assert broker.sent == [{AT: told(1)}, {AT: told(3)}]


def test_after_an_error_the_same_is_tried_again_and_said() -> None:
    broker, committer, partition = committing()
    settle(partition)
    committer.commit([partition], 1.0)
    committer.answered("coordinator is loading")
    assert committer.problem == "coordinator is loading"
    committer.commit([partition], 1.2)
    committer.answered(None)
    assert broker.sent == [{AT: told(1)}, {AT: told(1)}]
    assert (committer.problem, committer.commits, committer.known(AT)) == (None, 1, told(1))


def test_an_answer_that_never_comes_does_not_end_commits() -> None:
    """A half-open connection must not stall a partition for ever."""
    broker, committer, partition = committing()
    settle(partition)
    committer.commit([partition], 1.0)
    settle(partition)
    committer.commit([partition], 30.9)
    committer.commit([partition], 31.0)
    assert broker.sent == [{AT: told(1)}, {AT: told(2)}]


def test_a_client_that_refuses_at_once_is_said_and_tried_again() -> None:
    broker, committer, partition = committing()
    settle(partition)
    broker.refusing = True
    committer.commit([partition], 1.0)
    committer.commit_now([partition])
    assert committer.problem == "no coordinator"
    assert not committer.under_way
    broker.refusing = False
    committer.commit([partition], 1.2)
    assert broker.sent == [{AT: told(1)}]


def test_an_unchanged_group_position_is_not_committed() -> None:
    broker, committer, _ = committing()
    committer.learn(AT, told(7))
    partition = a_partition(position=7)
    committer.commit([partition], 1.0)
    assert broker.sent == []


def test_a_committed_position_is_repeated_at_intervals() -> None:
    """A request given up long ago may have come late, and moved a resting partition back."""
    broker, committer, partition = committing()
    settle(partition)
    committer.commit([partition], 1.0)
    committer.answered(None)
    committer.commit([partition], 11.1)
    assert broker.sent == [{AT: told(1)}]
    committer.commit([partition], 11.3)
    assert broker.sent[1:] == [{AT: told(1)}]
    assert not committer.under_way  # nothing that a drain would wait for
    settle(partition)
    committer.answered(None)
    committer.commit([partition], 11.5)
    committer.answered(None)
    committer.commit([partition], 21.4)
    committer.commit([partition], 21.5)
    assert broker.sent[2:] == [{AT: told(2)}, {AT: told(2)}]


def test_a_position_is_repeated_with_others_in_one_commit() -> None:
    """Else a commit interval has two requests, and its own waits for the other's answer."""
    broker, committer, resting = committing()
    busy = a_partition(number=1)
    busy_at = ("orders", 1)
    committer.learn(busy_at, told(0))
    settle(resting)
    committer.commit([resting, busy], 1.0)
    committer.answered(None)
    committer.commit([resting, busy], 11.0)  # the interval has ended, its outputs are on their way
    assert len(broker.sent) == 1
    settle(busy)
    committer.commit([resting, busy], 11.01)
    assert broker.sent[1:] == [{AT: told(1), busy_at: told(1)}]


def test_a_commit_missed_during_another_one_is_said_once() -> None:
    """From its answer on; one that the client refuses then waits for the next interval."""
    broker, committer, partition = committing()
    settle(partition)
    committer.commit([partition], 1.0)
    assert not committer.missed
    settle(partition)
    committer.commit([partition], 1.1)
    assert not committer.missed
    committer.answered("coordinator is loading")
    assert committer.missed
    broker.refusing = True
    committer.commit([partition], 1.2)
    assert not committer.missed


def test_a_failed_repeat_of_a_commit_is_no_problem() -> None:
    """Nothing waits for it: a service that rests need not be red while its brokers restart."""
    broker, committer, partition = committing()
    settle(partition)
    committer.commit([partition], 1.0)
    committer.answered(None)
    broker.refusing = True
    committer.commit([partition], 11.3)
    assert committer.problem is None
    broker.refusing = False
    committer.commit([partition], 11.5)
    committer.answered("coordinator is loading")
    assert (len(broker.sent), committer.problem) == (2, None)
    settle(partition)
    committer.commit([partition], 11.7)
    committer.answered("coordinator is loading")
    assert committer.problem == "coordinator is loading"


def test_only_owned_positions_are_repeated() -> None:
    """The brokers would take any other, too, and another member would find it."""
    broker, committer, partition = committing()
    other = a_partition(number=1)
    committer.learn(("orders", 1), told(0))
    settle(partition)
    settle(other)
    committer.commit([partition, other], 1.0)
    other.open = False
    committer.forget(("orders", 1))
    committer.answered(None)
    committer.commit([partition], 11.3)
    assert broker.sent[1:] == [{AT: told(1)}]


class CommitterAgainstModel(RuleBasedStateMachine):
    """Partitions come and go while commits are under way, answered or refused."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.committer = Committer(self.broker, POLICY)
        self.group: dict[PartitionId, Committed] = {}  # what the broker has
        self.partitions: dict[PartitionId, Partition] = {}
        self.under_way: list[bool] = []  # whether the broker took it
        self.now = 0.0

    @rule(number=st.integers(0, 2))
    def gain(self, number: int) -> None:
        at = ("orders", number)
        if at in self.partitions:
            return
        held = self.group.get(at)
        self.partitions[at] = a_partition(number=number, position=held and held.position)
        self.committer.learn(at, held)

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), count=st.integers(1, 3))
    def settle(self, data: st.DataObject, count: int) -> None:
        settle(self.partitions[data.draw(st.sampled_from(sorted(self.partitions)))], count)

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), committing=st.booleans())
    def give_up(self, data: st.DataObject, committing: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.partitions)))
        partition = self.partitions.pop(at)
        if committing:
            self.committer.commit_now([partition])
            self.receive()
        partition.open = False
        self.committer.forget(at)

    @rule(taken=st.booleans(), later=st.booleans())
    def commit(self, taken: bool, later: bool = False) -> None:
        self.now += POLICY.renew_s + POLICY.interval_s if later and not self.under_way else 0.2
        closed = a_partition("orders", 9)
        settle(closed)
        closed.open = False
        before = len(self.broker.sent)
        self.committer.commit([*self.partitions.values(), closed], self.now)
        sent = self.broker.sent[before:]
        assert not (self.under_way and sent), "two under way"
        self.under_way += [taken for _ in sent]
        self.receive(taken)

    def receive(self, taken: bool = True) -> None:
        for sent in self.broker.sent:
            for at, held in sent.items():
                assert at[1] < 3, "a closed partition"
                assert held >= self.group.get(at, NOTHING), "back"
                if taken:
                    self.group[at] = held
        self.broker.sent.clear()

    @precondition(lambda self: self.under_way)
    @rule()
    def answer(self) -> None:
        self.committer.answered(None if self.under_way.pop() else "not the coordinator")

    @invariant()
    def it_never_believes_more_than_the_group_has(self) -> None:
        """Else a position would never be sent again, and its records done twice."""
        for at in self.partitions:
            told = self.committer.known(at)
            assert told is None or told <= self.group.get(at, NOTHING)

    def teardown(self) -> None:
        """In the end the group has every position."""
        if self.under_way:
            self.answer()
        self.commit(taken=True)
        for at, partition in self.partitions.items():
            if partition.ledger.position is not None:
                assert self.group[at].position == partition.ledger.position


TestCommitterAgainstModel = CommitterAgainstModel.TestCase
TestCommitterAgainstModel.settings = settings(max_examples=60, stateful_step_count=25)
