"""The pools: runs in, records with outcomes out, whatever handlers do."""

import asyncio
import gc
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from itertools import count, islice
from typing import Any
from weakref import WeakSet

import pytest

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.chunk import Row
from kworker.core.message import Fields
from kworker.core.outcome import (
    NO_RESULTS,
    DeadLettered,
    Failed,
    OnDeadCall,
    Outcome,
    Output,
    Results,
)
from kworker.core.record import Record
from kworker.instance.scoreboard import Scoreboard, Text
from kworker.log.running import TASK
from kworker.worker.handlers.async_pool import SLACK_MOST_S, AsyncPool, Pace
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.handler_loop import NEW_LOOP, HandlerLoop, NewLoop
from kworker.worker.handlers.invocation import AsyncSteps, limits_of, message_of
from kworker.worker.handlers.pool import Take
from kworker.worker.handlers.thread_pool import ThreadPool
from tests.support.event_loops import EVENT_LOOPS
from tests.support.records import a_partition, a_record
from tests.support.waiting import eventually

WAIT_S = 10.0
Pools = Callable[..., Any]


class Gates:
    """Handlers that begin when handed and end when let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._gates: dict[int, threading.Event] = {}

    def hold(self, *offsets: int) -> None:
        for offset in offsets:
            self._gates[offset] = threading.Event()

    def release(self, *offsets: int) -> None:
        for offset in offsets:
            self._gates[offset].set()

    def work(self, record: Record, _began: float) -> Outcome:
        self.begun.append(record.offset)
        if gate := self._gates.get(record.offset):
            assert gate.wait(WAIT_S)
        return NO_RESULTS

    def until_begun(self, *offsets: int) -> None:
        eventually(lambda: set(offsets) <= set(self.begun), timeout_s=WAIT_S)


class Snatching(CompletionQueue):
    """Changes each record as soon as it has it, as the poll thread may: it owns it then."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[int] = []
        kept = self.add

        def add(record: Record) -> None:
            if isinstance(record.outcome, Failed):
                self.failed.append(record.offset)
                record.outcome, record.lane = NO_RESULTS, None
            kept(record)

        self.add = add


@pytest.fixture
def threads() -> Iterator[Pools]:
    """Makes pools of threads, started; they are stopped at the end."""
    pools: list[ThreadPool] = []

    def make(work: Any, count: int = 1) -> ThreadPool:
        slot = Scoreboard(1, count).slots[0]
        hands = [slot.hand(i) for i in range(count)]
        pools.append(ThreadPool(lambda record, began_ns, _: work(record, began_ns), hands))
        pools[-1].start()
        return pools[-1]

    yield make
    for pool in pools:
        pool.stop()


@pytest.fixture(params=EVENT_LOOPS)
def loops(request: pytest.FixtureRequest) -> Iterator[Pools]:
    """Makes pools on loops, which end with the test."""
    yield from _loops(EVENT_LOOPS[request.param])


def _loops(new_loop: NewLoop) -> Iterator[Pools]:
    made: list[HandlerLoop] = []

    def make(work: Any, count: int = 10) -> AsyncPool:
        slot = Scoreboard(1, count).slots[0]
        made.append(HandlerLoop(new_loop))
        made[-1].start()
        return AsyncPool(AsyncSteps.of(work), [slot.hand(i) for i in range(count)], made[-1])

    yield make
    for loop in made:
        loop.end()
        loop.join(WAIT_S)


@pytest.fixture
def one_loop() -> Iterator[Pools]:
    yield from _loops(NEW_LOOP)


@pytest.fixture(params=["threads", "loop"])
def pools(request: pytest.FixtureRequest, threads: Pools, one_loop: Pools) -> Pools:
    """Makes pools of either kind, started, with a work that is no coroutine function."""
    if request.param == "threads":
        return threads

    def make(work: Any) -> AsyncPool:
        async def coroutine(record: Record, began: float) -> Outcome:
            outcome: Outcome = work(record, began)
            return outcome

        pool: AsyncPool = one_loop(coroutine)
        return pool

    return make


def a_run(*offsets: int) -> deque[Record]:
    partition = a_partition()
    return deque(a_record(partition, offset) for offset in offsets)


def from_left(left: deque[Record]) -> Take:
    """Takes from what is left, as from the lanes."""
    return lambda most: deque(left.popleft() for _ in range(min(most, len(left))))


def ended(pool: Any, count: int) -> list[Record]:
    found: list[Record] = []

    def enough() -> bool:
        found.extend(pool.completed.take(0.05))
        return len(found) >= count

    eventually(enough, timeout_s=WAIT_S)
    return found


def reclaimed(pool: ThreadPool, count: int) -> list[Record]:
    """Looks until a run that does not move has given so many back."""
    found: list[Record] = []
    now = 0.0

    def enough() -> bool:
        nonlocal now
        now += 1.0
        found.extend(pool.reclaim(now))
        return len(found) >= count

    eventually(enough, timeout_s=WAIT_S)
    return found


