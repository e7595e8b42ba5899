"""Commit safety under random schedules: O1 and O3 to O6 of tests/support/oracles.py.

Records, members, deaths, rebalances, failures, an unreachable broker and drains come in every
order; each commit is judged in the moment in which the broker takes it.
"""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.group import MemoryMember
from kworker.core import offset_map
from kworker.core.headers import Envelope
from kworker.core.message import Fields, PartitionId
from kworker.core.offset_map import Committed, Ignored, decode, origin_of
from kworker.core.outcome import Failed, Output, Unpublishable
from kworker.core.record import Record
from kworker.worker.retries.policy import RetryPolicy
from tests.support.delayed import Delays
from tests.support.poll_loop_rig import DEAD, DELAYS_S, GROUP, HOLD, REQUEUE, RESULTS, Bench, Clock
from tests.support.poll_loop_rig import retry_topic as topic_of

TOPICS = {"foo": 2, "bar": 1}
STRICT = "orders.strict"  # compacted: takes nothing without a key
LETTERS = (DEAD, *map(topic_of, DELAYS_S))
Position = tuple[str, int, int]
CALM_TURNS = 300  # in which all ends, though each call of a transaction takes its time
# Longer than a failing example is made shorter for; else nobody is told of it.
pytestmark = pytest.mark.timeout(600)


