"""Real pools under the poll loop: what begins and what does not, and what it waits for."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.batch import BatchFailed, batch
from kworker.core.claim import ClaimDone
from kworker.core.outcome import Reject, Unavailable
from kworker.instance.scoreboard import Scoreboard, Slot
from kworker.message import Message
from kworker.worker.handlers.async_pool import AsyncPool
from kworker.worker.handlers.batch_pool import BatchPool, LoopRunners, ThreadRunners
from kworker.worker.handlers.batch_run import make_async_run_batch, make_run_batch
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.invocation import make_async_steps, make_invoke
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.signature import read_signature
from kworker.worker.handlers.thread_pool import ThreadPool
from kworker.worker.topic_limits import TopicLimits
from tests.support import claims_rig
from tests.support.poll_loop_rig import DEAD, GROUP, HOLD, RESULTS, Bench
from tests.support.waiting import eventually

WAIT_S = 20.0
THREADS, HANDS, SIZE, RECORDS = 4, 100, 4, 40
MANY = 1_000  # in each of two partitions: most are handed over in rows
Place = tuple[int, int]


class Work:
    """Handlers that begin when the pool comes to them, and end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[Place] = []
        self.told: list[int] = []
        self.told_after: list[tuple[Place, Place]] = []  # and what had begun last of its partition
        self.answer: Callable[[Message], Any] = lambda _: None
        self._gate = threading.Event()

    def release(self) -> None:
        self._gate.set()

    def one(self, message: Message) -> Any:
        self.begun.append((message.partition, message.offset))
        assert self._gate.wait(WAIT_S)
        return self.answer(message)

    async def one_blocking_its_loop(self, message: Message) -> Any:
        return self.one(message)

    def many(self, messages: list[Message]) -> list[Any]:
        self.begun += [(message.partition, message.offset) for message in messages]
        assert self._gate.wait(WAIT_S)
        return [self.answer(message) for message in messages]

    async def many_aside(self, messages: list[Message]) -> list[Any]:
        return await asyncio.to_thread(self.many, messages)

    def dead(self, message: Message, _error: BaseException) -> None:
        self.told.append(message.offset)
        begun = [at for at in self.begun if at[0] == message.partition]
        self.told_after.append(((message.partition, message.offset), begun[-1]))

    async def dead_aside(self, message: Message, error: BaseException) -> None:
        await asyncio.sleep(0)  # the others begin
        self.dead(message, error)


def threads(work_: Work, slot: Slot, encoder: ResultEncoder, _loop: HandlerLoop) -> Any:
    handlers = Handlers(Handler("h", work_.one, is_async=False, dead=work_.dead), {})
    hands = [slot.hand(i) for i in range(THREADS)]
    return ThreadPool(make_invoke(handlers, encoder, 300.0), hands)


def loop(work_: Work, slot: Slot, encoder: ResultEncoder, loop: HandlerLoop) -> Any:
    handlers = Handlers(
        Handler("h", work_.one_blocking_its_loop, is_async=True, dead=work_.dead_aside), {}
    )
    hands = [slot.hand(i) for i in range(HANDS)]
    return AsyncPool(make_async_steps(handlers, encoder, 300.0), hands, loop)


def batches(work_: Work, slot: Slot, encoder: ResultEncoder, _loop: HandlerLoop) -> Any:
    made = (_batch_handlers(work_.many, work_, is_async=False), encoder, 300.0, 4)
    crew = ThreadRunners(make_run_batch(*made), 2)
    return BatchPool(made[0], crew, [slot.hand(i) for i in range(HANDS)])


def async_batches(work_: Work, slot: Slot, encoder: ResultEncoder, loop: HandlerLoop) -> Any:
    made = (_batch_handlers(work_.many_aside, work_, is_async=True), encoder, 300.0, 4)
    crew = LoopRunners(make_async_run_batch(*made), 2, loop)
    return BatchPool(made[0], crew, [slot.hand(i) for i in range(HANDS)])


def _batch_handlers(function: Any, work_: Work, *, is_async: bool) -> Handlers:
    def form(what: list[Message]) -> Any:
        return function(what)

    form.__annotations__ = {"what": list[Message]}
    called = read_signature("h", batch(size=SIZE, wait="1h")(form)).batching_of(form)
    return Handlers(Handler("h", form, is_async, None, work_.dead, called), {})


KINDS = {"threads": threads, "loop": loop, "batches": batches, "async batches": async_batches}
Running = Callable[..., tuple[Bench, Work]]


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    yield from _running(KINDS[request.param])