# -- threads ------------------------------------------------------------------------------


def test_a_run_is_done_in_order_and_comes_back_with_its_outcomes(threads: Pools) -> None:
    outcomes = {offset: Results(()) for offset in (3, 1, 2)}
    pool = threads(lambda record, _began: outcomes[record.offset])
    pool.hand(a_run(3, 1, 2))
    assert [(r.offset, r.outcome) for r in ended(pool, 3)] == list(outcomes.items())


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_handlers_exception_is_an_outcome_and_its_thread_lives(
    threads: Pools, error: BaseException
) -> None:
    """One bad record cannot stop the service."""

    def work(record: Record, _began: float) -> Outcome:
        if record.offset == 1:
            raise error
        return NO_RESULTS

    pool = threads(work)
    pool.hand(a_run(1, 2))
    first, second = ended(pool, 2)
    assert isinstance(first.outcome, Failed)
    assert first.outcome.error is error
    assert second.outcome is NO_RESULTS


def test_a_kept_exception_keeps_no_record(pools: Pools) -> None:
    """With that would go the values of all that waited with it for Kafka."""

    def work(record: Record, _began: float) -> Outcome:
        if record.offset == 0:
            raise ValueError
        return NO_RESULTS

    pool = pools(work)
    pool.hand(a_run(0, 1, 2))
    first, *_ = ended(pool, 3)
    eventually(lambda: not pool.has_work, timeout_s=WAIT_S)
    assert isinstance(first.outcome, Failed)
    traceback = first.outcome.error.__traceback__
    assert traceback
    kept = traceback.tb_frame.f_locals.values()
    assert [each for each in kept if isinstance(each, Record | Failed)] == []


def test_a_handler_is_told_when_it_began(threads: Pools) -> None:
    """Its time-out counts from there."""
    began: list[float] = []
    pool = threads(lambda _record, at: began.append(at))
    pool.hand(a_run(1, 2))
    ended(pool, 2)
    assert began == sorted(began)
    assert began[0] > 0


def test_a_record_with_no_place_on_the_scoreboard_ends_no_thread(pools: Pools) -> None:
    """One thread after the other was gone, unseen; such an offset can only be forged."""
    pool = pools(lambda _record, _began: NO_RESULTS)
    pool.hand(a_run(2**63, 1))
    outcomes = {record.offset: record.outcome for record in ended(pool, 2)}
    assert isinstance(outcomes[2**63], Failed)
    assert outcomes[1] is NO_RESULTS


def test_threads_work_at_once(threads: Pools) -> None:
    gates = Gates()
    gates.hold(1, 2, 3)
    pool = threads(gates.work, 3)
    for offset in (1, 2, 3):
        pool.hand(a_run(offset))
    gates.until_begun(1, 2, 3)
    gates.release(1, 2, 3)
    ended(pool, 3)


def test_records_behind_a_slow_one_are_given_back(threads: Pools) -> None:
    """Other keys of its run must not wait for it."""
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work, 2)
    pool.hand(a_run(1, 2, 3))
    gates.until_begun(1)
    back = reclaimed(pool, 2)
    assert [record.offset for record in back] == [2, 3]
    pool.hand(deque(back))
    assert [record.offset for record in ended(pool, 2)] == [2, 3]
    gates.release(1)
    assert [record.offset for record in ended(pool, 1)] == [1]
    assert gates.begun == [1, 2, 3]


def test_a_begun_record_is_never_given_back(threads: Pools) -> None:
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work)
    pool.hand(a_run(1))
    gates.until_begun(1)
    assert [pool.reclaim(float(now)) for now in range(5)] == [[]] * 5
    gates.release(1)
    assert len(ended(pool, 1)) == 1


def test_a_pool_asks_for_no_more_than_it_can_use(
    threads: Pools,
) -> None:
    """What is not handed over can still be dropped at a revoke."""
    gates = Gates()
    gates.hold(*range(100))
    pool = threads(gates.work, 2)
    left = deque(a_run(*range(100)))
    handed = pool.feed(from_left(left))
    assert 2 <= handed <= 8
    gates.release(*range(100))
    ended(pool, handed)
    eventually(lambda: pool.feed(from_left(left)), timeout_s=WAIT_S)


@pytest.mark.parametrize(("count", "slack"), [(1, False), (4, True)])
def test_one_thread_leaves_the_poll_loop_no_time_to_sleep(
    threads: Pools, count: int, slack: bool
) -> None:
    """It would idle if the loop slept longer than its runs last; of many, some have work."""
    gates = Gates()
    gates.hold(*range(8))
    pool = threads(gates.work, count)
    pool.feed(from_left(a_run(*range(8))))
    assert (pool.slack_s() > 0) is slack
    gates.release(*range(8))


