"""The pools of batch handlers: gathered, called, halved; each record ends once."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kworker.core.batch import NOT_ATTEMPTED, BatchFailed, NotAttempted, batch
from kworker.core.lanes import Lanes
from kworker.core.message import Undecodable
from kworker.core.outcome import (
    NO_RESULTS,
    DeadLettered,
    Failed,
    OnDeadCall,
    Output,
    Unavailable,
    Unpublishable,
    outputs_of,
)
from kworker.core.record import Partition, Record
from kworker.instance.scoreboard import Scoreboard, Slot, Text
from kworker.message import Message
from kworker.worker.handlers.batch_pool import BatchPool, BatchRunners, LoopRunners, ThreadRunners
from kworker.worker.handlers.batch_run import HandlerBatch, make_async_run_batch, make_run_batch
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.signature import Batching, read_signature
from kworker.worker.topic_limits import TopicLimits
from tests.support.records import a_partition, a_record
from tests.support.waiting import eventually

WAIT_S = 10.0
HOUR = "1h"
HOUR_S = 3600.0
ATTEMPTS = 4
TIMEOUT_S = 60.0


class Calls:
    """A batch handler that notes the offsets of each call, and waits in those it is told to."""

    def __init__(self, answer: Callable[[list[Message]], Any] | None = None) -> None:
        self.made: list[tuple[int, ...]] = []
        self._answer = answer or (lambda messages: [None] * len(messages))
        self._gates: dict[tuple[int, ...], threading.Event] = {}

    def __call__(self, messages: list[Message]) -> Any:
        offsets = tuple(message.offset for message in messages)
        self.made.append(offsets)
        if gate := self._gates.get(offsets):
            assert gate.wait(WAIT_S)
        return self._answer(messages)

    def hold(self, *offsets: int) -> None:
        self._gates[offsets] = threading.Event()

    def release(self, *offsets: int) -> None:
        self._gates[offsets].set()

    def until_made(self, *offsets: int) -> None:
        eventually(lambda: offsets in self.made, timeout_s=WAIT_S, what=str(offsets))


def raising_for(*poison: int) -> Callable[[list[Message]], Any]:
    def answer(messages: list[Message]) -> list[Any]:
        for message in messages:
            if message.offset in poison:
                raise ValueError(f"record {message.offset}")
        return [None] * len(messages)

    return answer


class Bench:
    """A pool on threads or on a loop, with the same handlers; the clock is the test's."""

    def __init__(self, kind: str, at_once: int, hands: int) -> None:
        self._kind, self._at_once, self._count = kind, at_once, hands
        self.now = 1000.0
        self._lanes: deque[Record] = deque()
        self._loop = HandlerLoop()
        self.slot: Slot = Scoreboard(1, hands).slots[0]
        self.slot.write_text(Text(known=(("orders", 0),)))

    def batches(self, calls: Any, size: int, wait: str = HOUR, *, dead: Any = None) -> None:
        """A pool of one batch handler."""
        self._start(self._handler(calls, size, wait, dead), {})

    def batches_and_plain(self, calls: Any, size: int, payments: Any) -> None:
        """A pool of one batch handler, and a plain one for payments."""
        plain = Handler("payments", self._form(payments), self._async)
        self._start(self._handler(calls, size, HOUR), {"payments": plain})

    def feed(self, waiting: Sequence[Record]) -> int:
        """How many the pool takes at once; the rest as it has room."""
        self._lanes.extend(waiting)
        return self.pool.feed(self._take)

    def turn(self) -> None:
        """What the poll thread does."""
        self.pool.reclaim(self.now)
        self.pool.feed(self._take)

    def ended(self, count: int) -> dict[int, Any]:
        """So many outcomes, by offset; AssertionError when one comes twice."""
        found: list[Record] = []

        def enough() -> bool:
            self.turn()
            found.extend(self.pool.completed.take(0.01))
            return len(found) >= count

        eventually(enough, timeout_s=WAIT_S, every_s=0.001, what=f"{count} outcomes")
        outcomes = {record.offset: record.outcome for record in found}
        assert len(outcomes) == len(found)
        return outcomes

    def stop(self) -> None:
        self.pool.stop()
        self._loop.end()
        self._loop.join(WAIT_S)

    def held(self) -> list[int]:
        """What the scoreboard shows."""
        return sorted(held.offset for held in self.slot.held())

    def _take(self, most: int) -> deque[Record]:
        return deque(self._lanes.popleft() for _ in range(min(most, len(self._lanes))))

    @property
    def _async(self) -> bool:
        return self._kind == "loop"

    def _handler(self, calls: Any, size: int, wait: str, dead: Any = None) -> Handler:
        function = self._form(calls)
        function.__annotations__ = {"what": getattr(calls, "takes", list[Message])}
        return Handler(
            "calls", function, self._async, None, dead, batching_of(function, size, wait)
        )

    def _form(self, function: Any) -> Any:
        """A function or a coroutine function, as the crew takes it."""

        def plain(what: Any) -> Any:
            return function(what)

        async def coroutine(what: Any) -> Any:
            return await asyncio.to_thread(function, what)

        return coroutine if self._async else plain

    def _start(self, default: Handler, routes: dict[str, Handler]) -> None:
        handlers = Handlers(default, routes)
        facts = TopicLimits(["results"])
        facts.update({"results": 1000}, {"results": 1})
        made = (handlers, ResultEncoder("results", [], facts), TIMEOUT_S, ATTEMPTS)
        crew: BatchRunners
        if self._async:
            self._loop.start()
            crew = LoopRunners(make_async_run_batch(*made), self._at_once, self._loop)
        else:
            crew = ThreadRunners(make_run_batch(*made), self._at_once)
        hands = [self.slot.hand(i) for i in range(self._count)]
        self.pool = BatchPool(handlers, crew, hands, lambda: self.now)
        self.pool.start()