class Calm(RuleBasedStateMachine):
    """Workers of one group over one broker come and go as planned; handlers end in time.

    So nothing may be done twice (O5).
    """

    retry: RetryPolicy | None = None
    crowded_records = 250
    held = 0  # records that wait in memory, at most

    def __init__(self) -> None:
        super().__init__()
        self.kafka = MemoryKafka(lambda: 1_700_000_000.0)
        for topic, partitions in TOPICS.items():
            self.kafka.create(topic, partitions)
        self.kafka.create(RESULTS)
        for own in (REQUEUE, *LETTERS):
            self.kafka.create(own, 2)
        self.delays = Delays(self.kafka)
        self.clock = Clock()
        self.benches: list[Bench] = []
        self.everybody: list[Bench] = []
        self.written: list[Position] = []
        self.done: Counter[Position] = Counter()  # ended with nothing to publish
        self.kafka.create(STRICT)
        strict = self.kafka.topic(STRICT)
        assert strict
        strict.compacted = True
        self.promised: set[Position] = set()  # ended with a result
        self.failed: set[tuple[Position, Position, int]] = set()  # (where, its source, attempt)
        self.positions: dict[PartitionId, int] = {}
        # What each member knew of a partition when it was given it.
        self.known: dict[tuple[Bench, PartitionId, int], tuple[int, set[Position]]] = {}
        self.group = self.kafka.group(GROUP)
        self.accept = self.group.commit
        self.group.commit = self.judge  # type: ignore[method-assign]

    # -- the oracle -------------------------------------------------------------------

    def judge(
        self, member: MemoryMember | None, positions: Mapping[PartitionId, Committed]
    ) -> KafkaError | None:
        """O3 and O4, for each commit that the broker takes."""
        if (error := self.accept(member, positions)) is not None:
            return error
        assert member is not None
        for at, (position, metadata) in positions.items():
            assert at in member.assignment, "committed what it does not own"
            assert position >= self.positions.get(at, 0), "a position went back"
            self.positions[at] = position
            below = {p for p in self.every() if p[:2] == at and p[2] < position}
            assert below <= self.ended(), "committed before its end"
            assert self.named(at, position, metadata) <= self.ended(), "named before its end"
        return None

    def named(self, at: PartitionId, position: int, metadata: str) -> set[Position]:
        """What the map of a commit says is done."""
        [identity] = self.kafka.identities([at[0]], 1.0).values()
        runs = decode(metadata, origin_of(identity, at), position)
        assert not isinstance(runs, Ignored)
        return {(*at, offset) for begin, end in runs for offset in range(begin, end)} & self.every()

    def every(self) -> set[Position]:
        """All that a worker takes: the sources' records, and those that come again."""
        again = {(REQUEUE, n, raw.offset()) for n in (0, 1) for raw in self.log(REQUEUE, n)}
        return again.union(self.written)

    def everywhere(self) -> list[PartitionId]:
        """The source partitions."""
        return [(topic, n) for topic, partitions in TOPICS.items() for n in range(partitions)]

    def log(self, topic: str, number: int) -> list[Fields]:
        return self.kafka.log((topic, number)).records

    def ended(self) -> set[Position]:
        """Done with nothing to publish, or with its result or its letter in Kafka."""
        results = {raw.key() for topic in (RESULTS, STRICT) for raw in self.kafka.records(topic)}
        letters = {
            (envelope.source.place, envelope.attempt - (topic != DEAD))
            for topic in LETTERS
            for raw in self.kafka.records(topic)
            for envelope in [Envelope.open(raw.headers() or ())]
        }
        failed = {where for where, source, attempt in self.failed if (source, attempt) in letters}
        return set(self.done) | failed | {p for p in self.promised if name(p) in results}

    # -- what happens -----------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.join(hands=3, computing=False)

    @rule(
        at=st.sampled_from([(t, p) for t, n in TOPICS.items() for p in range(n)]),
        keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=5),
    )
    def write(self, at: PartitionId, keys: list[bytes | None]) -> None:
        for key in keys:
            self.written.append((*at, self.kafka.append(*at, value=b"v", key=key)))

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def write_a_marker(self, topic: str) -> None:
        self.kafka.skip(topic)

    @precondition(lambda self: len(self.benches) < 3)
    @rule(hands=st.integers(1, 4), computing=st.booleans())
    def join(self, hands: int, computing: bool) -> None:
        self.take_on(hands, computing)

    def take_on(self, hands: int, computing: bool, **options: Any) -> Bench:
        """One more worker."""
        bench = Bench(
            self.kafka,
            [*sorted(TOPICS), REQUEUE],
            clock=self.clock,
            hands=hands,
            in_flight=6,
            held=6,
            retry=self.retry,
            crowded_records=self.crowded_records,
            **options,
        )
        bench.pool.computing = computing
        self.note_what_is_read_back(bench)
        self.benches.append(bench)
        self.everybody.append(bench)
        bench.pool.completed.meanwhile = lambda: self.meanwhile(bench)
        return bench

    def note_what_is_read_back(self, bench: Bench) -> None:
        """At each assignment, what the group held as done just then."""
        committer = bench.poll_loop.committer
        know = committer.learn

        def noting(at: PartitionId, held: Committed | None) -> None:
            epoch = bench.poll_loop.assignment.rebalances
            known = set() if held is None else self.named(at, *held)
            # One that settles in transactions reads it back after each doubt, too.
            self.known.setdefault((bench, at, epoch), (0 if held is None else held.position, known))
            know(at, held)

        committer.learn = noting  # type: ignore[method-assign]

    @rule(data=st.data(), count=st.integers(1, 5))
    def turn(self, data: st.DataObject, count: int) -> None:
        bench = data.draw(st.sampled_from(self.benches))
        for _ in range(count):
            bench.turn()
            self.check_lanes(bench)

    @rule(count=st.integers(1, 4))
    def everybody_turns(self, count: int) -> None:
        for _ in range(count):
            for bench in self.benches:
                bench.turn()

    @rule(how=st.sampled_from(["done", "result"]))
    def end_all(self, how: str) -> None:
        for bench in self.benches:
            for record in list(bench.pool.held):
                self.end(bench, record, how)

    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        self.end_some(data, "done")

    @precondition(lambda self: len(self.benches) > 1 and self.kafka.up and self.kafka.writable)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        bench = data.draw(st.sampled_from(self.benches))
        self.benches.remove(bench)
        bench.poll_loop.stop_taking()
        for _ in range(60):
            for record in list(bench.pool.held):
                self.end(bench, record, "done")
            bench.turn()
        assert bench.poll_loop.idle
        bench.consumer.close()

    # -- the pieces -------------------------------------------------------------------

    def meanwhile(self, bench: Bench) -> None:
        """While the poll thread waits for handlers, they end."""
        for record in list(bench.pool.held):
            self.end(bench, record, "done")

    def end_some(self, data: st.DataObject, how: str) -> None:
        held = [(b, r) for b in self.benches for r in b.pool.held]
        if held:
            self.end(*data.draw(st.sampled_from(held)), how)

    def end(self, bench: Bench, record: Record, how: str) -> None:
        """Ends a record, as its handler would; a zombie's end counts like any other."""
        at = (record.partition.topic, record.partition.number, record.offset)
        match how:
            case "done":
                self.done[at] += 1
                bench.pool.end(record)
            case "fail":
                self.failed.add((at, record.source.place, record.attempt))
                bench.pool.end(record, Failed(ValueError("no")))
            case "invalid":  # its topic takes one of these, and the other never
                self.failed.add((at, record.source.place, record.attempt))
                outputs = [Output(STRICT, b"valid", b"r", []), Output(STRICT, None, b"r", [])]
                bench.pool.end(record, outputs)
            case "strict":
                self.promised.add(at)
                bench.pool.end(record, [Output(STRICT, name(at), b"r", [])])
            case _:
                self.promised.add(at)
                copies = 3 if how == "several" else 1
                bench.pool.end(record, [Output(RESULTS, name(at), b"r", [])] * copies)

    def check_lanes(self, bench: Bench) -> None:
        """At most one record of a key of one partition is in hand, whatever the epochs.

        And each outcome waits in one place.
        """
        keys = Counter((*r.source.place[:2], r.raw.key()) for r in bench.pool.held if r.raw.key())
        assert all(count == 1 for count in keys.values())
        places = Counter((r.partition.prefix, r.offset) for r in bench.pool.held)
        assert all(count == 1 for count in places.values())
        backlog = bench.poll_loop.settlement._outbox
        waiting = [*backlog, *(each.record for each in backlog.undeliverable)]
        assert len(set(waiting)) == len(waiting) <= backlog.pending
        flow = bench.poll_loop.flow
        # What a topic refused for good is in flight again until it is judged, in the next turn.
        most = 6 + self.held + sum(map(is_refused, bench.poll_loop.dispatch.endings._ended_early))
        assert flow.records <= most
        assert flow.records + flow.held <= most

    def teardown(self) -> None:
        """O1: when all is calm again, everything ends and every position is at the end."""
        self.kafka.up = self.kafka.writable = True
        for _ in range(CALM_TURNS):
            self.end_all("done")
            self.everybody_turns(1)
            self.delays.forward()
            if self.finished():
                break
        assert self.every() <= self.ended(), "lost"
        assert self.finished(), "a position stays behind"
        self.check_repeats()
        self.check_that_nothing_known_was_begun()

    def check_that_nothing_known_was_begun(self) -> None:
        """A finished record stays finished, whichever worker has died since."""
        for bench in self.everybody:
            for record in bench.pool.runs:
                at = (record.partition.topic, record.partition.number)
                position, known = self.known[bench, at, record.partition.epoch]
                assert record.offset >= position
                assert (*at, record.offset) not in known

    def check_repeats(self) -> None:
        runs = [r for bench in self.everybody for r in bench.pool.runs]
        begun = Counter((r.partition.topic, r.partition.number, r.offset) for r in runs)
        assert [p for p, count in begun.items() if count > 1] == []

    def finished(self) -> bool:
        committed = self.kafka.committed(GROUP)
        return all(
            committed.get((topic, n), 0) == self.kafka.log((topic, n)).high
            for topic, partitions in {**TOPICS, REQUEUE: 2}.items()
            for n in range(partitions)
        )