def test_slow_handlers_get_the_records_of_one_call_apart(threads: Pools) -> None:
    """One thread would run them in turn, and with a call for each a turn takes long."""
    gates = Gates()
    gates.hold(*range(8))
    pool = threads(gates.work, 4)
    asked: list[int] = []

    def take(most: int) -> deque[Record]:
        asked.append(most)
        assert not pool.runs_in_order
        return a_run(*range(most))

    assert pool.feed(take) == 8
    gates.until_begun(0, 1, 2, 3)
    assert pool.feed(take) == 0
    assert asked == [8, 0]
    gates.release(*range(8))
    assert len(ended(pool, 8)) == 8


def test_one_slow_handler_leaves_the_other_threads_busy(threads: Pools) -> None:
    """Fed by what a poll thread would: look for what is stuck, hand over what is wanted."""
    gates = Gates()
    gates.hold(0)
    pool = threads(gates.work, 4)
    pool.hand(a_run(0))
    gates.until_begun(0)
    left = deque(a_run(*range(1, 2000)))
    done = 0
    now = 0.0

    def all_but_one() -> bool:
        nonlocal done, now
        now += 1.0
        left.extendleft(reversed(pool.reclaim(now)))
        pool.feed(from_left(left))
        done += len(pool.completed.take(0.0))
        return done == 1999

    eventually(all_but_one, timeout_s=WAIT_S, every_s=0.001)
    gates.release(0)
    ended(pool, 1)


def test_a_record_waiting_in_a_revoked_partition_never_begins(threads: Pools) -> None:
    """Another member has it."""
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work)
    run = a_run(1, 2)
    partition = run[0].partition
    pool.hand(run)
    gates.until_begun(1)
    partition.open = False
    gates.release(1)
    ended(pool, 2)
    assert gates.begun == [1]


def test_a_stopped_pool_begins_no_record(threads: Pools) -> None:
    """A record begun after the drain would be done again by another worker."""
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work)
    pool.hand(a_run(1, 2))
    pool.hand(a_run(3))
    gates.until_begun(1)
    pool.stop()
    gates.release(1)
    ended(pool, 1)
    eventually(lambda: not any(t.is_alive() for t in pool._threads), timeout_s=WAIT_S)
    assert gates.begun == [1]


def test_unstarted_records_are_withdrawn_wherever_they_are(threads: Pools) -> None:
    """The rest of a run in a thread's hands, and the runs that wait for a thread."""
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work)
    pool.hand(a_run(1, 2))
    pool.hand(a_run(3, 4))
    gates.until_begun(1)
    assert [record.offset for record in pool.withdraw(())] == [2, 3, 4]
    gates.release(1)
    ended(pool, 1)
    pool.hand(a_run(5))
    ended(pool, 1)
    assert gates.begun == [1, 5]


def either_ran_or_came_back(pool: Any, ran: list[int]) -> None:
    """Withdraws while runs are under way, again and again."""
    left, back, done = deque(a_run(*range(5_000))), list[int](), list[int]()
    while left:
        pool.feed(from_left(left))
        back += [record.offset for record in pool.withdraw(())]
        done += [record.offset for record in pool.completed.take(0.0)]
    done += [record.offset for record in ended(pool, 5_000 - len(back) - len(done))]
    assert sorted(done) == sorted(ran)
    assert sorted(done + back) == list(range(5_000))


def test_a_record_runs_or_is_withdrawn_and_never_both(threads: Pools) -> None:
    ran: list[int] = []
    either_ran_or_came_back(threads(lambda record, _began: ran.append(record.offset), 4), ran)


def test_a_withdrawn_run_says_nothing_of_what_a_record_costs(threads: Pools) -> None:
    """Else a drain would end with a pool that takes its handlers for cheap ones."""
    gates = Gates()
    gates.hold(1)
    pool = threads(gates.work)
    pool.hand(a_run(1))
    gates.until_begun(1)
    for offset in range(2, 40):
        pool.hand(a_run(offset))
    pool.withdraw(())
    pool._cost.learn()
    known_s = pool._cost.record_s
    gates.release(1)
    ended(pool, 1)
    eventually(lambda: pool._moving() == 0, timeout_s=WAIT_S)
    assert pool._cost._sample.record_s >= known_s / 10


def test_the_scoreboard_shows_what_is_in_hand(threads: Pools) -> None:
    """When a worker dies, the supervisor reads there which records were."""
    board = Scoreboard(1, 1)
    slot = board.slots[0]
    slot.write_text(Text(known=(("orders", 0),)))
    gates = Gates()
    gates.hold(7)
    pool = ThreadPool(lambda record, began_ns, _: gates.work(record, began_ns), [slot.hand(0)])
    pool.start()
    pool.hand(a_run(7))
    gates.until_begun(7)
    assert [(h.topic, h.partition, h.offset) for h in slot.held()] == [("orders", 0, 7)]
    gates.release(7)
    eventually(lambda: slot.held() == [], timeout_s=WAIT_S)
    gates.hold(8)
    for offset in (8, 9):
        pool.hand(a_run(offset))
    gates.until_begun(8)
    pool.stop()
    gates.release(8)
    eventually(lambda: not pool._threads[0].is_alive(), timeout_s=WAIT_S)
    assert slot.held() == []