def batching_of(function: Any, size: int, wait: str = HOUR) -> Batching:
    batching = read_signature("f", batch(size=size, wait=wait)(function)).batching_of(function)
    assert batching is not None
    return batching


Benches = Callable[..., Bench]


@pytest.fixture(params=["threads", "loop"])
def benches(request: pytest.FixtureRequest) -> Iterator[Benches]:
    yield from _benches(request.param)


@pytest.fixture
def loops() -> Iterator[Benches]:
    yield from _benches("loop")


@pytest.fixture
def threads() -> Iterator[Benches]:
    yield from _benches("threads")


def _benches(kind: str) -> Iterator[Benches]:
    made: list[Bench] = []

    def make(at_once: int = 2, hands: int = 1000) -> Bench:
        made.append(Bench(kind, at_once, hands))
        return made[-1]

    yield make
    for bench in made:
        bench.stop()


def records(*offsets: int, partition: Partition | None = None) -> list[Record]:
    partition = partition or a_partition()
    return [a_record(partition, offset) for offset in offsets]


# -- gathering -----------------------------------------------------------------------------


def test_a_full_batch_begins_at_once(benches: Benches) -> None:
    bench, calls = benches(), Calls()
    bench.batches(calls, size=3)
    assert bench.feed(records(4, 5, 6)) == 3
    assert bench.ended(3) == {4: NO_RESULTS, 5: NO_RESULTS, 6: NO_RESULTS}
    assert calls.made == [(4, 5, 6)]


def test_a_partial_batch_begins_when_its_first_record_has_waited(threads: Benches) -> None:
    bench, calls = threads(), Calls()
    bench.batches(calls, size=3, wait="200ms")
    bench.feed(records(1))
    bench.now += 0.125
    bench.feed(records(2))
    bench.turn()
    assert calls.made == []
    bench.now += 0.125
    bench.turn()
    bench.ended(2)
    assert calls.made == [(1, 2)]


def test_a_hurry_begins_only_the_batches_gathered_so_far(benches: Benches) -> None:
    """A revoke and a drain wait for what is here; nobody waits for the other partitions'."""
    bench, calls = benches(), Calls()
    bench.batches(calls, size=3)
    bench.feed(records(1, 2))
    bench.pool.flush()
    bench.ended(2)
    bench.feed(records(3))
    bench.turn()
    assert calls.made == [(1, 2)]
    bench.pool.flush()
    bench.ended(1)
    assert calls.made == [(1, 2), (3,)]