def is_refused(record: Record) -> bool:
    """Of those that failed before they could run: it did run, and a topic refused its result."""
    return isinstance(record.outcome, Failed) and type(record.outcome.error) is Unpublishable


def name(position: Position) -> bytes:
    return "{}/{}/{}".format(*position).encode()


class Stormy(Calm):
    """Handlers fail and outlive their partitions, members die, the broker comes and goes."""

    @rule(data=st.data(), how=st.sampled_from(["result", "several", "fail"]))
    def end_one_otherwise(self, data: st.DataObject, how: str) -> None:
        self.end_some(data, how)

    @rule(hows=st.lists(st.sampled_from(["strict", "invalid", "result"]), min_size=1, max_size=4))
    def end_all_and_some_invalid(self, hows: list[str]) -> None:
        """What is refused for good is in one batch with what is not."""
        held = [(bench, record) for bench in self.benches for record in bench.pool.held]
        for (bench, record), how in zip(held, itertools.cycle(hows), strict=False):
            self.end(bench, record, how)

    @rule()
    def come_again(self) -> None:
        self.delays.forward()

    @rule(up=st.booleans(), writable=st.booleans())
    def broker(self, up: bool, writable: bool) -> None:
        self.kafka.up, self.kafka.writable = up, writable

    @precondition(lambda self: len(self.benches) > 1)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        bench = data.draw(st.sampled_from(self.benches))
        self.benches.remove(bench)
        bench.die()

    @rule(data=st.data())
    def expire_and_live_on(self, data: st.DataObject) -> None:
        """A zombie: stopped for longer than its session, then continued."""
        data.draw(st.sampled_from(self.benches)).consumer.expire()

    def meanwhile(self, bench: Bench) -> None:
        """Handlers are slow: a revoke waits for them in vain."""

    def check_repeats(self) -> None:
        """There will be some."""