def test_completions_are_taken_at_once_and_in_order() -> None:
    ended = CompletionQueue()
    assert ended.take(0.0) == []
    run = a_run(1, 2, 3)
    for record in run:
        ended.add(record)
    assert ended.take(WAIT_S) == list(run)
    assert ended.take(0.0) == []


def test_a_waiting_take_is_woken_by_the_next_completion() -> None:
    """And what was told of earlier, and taken, wakes nobody."""
    ended = CompletionQueue()
    (record,) = a_run(1)
    ended.add(record)
    ended.wake()
    ended.take(0.0)
    found: list[Record] = []
    waiting = threading.Thread(target=lambda: found.extend(ended.take(WAIT_S)))
    waiting.start()
    ended.add(record)
    ended.wake()
    waiting.join(WAIT_S)
    assert found == [record]


def test_a_signal_at_the_end_of_a_wait_does_not_prolong_it() -> None:
    """Its handler outlasts the time-out: `queue.SimpleQueue` waits for ever then."""

    def outlast(_number: int, _frame: object) -> None:
        time.sleep(0.06)

    before = signal.signal(signal.SIGALRM, outlast)
    rescue = threading.Timer(WAIT_S, lambda: ended.wake())
    ended = CompletionQueue()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        rescue.start()
        assert ended.take(0.05) == []
        assert rescue.is_alive(), "it waited until it was told"
    finally:
        rescue.cancel()
        signal.signal(signal.SIGALRM, before)


# -- the loop ------------------------------------------------------------------------------


def test_coroutines_run_concurrently_and_return_their_outcomes(loops: Pools) -> None:
    """All of them wait until the last has begun."""
    begun: list[int] = []
    all_begun = asyncio.Event()
    outcomes = {offset: Results(()) for offset in range(5)}

    async def work(record: Record, _began: float) -> Outcome:
        begun.append(record.offset)
        if len(begun) == 5:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), WAIT_S)
        return outcomes[record.offset]

    pool = loops(work)
    pool.hand(a_run(0, 1, 2, 3, 4))
    assert {r.offset: r.outcome for r in ended(pool, 5)} == outcomes


def test_a_coroutines_exception_is_its_outcome(loops: Pools) -> None:
    async def work(record: Record, _began: float) -> Outcome:
        if record.offset == 1:
            raise ValueError("no")
        if record.offset == 2:
            raise asyncio.CancelledError
        return NO_RESULTS

    pool = loops(work)
    pool.hand(a_run(1, 2, 3))
    outcomes = {record.offset: record.outcome for record in ended(pool, 3)}
    assert isinstance(outcomes[1], Failed)
    assert isinstance(outcomes[2], Failed)
    assert outcomes[3] is NO_RESULTS


def test_a_task_of_a_handler_that_exits_does_not_end_the_loop(loops: Pools) -> None:
    """asyncio raises it out of the loop, beside the handler that waits for the task."""

    async def exits() -> None:
        sys.exit(2)

    async def work(record: Record, _began: float) -> Outcome:
        loop = asyncio.get_running_loop()
        match record.offset:
            case 1:
                await asyncio.gather(exits())
            case 2:
                loop.call_soon(sys.exit, 2)
            case 3:
                loop.stop()
        return NO_RESULTS

    pool = loops(work)
    pool.hand(a_run(1, 2, 3, 4))
    outcomes = {record.offset: record.outcome for record in ended(pool, 4)}
    assert isinstance(outcomes[1], Failed)
    assert isinstance(outcomes[1].error, SystemExit)
    assert [outcomes[offset] for offset in (2, 3, 4)] == [NO_RESULTS] * 3
    pool.hand(a_run(5, 6))
    assert [record.outcome for record in ended(pool, 2)] == [NO_RESULTS] * 2


def test_a_handler_that_cancels_every_task_takes_no_record_along(loops: Pools) -> None:
    """A task cancelled before it began runs nothing, not even what would tell its end."""

    async def work(record: Record, _began: float) -> Outcome:
        if record.offset == 1:
            for task in asyncio.all_tasks():
                task.cancel()
        await asyncio.sleep(0)
        return NO_RESULTS

    pool = loops(work)
    pool.hand(a_run(1, 2, 3))
    outcomes = {record.offset: record.outcome for record in ended(pool, 3)}
    assert isinstance(outcomes[1], Failed)
    assert [outcomes[offset] for offset in (2, 3)] == [NO_RESULTS] * 2