def test_the_rest_of_a_full_batch_waits_from_its_arrival(threads: Benches) -> None:
    bench, calls = threads(), Calls()
    bench.batches(calls, size=3, wait="200ms")
    bench.feed(records(*range(7)))
    bench.ended(6)
    bench.now += 0.3
    bench.turn()
    bench.ended(1)
    assert sorted(calls.made) == [(0, 1, 2), (3, 4, 5), (6,)]


def test_no_more_is_taken_than_the_next_batch_needs(benches: Benches) -> None:
    """What is still in its lane can be dropped at a revoke, and is other workers' to do."""
    bench, calls = benches(at_once=1), Calls()
    calls.hold(0, 1, 2)
    bench.batches(calls, size=3)
    taken = bench.feed(records(*range(100)))
    assert 6 <= taken <= 7
    assert bench.pool.slack_s() > 0
    calls.release(0, 1, 2)
    bench.ended(3)


def test_the_longest_waiting_batch_gets_the_next_place(benches: Benches) -> None:
    """A handler whose batches are always full must not keep the others out."""
    bench, calls = benches(at_once=1), Calls()
    calls.hold(0, 1)
    made_before: list[int] = []
    bench.batches_and_plain(calls, 2, lambda _: made_before.append(len(calls.made)))
    bench.feed(records(0, 1))
    bench.now += 1
    bench.feed(records(100, partition=a_partition("payments")))
    bench.now += 1
    bench.feed(records(2, 3))
    calls.release(0, 1)
    bench.ended(5)
    assert made_before == [1]


def test_each_running_record_has_a_scoreboard_hand(threads: Benches) -> None:
    """Any of them may be what ends the process; the supervisor reads there which."""
    bench, calls = threads(at_once=2, hands=5), Calls()
    calls.hold(0, 1, 2)
    bench.batches(calls, size=3)
    bench.feed(records(*range(6)))
    calls.until_made(0, 1, 2)
    bench.turn()
    assert bench.held() == [0, 1, 2]
    assert len(calls.made) == 1
    calls.release(0, 1, 2)
    bench.ended(6)
    assert bench.held() == []


def test_a_batch_is_no_larger_than_the_hands_there_are(threads: Benches) -> None:
    """It would wait for ever."""
    bench, calls = threads(hands=2), Calls()
    bench.batches(calls, size=3)
    bench.feed(records(0, 1))
    bench.ended(2)
    assert calls.made == [(0, 1)]