class Holding(Stormy):
    """What fails waits in memory, and its key with it."""

    retry = HOLD
    held = 6


class Returning(Stormy):
    """One worker loses all it has, again and again, with records in hand, and is given it again."""

    @precondition(lambda self: not self.benches)
    @rule(hands=st.integers(1, 4), computing=st.booleans())
    def join(self, hands: int, computing: bool) -> None:
        super().join(hands, computing)

    @rule(data=st.data(), how=st.sampled_from(["result", "several"]))
    def end_one_otherwise(self, data: st.DataObject, how: str) -> None:
        self.end_some(data, how)

    def check_repeats(self) -> None:
        """O6: of each key, what ran last is what followed, also where some ran again."""
        [bench] = self.everybody
        runs = enumerate(bench.pool.runs)
        last = {(r.partition.topic, r.partition.number, r.offset): i for i, r in runs}
        for at in self.everywhere():
            latest: dict[bytes, int] = {}
            for raw in self.log(*at):
                if (key := raw.key()) and (run := last.get((*at, raw.offset()))) is not None:
                    assert latest.get(key, -1) < run, "done again after what followed it"
                    latest[key] = run


class Crowding(Calm):
    """Maps are so short that partitions are full all the time, and give records back."""

    crowded_records = 1

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(offset_map, "MAP_BITS_MAX", 8)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


class Crowded(Crowding, Stormy):
    """So they are in a storm."""


TestCalm = Calm.TestCase
TestCrowded = Crowded.TestCase
TestStormy = Stormy.TestCase
TestHolding = Holding.TestCase
TestReturning = Returning.TestCase
TestCalm.settings = settings(max_examples=40, stateful_step_count=40)
TestStormy.settings = settings(max_examples=80, stateful_step_count=50)
TestCrowded.settings = settings(max_examples=60, stateful_step_count=50)
TestHolding.settings = settings(max_examples=40, stateful_step_count=50)
TestReturning.settings = settings(max_examples=60, stateful_step_count=50)