def test_a_handler_that_nothing_else_refers_to_is_not_collected(loops: Pools) -> None:
    """An event loop has only weak references to its tasks."""
    futures: list[weakref.ref[asyncio.Future[None]]] = []

    async def work(_record: Record, _began: float) -> Outcome:
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        await future
        return NO_RESULTS

    pool = loops(work)
    pool.hand(a_run(1))
    eventually(lambda: bool(futures), timeout_s=WAIT_S)
    pool._loop.run(lambda: asyncio.sleep(0)).result(WAIT_S)  # by then it awaits
    gc.collect()
    future = futures[0]()
    assert future is not None
    pool._loop.call(future.set_result, None)
    assert [record.outcome for record in ended(pool, 1)] == [NO_RESULTS]


def names_of_tasks(loops: Pools, act: Callable[[], object]) -> list[str]:
    """Runs three records with one hand, the first with `act`; returns the names of their tasks."""
    names: list[str] = []

    async def work(record: Record, _began: float) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        names.append(f"{task.get_name()} {VARIABLE.get()}")
        del task
        if record.offset == 1:
            act()
        await asyncio.sleep(0)
        return NO_RESULTS

    pool = loops(work, 1)
    pool.hand(a_run(1, 2, 3))
    assert len(ended(pool, 3)) == 3
    return names


def test_a_task_runs_one_record_after_the_other(loops: Pools) -> None:
    """A new one costs as much as all else of a record."""
    assert len(set(names_of_tasks(loops, lambda: None))) == 1


VARIABLE: ContextVar[object] = ContextVar("variable", default=None)
KEPT: list[object] = []


def fails() -> None:
    raise ValueError("no")


def of_task(act: Callable[["asyncio.Task[Any]"], object]) -> Callable[[], object]:
    def acts() -> object:
        task = asyncio.current_task()
        assert task is not None
        return act(task)

    return acts


LEFT: dict[str, Callable[[], object]] = {
    "a context variable": lambda: VARIABLE.set("of the first"),
    "a value that compares badly": lambda: VARIABLE.set(Incomparable()),
    "a reference": lambda: KEPT.append(asyncio.current_task()),
    "a weak reference": lambda: KEPT.append(WeakSet(filter(None, [asyncio.current_task()]))),
    "a callback": of_task(lambda task: task.add_done_callback(KEPT.append)),
    "a cancellation": of_task(lambda task: task.cancel()),
    "a cancellation taken back": of_task(lambda task: (task.cancel(), task.uncancel())),
    "an attribute": of_task(lambda task: setattr(task, "user", "the first")),
    "a name": of_task(lambda task: task.set_name("the first")),
    "a failure": fails,
}


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("left", LEFT)
def test_what_a_handler_leaves_in_its_task_ends_with_it(loops: Pools, left: str) -> None:
    """The next record would find it there, or be cancelled in the first one's place."""
    first, second, third = names_of_tasks(loops, LEFT[left])
    assert second != first
    assert second.endswith("None")
    assert second == third
    KEPT.clear()


@pytest.mark.parametrize("sets", [True, False])
def test_a_variable_that_a_task_begins_with_is_as_it_was(loops: Pools, sets: bool) -> None:
    """The thread that hands over the records had set it."""

    def hand_over() -> list[str]:
        VARIABLE.set("at first")
        return names_of_tasks(loops, lambda: sets and VARIABLE.set("of the first"))

    first, second, third = copy_context().run(hand_over)
    assert second == third
    assert second.endswith("at first")
    assert (first != second) is sets