class NoCrew:
    """Begins what it is given and ends it when the test says so."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.done: deque[HandlerBatch] = deque()
        self.begun: list[tuple[HandlerBatch, list[Record]]] = []

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def look(self, *, has_work: bool) -> None: ...

    def begin(self, batch: HandlerBatch) -> None:
        self.begun.append((batch, batch.next()))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, b"a", b"b", b"c"])), max_size=60),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_no_batch_has_two_records_of_a_key_and_order_is_kept(
    keys: list[tuple[int, bytes | None]], size: int, at_once: int
) -> None:
    """A null key is no key and may repeat."""
    lanes, crew, now = Lanes("key"), NoCrew(at_once), 0.0
    partitions = [a_partition(number=0), a_partition(number=1)]
    form = batching_of(lambda messages: messages, size)
    handlers = Handlers(Handler("f", lambda _: None, is_async=False, batching=form), {})
    slot = Scoreboard(1, 100).slots[0]
    pool = BatchPool(handlers, crew, [slot.hand(i) for i in range(100)], lambda: now)
    for offset, (number, key) in enumerate(keys):
        lanes.add(partitions[number], [a_record(partitions[number], offset, lane=key)])
    seen: list[Record] = []
    while len(seen) < len(keys):
        now += HOUR_S
        pool.feed(lanes.take)
        pool.reclaim(now + HOUR_S)
        assert crew.begun
        for batch_, its in crew.begun:
            named = [
                (record.source_lanes, record.lane) for record in its if record.lane is not None
            ]
            assert len(set(named)) == len(named)
            assert len(its) <= size
            seen += its
            for record in its:
                batch_.end(record, NO_RESULTS)
            crew.done.append(batch_)
        crew.begun.clear()
        lanes.finish(pool.completed.take(0.0))
    for partition in partitions:
        for key in (b"a", b"b", b"c"):
            its_offsets = [r.offset for r in seen if r.partition is partition and r.lane == key]
            assert its_offsets == sorted(its_offsets)


# -- outcomes ------------------------------------------------------------------------------


def test_results_and_failures_are_each_records_own(benches: Benches) -> None:
    error = ValueError("no")

    def answer(_: list[Message]) -> list[Any]:
        return [{"a": 1}, error, None, {"large": "x" * 2000}, [{"a": 2}, {"a": 3}]]

    bench = benches()
    bench.batches(Calls(answer), size=5)
    bench.feed(records(0, 1, 2, 3, 4))
    outcomes = bench.ended(5)
    [output] = outputs_of(outcomes[0])
    assert isinstance(output, Output)
    assert output.value == b'{"a":1}'
    assert outcomes[1].error is error
    assert outcomes[2] is NO_RESULTS
    assert isinstance(outcomes[3].error, Unpublishable)
    assert [output.value for output in outcomes[4]] == [b'{"a":2}', b'{"a":3}']


def test_a_batch_that_fails_at_bravo_settles_alpha(benches: Benches) -> None:
    """Alpha is done, bravo failed, and charlie comes again as it was."""
    cause = ValueError("bravo")

    def answer(_: list[Message]) -> None:
        raise BatchFailed(1, cause, results=[{"order": "alpha"}])

    bench = benches()
    bench.batches(Calls(answer), size=3)
    alpha, bravo, charlie = records(0, 1, 2)
    bench.feed([alpha, bravo, charlie])
    outcomes = bench.ended(3)
    assert [output.value for output in outputs_of(outcomes[0])] == [b'{"order":"alpha"}']
    assert outcomes[1].error is cause
    assert isinstance(outcomes[2], NotAttempted)
    assert charlie.attempt == 1


def test_records_before_a_stop_run_again_without_results(benches: Benches) -> None:
    """Else alpha was done without a word, whatever it led to."""

    def answer(_: list[Message]) -> None:
        raise BatchFailed(1, ValueError("bravo"))

    bench = benches()
    bench.batches(Calls(answer), size=2)
    alpha, bravo = records(0, 1)
    bench.feed([alpha, bravo])
    outcomes = bench.ended(2)
    assert isinstance(outcomes[0], NotAttempted)
    assert isinstance(outcomes[1], Failed)
    assert alpha.attempt == 1


def test_one_poison_among_500_fails_alone(benches: Benches) -> None:
    calls = Calls(raising_for(321))
    bench = benches()
    bench.batches(calls, size=500)
    bench.feed(records(*range(500)))
    outcomes = bench.ended(500)
    assert [o for o, outcome in outcomes.items() if isinstance(outcome, Failed)] == [321]
    assert max(Counter(offset for call in calls.made for offset in call).values()) <= 10


def test_finished_records_do_not_wait_for_the_other_half(threads: Benches) -> None:
    """A record that has ended waits for no other of its batch."""
    bench, calls = threads(), Calls(raising_for(3))
    calls.hold(2, 3)
    bench.batches(calls, size=4)
    bench.feed(records(0, 1, 2, 3))
    assert set(bench.ended(2)) == {0, 1}
    calls.release(2, 3)
    assert set(bench.ended(2)) == {2, 3}
    assert calls.made == [(0, 1, 2, 3), (0, 1), (2, 3), (2,), (3,)]


def test_an_outage_ends_the_search_of_a_batch(benches: Benches) -> None:
    """What was not called any more goes back, to wait in its lane."""

    def answer(_: list[Message]) -> None:
        raise Unavailable("billing")

    calls = Calls(answer)
    bench = benches()
    bench.batches(calls, size=100)
    bench.feed(records(*range(100)))
    outcomes = bench.ended(100)
    assert sum(isinstance(outcome, Failed) for outcome in outcomes.values()) == 2
    assert list(outcomes.values()).count(NOT_ATTEMPTED) == 98
    assert [len(call) for call in calls.made] == [100, 1, 1]


def test_one_customer_that_cannot_be_reached_fails_alone(benches: Benches) -> None:
    def answer(messages: list[Message]) -> list[None]:
        if any(message.offset == 0 for message in messages):
            raise Unavailable("customer-0")
        return [None] * len(messages)

    bench = benches()
    bench.batches(Calls(answer), size=100)
    bench.feed(records(*range(100)))
    outcomes = bench.ended(100)
    assert [o for o, outcome in outcomes.items() if isinstance(outcome, Failed)] == [0]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_runner_survives_any_exception_of_a_batch(threads: Benches, error: BaseException) -> None:
    """One bad record cannot stop the service."""

    def answer(messages: list[Message]) -> list[None]:
        if any(message.offset == 0 for message in messages):
            raise error
        return [None] * len(messages)

    bench = threads(at_once=1)
    bench.batches(Calls(answer), size=2)
    bench.feed(records(0, 1, 2, 3))
    outcomes = bench.ended(4)
    assert outcomes[0].error is error
    assert [outcomes[offset] for offset in (1, 2, 3)] == [NO_RESULTS] * 3


class Bare(BatchFailed):
    """Without its parent's __init__."""

    def __init__(self) -> None: ...


