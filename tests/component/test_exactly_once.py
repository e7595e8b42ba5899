"""Exactly once under random schedules: whatever fails, before or after it took effect."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kworker.clients.errors import Abortable, Broken, KafkaRequestError, QueueFull
from kworker.clients.memory.group import MemoryMember
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.core.headers import Envelope
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output
from kworker.core.record import Record
from kworker.worker.retries.policy import RetryPolicy
from tests.component.test_commit_safety import CALM_TURNS, LETTERS, Crowding, Position, Stormy, name
from tests.support.poll_loop_rig import DEAD, HOLD, LIMIT_S, RESULTS, Bench, Clock

# Longer than a failing example is made shorter for; else nobody is told of it.
pytestmark = pytest.mark.timeout(600)

CALLS = ("open", "begin", "send_positions", "commit", "abort")
FAILURES = [
    *((call, when) for call in CALLS for when in ("before", "after")),
    ("send_positions", "stale"),
]
FAILING = {*CALLS, "queue"}
STILL = 20  # looks at a call while no time passes, after which it is waited for


class Faulty:
    """A transactor whose calls fail as planned, before they took effect or after it.

    `planned` are calls, in order for each, and how they fail; "" is one that does not.
    """

    def __init__(self, transactor: MemoryTransactor, planned: list[tuple[str, str]]) -> None:
        self._transactor = transactor
        self._planned = planned

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._transactor, name)
        return partial(self._call, name, call) if name in FAILING else call

    def _call(self, name: str, call: Callable[..., Any], *arguments: Any) -> None:
        plan = next((plan for plan in self._planned if plan[0] == name), (name, ""))
        if plan in self._planned:
            self._planned.remove(plan)
        match plan[1]:
            case "broken":
                raise Broken("as planned")
            case "full":
                raise QueueFull
            case "stale":
                raise Abortable("illegal generation", retriable=True)
            case "before":
                raise KafkaRequestError(f"{name} failed before it took effect", retriable=True)
        call(*arguments)
        if plan[1] == "after":
            raise KafkaRequestError(f"{name} failed after it took effect", retriable=True)


class Later(Future[Any]):
    """A call that runs when its time has come, or when it is waited for."""

    def __init__(self, call: Callable[[], Any], clock: Clock, after_s: float) -> None:
        super().__init__()
        self._call = call
        self._clock = clock
        self._due = clock.now + after_s
        self._looked, self._still = clock.now, 0

    def done(self) -> bool:
        if super().done():
            return True
        self._still = self._still + 1 if self._clock.now == self._looked else 0
        self._looked = self._clock.now
        if self._clock.now < self._due and self._still < STILL:
            return False
        try:
            self.set_result(self._call())
        except KafkaRequestError as refused:
            self.set_exception(refused)
        return True


class Exactly(Stormy):
    """Every visible outcome is that of one run, and each record has one."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[tuple[str, str]] = []
        self.after_s = 0.0
        self.runs: dict[bytes, int] = {}  # how many results each had
        self.names = ["w-0", "w-1", "w-2"]
        self.accepted = self.group.accept
        self.group.accept = self.judge_transaction  # type: ignore[method-assign]

    def judge(
        self, member: MemoryMember | None, positions: Mapping[PartitionId, Committed]
    ) -> KafkaError | None:
        raise AssertionError("positions were committed outside of a transaction")

    def judge_transaction(
        self, member: str, generation: int, positions: Mapping[PartitionId, Committed]
    ) -> None:
        """O3 and O4 for each transaction, in the moment in which it is committed."""
        for at, (position, _) in positions.items():
            assert position >= self.positions.get(at, 0), "a position went back"
            self.positions[at] = position
            below = {p for p in self.every() if p[:2] == at and p[2] < position}
            assert below <= self.ended(), "committed before its end"
        self.accepted(member, generation, positions)

    # -- what happens -----------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.join(hands=3, computing=False)

    @precondition(lambda self: self.names)
    @rule(hands=st.integers(1, 4), computing=st.booleans())
    def join(self, hands: int, computing: bool) -> None:
        transactional_id = self.names.pop(0)
        bench = self.take_on(
            hands,
            computing,
            transactional=transactional_id,
            transactor=lambda transactor: Faulty(transactor, self.planned),
            begin=lambda call: Later(call, self.clock, self.after_s),
        )
        bench.consumer.unstable = self.let_time_pass  # type: ignore[method-assign]

    @rule(how=st.sampled_from(FAILURES))
    def fail(self, how: tuple[str, str]) -> None:
        """The next such call, for which there will be a reason."""
        self.planned.append(how)
        self.fill()

    @rule(after=st.integers(0, 5), how=st.sampled_from(["before", "broken", "full"]))
    def fail_in_an_outcome(self, after: int, how: str) -> None:
        """Of three outputs each."""
        self.planned += [*[("queue", "")] * after, ("queue", how)]
        self.fill("several")

    @rule()
    def fill(self, how: str = "result") -> None:
        """Leaves everybody with a transaction that is not due."""
        self.kafka.up = self.kafka.writable = True
        for at in self.everywhere():
            self.write(at, [None, b"a"])
        self.everybody_turns(2)
        self.end_all(how)
        self.everybody_looks(2)

    @rule(count=st.integers(1, 3))
    def everybody_looks(self, count: int) -> None:
        """A turn, and so soon that nothing is due."""
        for _ in range(count):
            for bench in self.benches:
                self.clock.now += 0.01
                bench.poll_loop.turn()

    @rule(data=st.data())
    def lose_while_filled(self, data: st.DataObject) -> None:
        self.fill()
        self.expire_and_live_on(data)

    @precondition(lambda self: self.names and len(self.benches) > 0)
    @rule(late=st.booleans())
    def rebalance_while_filled(self, late: bool) -> None:
        """A revoke finds a transaction open; `late`, and calls that last longer than it does."""
        self.fill()
        self.after_s = 7.0 if late else 0.0
        self.join(hands=3, computing=False)
        self.everybody_looks(2)
        self.after_s = 0.0

    @rule(after_s=st.sampled_from([0.0, 0.0, 0.3, 7.0]))
    def take_time(self, after_s: float) -> None:
        self.after_s = after_s

    @precondition(lambda self: len(self.benches) > 1)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        bench = data.draw(st.sampled_from(self.benches))
        self.benches.remove(bench)
        bench.die()
        self.names.append(bench.name)

    @precondition(lambda self: len(self.benches) > 1 and self.kafka.up and self.kafka.writable)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        bench = data.draw(st.sampled_from(self.benches))
        self.benches.remove(bench)
        bench.poll_loop.stop_taking()
        self.planned.clear()
        for _ in range(CALM_TURNS):
            for record in list(bench.pool.held):
                self.end(bench, record, "done")
            bench.turn()
            if bench.poll_loop.idle:
                break
        assert bench.poll_loop.idle
        bench.consumer.close()
        self.names.append(bench.name)

    def let_time_pass(self) -> None:
        """Who waits for the positions that a transaction hides waits for its end."""
        self.clock.now += LIMIT_S
        for transactional_id in list(self.group.pending):
            self.kafka.expire(transactional_id)

    def end(self, bench: Bench, record: Record, how: str) -> None:
        if how not in ("result", "several"):
            super().end(bench, record, how)
            return
        at = (record.partition.topic, record.partition.number, record.offset)
        self.promised.add(at)
        copies = 3 if how == "several" else 1
        run = b"run-%d" % len(self.runs)
        self.runs[run] = copies
        bench.pool.end(record, [Output(RESULTS, name(at), run, [])] * copies)

    # -- the oracle -------------------------------------------------------------------

    def teardown(self) -> None:
        self.planned.clear()
        self.after_s = 0.0
        super().teardown()

    def check_repeats(self) -> None:
        visible: dict[Position, list[object]] = {at: [] for at in self.every()}
        for key, runs in self.results().items():
            [at] = [at for at in visible if name(at) == key]
            assert runs == {run: self.runs[run] for run in runs}, "an outcome in part, or twice"
            visible[at] += list(runs)
        letters = Counter(
            (envelope.source.place, envelope.attempt - (topic != DEAD))
            for topic in LETTERS
            for raw in self.kafka.records(topic)
            for envelope in [Envelope.open(raw.headers() or ())]
        )
        for where, source, attempt in self.failed:
            visible[where] += [(source, attempt)] * letters[source, attempt]
        assert {at: runs for at, runs in visible.items() if len(runs) > 1} == {}

    def results(self) -> dict[bytes | None, Counter[bytes]]:
        found: dict[bytes | None, Counter[bytes]] = {}
        for raw in self.kafka.records(RESULTS):
            found.setdefault(raw.key(), Counter())[raw.value() or b""] += 1
        return found


class ExactlyHolding(Exactly):
    """What fails waits in memory, and its key with it."""

    retry: RetryPolicy | None = HOLD
    held = 6


class ExactlyCrowded(Crowding, Exactly):
    """So they are in transactions."""


TestExactly = Exactly.TestCase
TestExactlyCrowded = ExactlyCrowded.TestCase
TestExactlyHolding = ExactlyHolding.TestCase
TestExactly.settings = settings(max_examples=60, stateful_step_count=50)
TestExactlyCrowded.settings = settings(max_examples=30, stateful_step_count=50)
TestExactlyHolding.settings = settings(max_examples=30, stateful_step_count=50)