@pytest.fixture
def threaded(request: pytest.FixtureRequest) -> Iterator[Running]:
    yield from _running(threads)


@pytest.fixture
def batched(request: pytest.FixtureRequest) -> Iterator[Running]:
    yield from _running(batches)


def _running(kind: Callable[[Work, Slot, ResultEncoder, HandlerLoop], Any]) -> Iterator[Running]:
    """Makes a worker over a topic of two partitions.

    Each record has a key of its own, unless a `key` or a number of `keys` is given.
    """
    made: list[tuple[Any, Work, HandlerLoop]] = []

    def make(
        records: int = RECORDS, key: bytes | None = None, keys: int = RECORDS * MANY, **options: Any
    ) -> tuple[Bench, Work]:
        work_ = Work()
        kafka = MemoryKafka(lambda: 1_700_000_000.0)
        kafka.create("foo", 2)
        kafka.create(RESULTS)
        for i in range(records):
            kafka.append("foo", i % 2, value=b"%d" % i, key=key or b"%d" % (i % keys))
        facts = TopicLimits([RESULTS])
        facts.update({RESULTS: 1 << 20}, {RESULTS: 1})
        slot = Scoreboard(1, HANDS).slots[0]
        own_loop = HandlerLoop()
        own_loop.start()
        pool = kind(work_, slot, ResultEncoder(RESULTS, [], facts), own_loop)
        made.append((pool, work_, own_loop))
        bench = Bench(kafka, ["foo"], pool=pool, **options)
        pool.start()
        bench.poll_loop.dispatch.start()
        return bench, work_

    yield make
    for pool, work_, own_loop in made:
        work_.release()
        pool.stop()
        own_loop.end()
        own_loop.join(WAIT_S)


def filled(bench: Bench, work_: Work) -> None:
    """Turns until the pool has more than it has begun."""
    out = bench.poll_loop.dispatch._in_pool

    def more_than_begun() -> bool:
        bench.turn()
        return bool(work_.begun) and len(out) > len(work_.begun)

    eventually(more_than_begun, timeout_s=WAIT_S)
    bench.turn(20)  # whatever the pool begins by itself, it has


def drained(bench: Bench) -> None:
    def idle() -> bool:
        bench.turn()
        return bench.poll_loop.idle

    eventually(idle, timeout_s=WAIT_S, every_s=0.001, what="the drain ends")


def test_the_duration_of_each_call_and_each_wait_is_counted(running: Running) -> None:
    bench, work_ = running()
    work_.release()

    def settled() -> bool:
        bench.turn()
        return bench.poll_loop.settlement.counters.done == RECORDS

    eventually(settled, timeout_s=WAIT_S)
    bench.turn()  # the pool of batches collects the last one
    *counts, sum_us = bench.poll_loop.dispatch.run_times
    calls = RECORDS // SIZE if isinstance(bench.poll_loop.dispatch._pool, BatchPool) else RECORDS
    assert sum(counts) == calls
    assert 0 < sum_us < WAIT_S * 1e6
    *waits, waited_us = bench.poll_loop.dispatch.wait_times
    assert sum(waits) == RECORDS
    assert 0 < waited_us < RECORDS * WAIT_S * 1e6


def test_a_drain_begins_no_further_handler(running: Running) -> None:
    """The pool must not begin the next run of its queue during a drain."""
    bench, work_ = running()
    filled(bench, work_)
    bench.poll_loop.stop_taking()
    before = list(work_.begun)
    assert len(before) < bench.poll_loop.stats().consumed
    work_.release()
    drained(bench)
    assert work_.begun == before
    known = bench.poll_loop.assignment.partitions
    settled = [at for at in before if known["foo", at[0]].ledger.is_done(at[1])]
    assert settled == before
    assert bench.poll_loop.in_hand == bench.poll_loop.stats().consumed - len(before)