def test_a_task_of_a_users_factory_runs_one_record(loops: Pools) -> None:
    """It may have given the task a scope, to which each record would add its own."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> Any:
        return asyncio.Task(coroutine, loop=loop, **more)

    names: list[str] = []

    async def work(_record: Record, _began: float) -> Outcome:
        names.append(asyncio.current_task().get_name())  # type: ignore[union-attr]
        return NO_RESULTS

    pool = loops(work, 1)
    pool._loop._loop.set_task_factory(factory)
    pool.hand(a_run(1, 2, 3))
    ended(pool, 3)
    assert len(set(names)) == 3


def fail_together(_record: Record) -> None:
    raise ValueError("no")


def leave_a_variable(record: Record) -> None:
    VARIABLE.set(record)


@pytest.mark.parametrize("act", [fail_together, leave_a_variable])
def test_tasks_that_end_together_are_replaced_once(
    loops: Pools, act: Callable[[Record], None]
) -> None:
    """If each started others for all that waits, there would be the square of their number."""
    made = 0

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return asyncio.Task(coroutine, loop=loop, **more)

    async def work(record: Record, _began: float) -> Outcome:
        await asyncio.sleep(0.01)
        act(record)
        return NO_RESULTS

    pool = loops(work, 100)
    pool._loop._loop.set_task_factory(factory)
    pool.hand(a_run(*range(400)))
    ended(pool, 400)
    assert made <= 500


def test_a_handler_that_resets_its_variable_leaves_nothing(loops: Pools) -> None:
    def set_and_reset() -> None:
        VARIABLE.reset(VARIABLE.set("for a while"))

    assert len(set(names_of_tasks(loops, set_and_reset))) == 1


def test_handlers_that_never_await_let_others_have_the_loop(loops: Pools) -> None:
    """A task with the next record at hand would keep it."""
    seen: list[str] = []

    async def work(record: Record, _began: float) -> Outcome:
        seen.append(f"record {record.offset}")
        asyncio.get_running_loop().call_soon(seen.append, f"callback {record.offset}")
        return NO_RESULTS

    pool = loops(work, 1)
    pool.hand(a_run(1, 2))
    ended(pool, 2)
    eventually(lambda: len(seen) == 4, timeout_s=WAIT_S)
    assert seen == ["record 1", "callback 1", "record 2", "callback 2"]


def test_tasks_cancelled_between_records_take_none_along(loops: Pools) -> None:
    """They have no handler then that could be told."""

    async def work(record: Record, _began: float) -> Outcome:
        if record.offset % 3 == 1:
            for task in asyncio.all_tasks():
                task.cancel()
        return NO_RESULTS

    pool = loops(work, 3)
    pool.hand(a_run(*range(50)))
    assert sorted(record.offset for record in ended(pool, 50)) == list(range(50))
    pool.hand(a_run(50))
    assert [record.offset for record in ended(pool, 1)] == [50]


def test_a_task_that_rests_runs_the_next_record_that_comes(loops: Pools) -> None:
    """Else each record would need a new task while handlers are free."""
    names: list[str] = []

    async def work(_record: Record, _began: float) -> Outcome:
        names.append(asyncio.current_task().get_name())  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return NO_RESULTS

    pool = loops(work, 4)
    for offset in range(5):
        pool.hand(a_run(offset))
        ended(pool, 1)
        eventually(lambda: bool(pool._resting), timeout_s=WAIT_S)
    assert len(set(names)) == 1


class Payload(Fields):
    """A record of the client to which a test can have a weak reference."""


def test_a_task_that_rests_keeps_no_record(loops: Pools) -> None:
    """As many as there may be handlers would stay in memory."""

    async def work(record: Record, _began: float) -> Outcome:
        TASK.set(message_of(record, limits_of(1.0, 1), 0))
        return NO_RESULTS

    pool = loops(work, 1)
    run = a_run(1)
    run[0].raw = Payload(("t", 0, 1), 0, None, b"", ())
    payload = weakref.ref(run[0].raw)
    pool.hand(run)
    ended(pool, 1)
    eventually(lambda: bool(pool._resting), timeout_s=WAIT_S)
    del run
    assert payload() is None


def test_the_end_of_a_pool_ends_the_tasks_that_rest(loops: Pools) -> None:
    """A user's `close` may wait for all other tasks of the loop."""

    async def work(_record: Record, _began: float) -> Outcome:
        return NO_RESULTS

    async def others() -> int:
        await asyncio.sleep(0)
        waiting = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        await asyncio.gather(*waiting)
        return len(waiting)

    pool = loops(work, 3)
    pool.hand(a_run(1, 2, 3))
    ended(pool, 3)
    eventually(lambda: len(pool._resting) == 3, timeout_s=WAIT_S)
    pool.stop()
    pool._loop.run(others).result(WAIT_S)
    assert pool._loop._tasks == set()


def test_the_pace_is_that_between_the_last_two_looks() -> None:
    """A look at which nothing more has ended tells nothing new."""
    now = 10.0
    pace = Pace(lambda: now)
    assert pace.seconds_each(0) == 0.0
    now = 12.0
    assert pace.seconds_each(4) == 0.5
    now = 13.0
    assert pace.seconds_each(4) == 0.5
    now = 15.0
    assert pace.seconds_each(7) == 1.0


@pytest.mark.parametrize(
    ("each_s", "slack_s"), [(0.0, 0.0), (0.0002, 0.0), (0.001, 0.0015), (1.0, SLACK_MOST_S)]
)
def test_a_loop_leaves_slack_as_long_as_records_wait(
    loops: Pools, each_s: float, slack_s: float
) -> None:
    """With few hands and quick handlers they would idle while the poll loop sleeps."""
    gates = Gates()
    gates.hold(0, 1, 2)

    async def work(record: Record, began: float) -> Outcome:
        await asyncio.to_thread(gates.work, record, began)
        return NO_RESULTS

    pool = loops(work, 3)
    pool.hand(a_run(0, 1))
    gates.until_begun(0, 1)
    pool._pace._each_s = each_s
    assert pool.slack_s() == 0.0, "a hand is free"
    pool.hand(a_run(2, 3, 4, 5))
    gates.until_begun(2)
    assert pool.slack_s() == pytest.approx(slack_s)
    pool.withdraw(())
    gates.release(0, 1, 2)
    ended(pool, 3)