class BareAt(Bare):
    index = 0


class Shrinking(list[Any]):
    """Longer than what is in it."""

    def __len__(self) -> int:
        return 3


class Refusing(list[Any]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError


class Faceless:
    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "answer",
    [
        lambda: raising(Bare()),
        lambda: raising(BareAt()),
        lambda: Shrinking([None]),
        lambda: Refusing([None] * 3),
        lambda: [Faceless()] * 3,
    ],
)
def test_each_record_ends_whatever_a_batch_returns(
    benches: Benches, answer: Callable[[], Any]
) -> None:
    """A runner that is gone, or a record without an outcome, would hold up everything."""
    bench = benches(at_once=1)
    bench.batches(Calls(lambda _messages: answer()), size=3)
    bench.feed(records(0, 1, 2))
    outcomes = bench.ended(3)
    assert isinstance(outcomes[0], Failed)
    assert None not in outcomes.values()
    bench.feed(records(3, 4, 5))
    assert len(bench.ended(3)) == 3


def test_a_record_with_no_place_on_the_scoreboard_ends_no_runner(benches: Benches) -> None:
    """Such an offset can only be forged."""
    bench = benches(at_once=1)
    bench.batches(Calls(), size=2)
    bench.feed(records(2**63, 1, 2, 3))
    outcomes = bench.ended(4)
    assert isinstance(outcomes[2**63], Failed)
    assert [outcomes[offset] for offset in (2, 3)] == [NO_RESULTS] * 2


class Order(BaseModel):
    id: int


class TakesOrders:
    """A batch handler of models."""

    takes = list[Order]

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, orders: list[Order]) -> list[int]:
        self.calls.append([order.id for order in orders])
        raise BatchFailed(1, ValueError("the second of those that decoded"))


def test_an_undecodable_record_fails_alone(benches: Benches) -> None:
    bench, handler, partition = benches(), TakesOrders(), a_partition()
    bench.batches(handler, size=4)
    values = [b'{"id": 1}', b"{", b'{"id": 3}', b'{"id": 4}']
    bench.feed([a_record(partition, i, value=value) for i, value in enumerate(values)])
    outcomes = bench.ended(4)
    assert handler.calls == [[1, 3, 4]]
    assert isinstance(outcomes[1].error, Undecodable)
    assert isinstance(outcomes[0], NotAttempted)
    assert isinstance(outcomes[2].error, ValueError)
    assert isinstance(outcomes[3], NotAttempted)


def test_an_undecodable_batch_calls_no_handler(benches: Benches) -> None:
    bench, handler = benches(), TakesOrders()
    bench.batches(handler, size=2)
    bench.feed(records(0, 1))
    outcomes = bench.ended(2)
    assert {type(outcome.error) for outcome in outcomes.values()} == {Undecodable}
    assert handler.calls == []


def test_a_message_of_a_batch_knows_its_attempt_and_its_time(threads: Benches) -> None:
    told: list[tuple[int, bool, bool]] = []

    def answer(messages: list[Message]) -> list[None]:
        told.extend((m.attempt, m.last, 0 < m.remaining() <= TIMEOUT_S) for m in messages)
        return [None] * len(messages)

    bench = threads()
    bench.batches(Calls(answer), size=2)
    first, last = records(0, 1)
    last.attempt = ATTEMPTS
    bench.feed([first, last])
    bench.ended(2)
    assert told == [(1, False, True), (ATTEMPTS, True, True)]