def test_a_revoke_stops_unstarted_records_of_its_partition_only(running: Running) -> None:
    """What does not begin here is the next owner's at once, and waits for nothing."""
    bench, work_ = running()
    filled(bench, work_)
    gone = bench.poll_loop.assignment.partitions["foo", 1]
    over = threading.Event()

    def release() -> None:
        eventually(lambda: bench.poll_loop.dispatch.shedding or over.is_set())
        work_.release()

    releasing = threading.Thread(target=release)
    releasing.start()
    before = [at for at in work_.begun if at[0] == 1]
    bench.poll_loop.assignment.revoked([("foo", 1)])
    over.set()
    releasing.join()
    assert gone.in_flight == 0
    stays = bench.poll_loop.assignment.partitions["foo", 0]

    def all_of_the_other() -> bool:
        bench.turn()
        bench.clock.now += 3600  # for what waits to be a batch
        return stays.ledger.unsettled == 0 and stays.ledger.end == RECORDS // 2

    eventually(all_of_the_other, timeout_s=WAIT_S, every_s=0.001)
    assert [at for at in work_.begun if at[0] == 1] == before
    others = sorted(at for at in work_.begun if at[0] == 0)
    assert others == [(0, offset) for offset in range(RECORDS // 2)]


def test_a_record_taken_back_from_the_pool_releases_its_claim(
    threaded: Running, tmp_path: Path
) -> None:
    """Else its next owner would wait for a lease."""
    store = claims_rig.Bench(tmp_path)
    claimant = store.worker().claimant
    bench, work_ = threaded(claims=claimant)
    filled(bench, work_)
    bench.poll_loop.stop_taking()
    begun = {partition + 2 * offset for partition, offset in work_.begun}
    work_.release()
    drained(bench)
    assert claimant.drain(time.monotonic() + WAIT_S)
    states = [store.state(str(i)) for i in range(RECORDS)]
    assert states == [ClaimDone() if i in begun else None for i in range(RECORDS)]


@pytest.mark.parametrize("error", [ValueError("again"), Unavailable("billing")])
def test_no_retry_begins_during_a_drain(threaded: Running, error: Exception) -> None:
    bench, work_ = threaded(retry=HOLD)
    filled(bench, work_)
    bench.poll_loop.stop_taking()
    before = list(work_.begun)
    failing = before[0]

    def answer(message: Message) -> None:
        if (message.partition, message.offset) == failing:
            raise error

    work_.answer = answer
    work_.release()
    drained(bench)
    assert work_.begun == before


def test_the_rest_of_a_failed_batch_does_not_begin_in_a_drain(batched: Running) -> None:
    """It was not attempted, and is delivered again."""
    bench, work_ = batched()
    filled(bench, work_)
    bench.poll_loop.stop_taking()
    before = list(work_.begun)

    def answer(_: Message) -> None:
        raise BatchFailed(1, ValueError("bravo"))

    work_.answer = answer
    work_.release()
    drained(bench)
    assert work_.begun == before


def test_a_final_failure_in_a_drain_is_told_to_its_handler(threaded: Running) -> None:
    """Its handler has ended, and its dead letter is on its way."""
    bench, work_ = threaded(tells_dead=True)
    filled(bench, work_)
    failing = [offset for _, offset in work_.begun]

    def answer(_: Message) -> None:
        raise Reject("no")

    work_.answer = answer
    work_.release()
    bench.poll_loop.stop_taking()
    drained(bench)
    assert sorted(work_.told) == sorted(failing)
    assert len(bench.kafka.records(DEAD)) == len(failing)
    assert bench.kafka.committed(GROUP)


def test_more_dead_letters_than_threads_are_all_told(running: Running) -> None:
    """Else the free hands fall below zero, and the pool stands still for ever."""
    bench, work_ = running(records=3 * HANDS, max_age_s=60.0, tells_dead=True)
    end = {("foo", 0): 3 * HANDS // 2, ("foo", 1): 3 * HANDS // 2}

    def all_settled() -> bool:
        bench.turn()
        return bench.kafka.committed(GROUP) == end

    eventually(all_settled, timeout_s=WAIT_S, every_s=0.001)
    assert len(work_.told) == len(bench.kafka.records(DEAD)) == 3 * HANDS
    assert work_.begun == []


def all_done(bench: Bench, records: int) -> None:
    def done() -> bool:
        bench.turn()
        counters = bench.poll_loop.settlement.counters
        return counters.done + counters.dead == records

    eventually(done, timeout_s=WAIT_S, every_s=0.0)


def of_partition(work_: Work, number: int) -> list[int]:
    return [offset for partition, offset in work_.begun if partition == number]


@pytest.mark.parametrize(("ordering", "key"), [("key", b"one"), ("partition", None)])
def test_cheap_records_of_one_lane_are_handed_over_in_rows(
    threaded: Running, ordering: str, key: bytes | None
) -> None:
    """One by one, each would cost two changes of threads."""
    bench, work_ = threaded(2 * MANY, key, ordering=ordering)
    work_.release()
    all_done(bench, 2 * MANY)
    assert of_partition(work_, 0) == of_partition(work_, 1) == list(range(MANY))
    assert bench.poll_loop.dispatch._pool._handed < MANY


@pytest.mark.parametrize("error", [ValueError("again"), Unavailable("billing")])
def test_no_record_overtakes_one_of_its_row_that_is_held(
    threaded: Running, error: Exception
) -> None:
    bench, work_ = threaded(2 * MANY, b"one", retry=HOLD)
    failed: set[Place] = set()

    def answer(message: Message) -> None:
        at = message.partition, message.offset
        if message.offset % 90 == 89 and at not in failed:
            failed.add(at)
            raise error

    work_.answer = answer
    work_.release()
    all_done(bench, 2 * MANY)
    twice = [offset for offset in range(MANY) for _ in range(2 if offset % 90 == 89 else 1)]
    assert of_partition(work_, 0) == of_partition(work_, 1) == twice
    assert (bench.poll_loop.flow.records, bench.poll_loop.flow.held) == (0, 0)


def test_a_final_failure_is_told_before_the_next_of_its_row_begins(threaded: Running) -> None:
    bench, work_ = threaded(2 * MANY, b"one", tells_dead=True)

    def answer(message: Message) -> None:
        if message.offset % 90 == 89:
            raise Reject("no")

    work_.answer = answer
    work_.release()
    all_done(bench, 2 * MANY)
    assert of_partition(work_, 0) == of_partition(work_, 1) == list(range(MANY))
    assert len(work_.told_after) == 2 * (MANY // 90)
    assert all(told == begun for told, begun in work_.told_after)


def test_a_revoke_gives_the_rest_of_a_row_away(threaded: Running) -> None:
    """What a thread has of a lane, and has not begun, is the next owner's."""
    bench, work_ = threaded(2 * MANY, b"one")
    stop_at, waiting, go_on = (0, MANY // 2), threading.Event(), threading.Event()

    def answer(message: Message) -> None:
        if (message.partition, message.offset) == stop_at:
            waiting.set()
            assert go_on.wait(WAIT_S)

    work_.answer = answer
    work_.release()

    def stopped() -> bool:
        bench.turn()
        return waiting.is_set()

    eventually(stopped, timeout_s=WAIT_S, every_s=0.0)
    gone = bench.poll_loop.assignment.partitions["foo", 0]
    over = threading.Event()

    def release() -> None:
        eventually(lambda: bench.poll_loop.dispatch.shedding or over.is_set())
        go_on.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    bench.poll_loop.assignment.revoked([("foo", 0)])
    over.set()
    releasing.join()
    assert gone.in_flight == 0
    assert of_partition(work_, 0) == list(range(MANY // 2 + 1))
    assert bench.kafka.committed(GROUP)["foo", 0] == MANY // 2 + 1


KEYS = 7  # an odd number, so that both partitions have records of each


def merging(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[list[None], list[None]]:
    """Lists to which each merge of all lanes, and each split, adds an entry."""
    lanes = bench.poll_loop.dispatch._lanes
    merges: list[None] = []
    splits: list[None] = []
    merge, split = lanes._merge, lanes._split

    def note_merge() -> None:
        merges.append(None)
        merge()

    def note_split() -> None:
        splits.extend([None] * lanes.merged)
        split()

    monkeypatch.setattr(lanes, "_merge", note_merge)
    monkeypatch.setattr(lanes, "_split", note_split)
    return merges, splits


def in_order_of_keys(begun: list[Place], *, runs_twice: Callable[[int], bool]) -> None:
    """Each record of a key begins after the runs of all that were before it."""
    for number in (0, 1):
        for key in range(KEYS):
            mine = [o for p, o in begun if p == number and (2 * o + number) % KEYS == key]
            own = [offset for offset in range(MANY) if (2 * offset + number) % KEYS == key]
            assert mine == [offset for offset in own for _ in range(1 + runs_twice(offset))]


def test_cheap_records_run_in_the_order_of_their_partition(
    threaded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, work_ = threaded(2 * MANY, keys=KEYS)
    merges, splits = merging(bench, monkeypatch)
    work_.release()
    all_done(bench, 2 * MANY)
    assert (len(merges), splits) == (1, [])
    in_order_of_keys(work_.begun, runs_twice=lambda _: False)
    assert bench.poll_loop.in_hand == 0


@pytest.mark.parametrize("error", [ValueError("again"), Unavailable("billing"), Reject("no")])
def test_no_record_overtakes_a_failed_one_in_merged_lanes(
    threaded: Running, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are split before it waits for another run, and merged again when all is well."""
    monkeypatch.setattr("kworker.core.lanes._MERGE_AFTER_S", 0.0)
    bench, work_ = threaded(2 * MANY, keys=KEYS, retry=HOLD)
    merges, splits = merging(bench, monkeypatch)
    failed: set[Place] = set()

    def fails(offset: int) -> bool:
        return offset % 90 == 89

    def answer(message: Message) -> None:
        at = message.partition, message.offset
        if fails(message.offset) and at not in failed:
            failed.add(at)
            raise error

    work_.answer = answer
    work_.release()
    all_done(bench, 2 * MANY)
    again = not isinstance(error, Reject)
    in_order_of_keys(work_.begun, runs_twice=lambda offset: again and fails(offset))
    assert len(merges) > 1
    assert splits
    assert (bench.poll_loop.flow.records, bench.poll_loop.flow.held) == (0, 0)


def test_a_slow_record_in_merged_lanes_delays_no_other_key(
    threaded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, work_ = threaded(2 * MANY, keys=KEYS)
    merges, splits = merging(bench, monkeypatch)
    stop_at, go_on = (0, MANY // 2), threading.Event()
    behind = len([o for o in range(stop_at[1], MANY) if (o - stop_at[1]) % KEYS == 0])

    def answer(message: Message) -> None:
        if (message.partition, message.offset) == stop_at:
            assert merges
            assert go_on.wait(WAIT_S)

    work_.answer = answer
    work_.release()
    all_done(bench, 2 * MANY - behind)
    assert splits
    go_on.set()
    all_done(bench, 2 * MANY)
    in_order_of_keys(work_.begun, runs_twice=lambda _: False)


def test_a_revoke_in_merged_lanes_gives_away_what_has_not_begun(
    threaded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, work_ = threaded(2 * MANY, keys=KEYS)
    merges, _ = merging(bench, monkeypatch)
    work_.release()

    def some_done() -> bool:
        bench.turn()
        return bool(merges) and bench.poll_loop.settlement.counters.done > MANY // 2

    eventually(some_done, timeout_s=WAIT_S, every_s=0.0)
    bench.poll_loop.assignment.revoked([("foo", 0)])
    begun = of_partition(work_, 0)
    first = min({*range(MANY)} - {*begun}, default=MANY)
    assert bench.kafka.committed(GROUP)["foo", 0] == first

    def at_rest() -> bool:
        bench.turn()
        return bench.poll_loop.in_hand == 0

    eventually(at_rest, timeout_s=WAIT_S, every_s=0.0)
    for number in (0, 1):
        ran = of_partition(work_, number)
        work_.begun += [(number, offset) for offset in range(MANY) if offset not in ran]
    in_order_of_keys(work_.begun, runs_twice=lambda _: False)


def test_lanes_are_not_merged_where_records_are_claimed(
    threaded: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record that is claimed must be the first of its lane."""
    store = claims_rig.Bench(tmp_path)
    claimant = store.worker(find_id=lambda record: str(record.source)).claimant
    bench, work_ = threaded(2 * MANY, keys=KEYS, claims=claimant)
    merges, _ = merging(bench, monkeypatch)
    work_.release()
    all_done(bench, 2 * MANY)
    assert merges == []
    in_order_of_keys(work_.begun, runs_twice=lambda _: False)


def test_a_slow_record_with_nothing_behind_it_delays_no_other_key(
    threaded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last of its run, so that nothing is taken back, and nothing else is ready."""
    bench, work_ = threaded(2 * MANY, keys=KEYS)
    merging(bench, monkeypatch)
    work_.release()
    all_done(bench, 2 * MANY)
    assert bench.poll_loop.dispatch._lanes.merged
    go_on = threading.Event()

    def answer(message: Message) -> None:
        if message.key == b"slow":
            assert go_on.wait(WAIT_S)

    work_.answer = answer
    bench.kafka.append("foo", 0, key=b"slow")

    def begun() -> bool:
        bench.turn()
        return (0, MANY) in work_.begun

    eventually(begun, timeout_s=WAIT_S, every_s=0.0)
    bench.kafka.append("foo", 0, key=b"other")
    all_done(bench, 2 * MANY + 1)
    go_on.set()
    all_done(bench, 2 * MANY + 2)