def test_a_record_for_each_hand_waits_beside_the_loop(loops: Pools) -> None:
    """So a handler that ends has the next at once; they are withdrawn as all others."""
    release = threading.Event()

    async def work(_record: Record, _began: float) -> Outcome:
        await asyncio.to_thread(release.wait, WAIT_S)
        return NO_RESULTS

    pool = loops(work, 3)
    left = deque(a_run(*range(9)))
    assert pool.feed(from_left(left)) == 6
    assert pool.feed(from_left(left)) == 0
    eventually(lambda: not pool._free, timeout_s=WAIT_S)
    assert [record.offset for record in pool.withdraw(())] == [3, 4, 5]
    release.set()
    assert len(ended(pool, 3)) == 3
    assert pool.feed(from_left(left)) == 3


def test_a_busy_loops_unstarted_records_are_withdrawn(loops: Pools) -> None:
    """And those hands are free again."""
    gates = Gates()
    gates.hold(0)

    async def work(record: Record, began: float) -> Outcome:
        return gates.work(record, began)  # keeps the loop

    pool = loops(work, 2)
    left = deque(a_run(0, 1, 2, 3, 4, 5))
    assert pool.feed(from_left(left)) == 4
    gates.until_begun(0)
    assert [record.offset for record in pool.withdraw(())] == [1, 2, 3]
    assert pool.feed(from_left(left)) == 2
    gates.release(0)
    ended(pool, 3)
    assert gates.begun == [0, 4, 5]


def test_a_record_runs_on_the_loop_or_is_withdrawn_never_both(loops: Pools) -> None:
    ran: list[int] = []

    async def work(record: Record, _began: float) -> Outcome:
        ran.append(record.offset)
        return NO_RESULTS

    pool = loops(work)
    either_ran_or_came_back(pool, ran)


def test_a_loop_begins_no_record_of_a_revoked_partition(loops: Pools) -> None:
    begun: list[int] = []

    async def work(record: Record, _began: float) -> Outcome:
        begun.append(record.offset)
        return NO_RESULTS

    pool = loops(work)
    run = a_run(1)
    run[0].partition.open = False
    pool.hand(run)
    ended(pool, 1)
    assert begun == []


def test_a_stopped_loop_begins_no_record(loops: Pools) -> None:
    """Neither one that it was handed before, nor one that comes later; what runs goes on."""
    gates = Gates()
    gates.hold(0)

    async def work(record: Record, began: float) -> Outcome:
        return gates.work(record, began)  # keeps the loop

    pool = loops(work)
    pool.hand(a_run(0))
    gates.until_begun(0)
    pool.hand(a_run(1))
    pool.stop()
    pool.hand(a_run(2))
    gates.release(0)
    assert [record.offset for record in ended(pool, 1)] == [0]
    pool._loop.end()
    pool._loop.join(WAIT_S)
    assert gates.begun == [0]
    assert pool._loop._tasks == set()


def test_the_end_of_a_loop_cancels_what_still_runs(loops: Pools) -> None:
    """Else the loop could not be closed, and Python would say so in the user's tests."""
    begun, cancelled = threading.Event(), threading.Event()

    async def work(_record: Record, _began: float) -> Outcome:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return NO_RESULTS

    pool = loops(work)
    pool.hand(a_run(1))
    assert begun.wait(WAIT_S)
    pool._loop.end()
    assert cancelled.wait(WAIT_S)
    pool._loop.join(WAIT_S)
    assert pool._loop._loop.is_closed()


@pytest.mark.parametrize("new_loop", EVENT_LOOPS.values(), ids=EVENT_LOOPS)
def test_a_loop_that_was_never_started_is_closed_too(new_loop: NewLoop) -> None:
    loop = HandlerLoop(new_loop)
    loop.end()
    assert loop._loop.is_closed()


@pytest.mark.parametrize("slow", [0, 7, 19])
def test_a_slow_record_counts_by_itself_among_quick_ones(threads: Pools, slow: int) -> None:
    """With the mean of its run, it would count as twenty runs of an eighth of a second."""

    def work(record: Record, _began: float) -> Outcome:
        if record.offset == slow:
            time.sleep(0.05)
        return NO_RESULTS

    pool = threads(work)
    pool.hand(deque(a_record(a_partition(), offset) for offset in range(20)))
    eventually(lambda: not pool.has_work, timeout_s=WAIT_S)
    *counts, sum_us = pool.completed.run_times()
    assert sum(counts) == 20
    assert sum(counts[:4]) == 19
    assert counts[4] + counts[5] == 1, "more than 30 ms, at most 300 ms"
    assert sum_us >= 50_000