def test_a_batch_handler_and_a_plain_one_share_a_process(benches: Benches) -> None:
    calls = Calls()
    bench = benches()
    bench.batches_and_plain(calls, 2, lambda message: {"at": message.offset})
    mixed = [*records(0, 1), *records(10, 11, partition=a_partition("payments"))]
    bench.feed([mixed[i] for i in (0, 2, 1, 3)])
    outcomes = bench.ended(4)
    assert calls.made == [(0, 1)]
    assert [outputs_of(outcomes[offset])[0].value for offset in (10, 11)] == [
        b'{"at":10}',
        b'{"at":11}',
    ]


def test_a_dead_letter_notice_goes_alone(benches: Benches) -> None:
    """Not into a batch: it has had its runs."""
    told: list[tuple[int, BaseException]] = []
    calls = Calls()
    bench = benches()
    bench.batches(calls, 3, dead=lambda message, error: told.append((message.offset, error)))
    [record] = records(7)
    error, letter = ValueError("no"), DeadLettered([Output("dead", None, b"", [])])
    record.on_dead = OnDeadCall(error, letter)
    bench.feed([record])
    assert bench.ended(1)[7] is letter
    assert told == [(7, error)]
    assert calls.made == []


# -- partitions that go, and the end ---------------------------------------------------------


def test_records_of_a_revoked_partition_leave_the_batch(benches: Benches) -> None:
    """Another member has it."""
    calls = Calls()
    bench = benches()
    bench.batches(calls, size=3)
    gone = a_partition()
    bench.feed(records(0, 1, partition=gone))
    gone.open = False
    bench.feed(records(2))
    assert set(bench.ended(3)) == {0, 1, 2}
    assert calls.made == [(2,)]


def test_halves_of_a_revoked_partition_are_not_called(threads: Benches) -> None:
    bench, calls, gone = threads(), Calls(raising_for(1)), a_partition()
    calls.hold(0, 1, 2, 3)
    bench.batches(calls, size=4)
    bench.feed([*records(0, 1, partition=gone), *records(2, 3)])
    calls.until_made(0, 1, 2, 3)
    gone.open = False
    calls.release(0, 1, 2, 3)
    assert set(bench.ended(4).values()) == {NO_RESULTS, NOT_ATTEMPTED}
    assert calls.made == [(0, 1, 2, 3), (2, 3)]


def test_only_records_of_the_current_call_are_in_hand(threads: Benches) -> None:
    """While one half runs, no record of the other can have killed the process or be stuck."""
    bench, seen = threads(), []

    def answer(messages: list[Message]) -> list[None]:
        seen.append(bench.held())
        return raising_for(0)(messages)

    bench.batches(answer, size=4)
    bench.feed(records(0, 1, 2, 3))
    bench.ended(4)
    assert seen == [[0, 1, 2, 3], [0, 1], [0], [1], [2, 3]]


def test_a_stopped_pool_begins_no_batch(threads: Benches) -> None:
    """Neither what is gathered, nor what waits for its place, nor the halves of what runs."""
    bench, calls = threads(at_once=1), Calls(raising_for(1))
    calls.hold(0, 1)
    bench.batches(calls, size=2)
    bench.feed(records(0, 1, 2, 3, 4))
    calls.until_made(0, 1)
    bench.pool.stop()
    calls.release(0, 1)
    crew = bench.pool._runners
    assert isinstance(crew, ThreadRunners)
    eventually(lambda: not any(t.is_alive() for t in crew._threads), timeout_s=WAIT_S)
    bench.now += 2 * HOUR_S
    bench.turn()
    assert calls.made == [(0, 1)]


def test_a_stopped_loop_begins_no_waiting_batch(loops: Benches) -> None:
    """Another worker has its records."""
    bench, calls = loops(), Calls()
    bench.batches(calls, size=1)
    bench.pool.stop()
    bench.feed(records(0))
    bench.stop()
    assert calls.made == []