def taken_ago(record: Record, ago_s: float) -> Record:
    record.taken_ns = time.monotonic_ns() - int(ago_s * 1e9)
    return record


def test_the_records_of_a_run_have_waited_as_long_as_its_first(pools: Pools) -> None:
    pool = pools(lambda _record, _began: NO_RESULTS)
    pool.hand(deque(taken_ago(record, 5.0) for record in a_run(*range(4))))
    assert len(ended(pool, 4)) == 4
    eventually(lambda: not pool.has_work, timeout_s=WAIT_S)
    *counts, sum_us = pool.completed.wait_times()
    assert [at for at, count in enumerate(counts) if count] == [8], "more than 3 s, at most 10 s"
    assert sum(counts) == 4
    assert 20e6 <= sum_us < 22e6


def test_a_record_that_runs_again_has_not_waited_since_its_intake(pools: Pools) -> None:
    """A retry in memory has waited for its delay; and for `dead` a record does not wait anew."""
    retried, dead = taken_ago(a_record(a_partition(), 1), 5.0), a_record(a_partition(), 2)
    retried.attempt = 2
    dead.on_dead = OnDeadCall(ValueError(), DeadLettered([Output("dead", None, b"", [])]))
    pool = pools(lambda _record, _began: NO_RESULTS)
    for record in (retried, dead):
        pool.hand(deque([record]))
    assert len(ended(pool, 2)) == 2
    eventually(lambda: not pool.has_work, timeout_s=WAIT_S)
    assert not any(pool.completed.wait_times())


def test_durations_that_nobody_reads_do_not_pile_up(loops: Pools) -> None:
    """A replay has no scoreboard that shows them."""

    async def work(_record: Record, _began: float) -> Outcome:
        return NO_RESULTS

    pool = loops(work)
    pool.hand(deque(taken_ago(record, 5.0) for record in a_run(*range(4))))
    assert len(ended(pool, 4)) == 4
    pool.reclaim(0.0)
    for durations in pool._times:
        assert durations._later == []
        assert sum(durations.counts) == 4


def test_a_record_that_failed_always_holds_its_row_back(threads: Pools) -> None:
    """The poll thread may have judged it, before this thread comes to the next of its lane."""
    begun: list[int] = []

    def work(record: Record, _began: float) -> Outcome:
        begun.append(record.offset)
        return Failed(ValueError("no")) if record.offset == 1 else NO_RESULTS

    pool = threads(work)
    pool.completed = queue = Snatching()
    partition = a_partition()
    row = [a_record(partition, offset, lane=b"a") for offset in range(4)]
    other = a_record(partition, 4, lane=b"b")
    pool.hand(deque([*row, other]))
    ended: list[Record] = []

    def all_ended() -> bool:
        ended.extend(queue.take(0.0))
        return len(ended) == 5

    eventually(all_ended, timeout_s=WAIT_S)
    assert (begun, queue.failed) == ([0, 1, 4], [1])
    assert [row[2].outcome, row[3].outcome] == [NOT_ATTEMPTED] * 2


def test_a_failure_in_merged_lanes_holds_its_partition_back(threads: Pools) -> None:
    """A later record of its lane may be anywhere among those of its partition."""
    begun: list[tuple[int, int]] = []

    def work(record: Record, _began: float) -> Outcome:
        begun.append((record.partition.number, record.offset))
        return Failed(ValueError("no")) if begun[-1] == (0, 1) else NO_RESULTS

    pool = threads(work)
    one, other = a_partition(number=0), a_partition(number=1)
    row = Row(a_record(one, offset, lane=b"%d" % (offset % 2)) for offset in range(4))
    row += [a_record(other, offset, lane=b"1") for offset in range(2)]
    records = list(row)
    pool.hand(row)
    assert len(ended(pool, 6)) == 6
    assert begun == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [record.outcome for record in records[2:4]] == [NOT_ATTEMPTED] * 2


def test_one_thread_is_enough_for_cheap_handlers_until_one_takes_long(threads: Pools) -> None:
    gates = Gates()
    gates.hold(0)
    pool = threads(gates.work, 4)
    assert not pool.one_is_enough, "nothing is known yet"
    later, looks = count(1), count(1.0)

    def is_known() -> bool:
        pool.feed(lambda most: a_run(*islice(later, most)))
        pool.completed.take(0.0)
        return bool(pool.one_is_enough)

    eventually(is_known, timeout_s=WAIT_S, every_s=0.0)
    pool.hand(a_run(0))
    gates.until_begun(0)

    def is_stuck() -> bool:
        pool.reclaim(next(looks))
        return not pool.one_is_enough

    eventually(is_stuck, timeout_s=WAIT_S)
    gates.release(0)
