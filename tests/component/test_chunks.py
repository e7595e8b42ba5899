"""Records in chunks, in a real pool under the poll loop: nothing is lost, and no key overtakes."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.headers import Source
from kworker.core.message import Headers, RawMessage
from kworker.core.outcome import Reject, Result, Retry
from kworker.core.record import Record
from kworker.instance.rejections import Rejections
from kworker.instance.scoreboard import Scoreboard
from kworker.message import Message
from kworker.worker import chunks, intake
from kworker.worker.handlers.chunk_run import ChunkEnd, ChunkRun
from kworker.worker.handlers.invocation import make_invoke
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.thread_pool import ThreadPool
from kworker.worker.topic_limits import TopicLimits
from tests.support.poll_loop_rig import DEAD, GROUP, OWN, RESULTS, Bench, retry_topic
from tests.support.waiting import eventually

WAIT_S = 20.0
RECORDS, KEYS, THREADS = 400, 7, 3
IN_FLIGHT = 64  # so that most are taken when others have ended
PLAIN, EMPTY, AGAIN, DIES, SLOW = b"plain", b"empty", b"again", b"dies", b"slow"
RESULT, NULL, TWO, LARGE = b"result", b"null", b"two", b"large"
TRACED, TRACE = b"traced", ("traceparent", b"00-1-2-01")
ADDRESSED, BYTES, ONE = b"addressed", b"bytes", b"one"
OF_RESULT = [("kworker-table", b"t"), ("h", b"1")]
RESULTS_OF = {RESULT: 1, NULL: 1, TRACED: 1, TWO: 2, ADDRESSED: 1, BYTES: 1, ONE: 1}
KEEPS_CHUNK = [PLAIN, EMPTY, *(value for value in RESULTS_OF if value != TWO)]
MOST_BYTES = 10_000
Place = tuple[int, int]


class AlwaysInOrder(ThreadPool):
    """Gets merged lanes from the first record on, as if it knew that handlers are cheap."""

    runs_in_order = True
    one_is_enough = True
    meanwhile: Callable[[], None] | None = None  # before all that has not begun is taken back, once

    def reclaim(self, now: float) -> list[Record]:
        if (meanwhile := self.meanwhile) is None:
            return super().reclaim(now)
        self.meanwhile = None
        meanwhile()
        return self.withdraw(())


class Work:
    """A handler that does what the value says. It counts its runs, and those of a key at a time."""

    def __init__(self) -> None:
        self.runs: Counter[Place] = Counter()
        self.order: dict[tuple[int, bytes | None], list[int]] = {}
        self.overlaps: list[tuple[int, bytes | None]] = []
        self._running: set[tuple[int, bytes | None]] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.waits_at: Place | None = None

    def __call__(self, message: Message) -> Any:
        lane, place = (message.partition, message.key), (message.partition, message.offset)
        if lane in self._running:
            self.overlaps.append(lane)
        self._running.add(lane)
        self.runs[place] += 1
        self.order.setdefault(lane, []).append(message.offset)
        try:
            if place == self.waits_at:
                assert self.gate.wait(WAIT_S)
            return self._end(message)
        finally:
            self._running.discard(lane)

    def go_on_to(self, *place: int) -> None:
        """Lets the record that waits end, and then this one wait."""
        gate, self.gate = self.gate, threading.Event()
        self.waits_at = place[0], place[1]
        gate.set()

    def _end(self, message: Message) -> Any:
        at = [message.partition, message.offset]
        match message.value:
            case b"result":
                return {"at": at}
            case b"traced":
                return {"at": at, "traced": True}
            case b"null":
                return {"at": at, "of": None}
            case b"addressed":
                value = {"at": at, "addressed": True}
                return Result(value, key="mine", headers={"h": "1"}, table="t")
            case b"bytes":
                return orjson.dumps({"at": at})
            case b"one":
                return [None, {"at": at}]
            case b"two":
                return [{"at": at}, {"at": at}]
            case b"large":
                return {"at": at, "text": "x" * MOST_BYTES}
            case b"empty":
                return []
            case b"again":
                raise Retry("later")
            case b"dies":
                raise Reject("never")
            case b"slow":
                time.sleep(0.002)
        return None


class Rig:
    """A worker whose records come in chunks whenever they may."""

    def __init__(
        self,
        values: list[list[bytes]],
        *,
        transactional: str = "",
        in_flight: int = IN_FLIGHT,
        state_dir: Path | None = None,
    ) -> None:
        self.kafka = MemoryKafka(lambda: 1_700_000_000.0)
        self.kafka.create("foo", len(values))
        self.kafka.create(RESULTS, max_message_bytes=MOST_BYTES)
        self.values = values
        for number, own in enumerate(values):
            for offset, value in enumerate(own):
                key = b"%d" % (offset * offset % KEYS)
                headers = self._headers(number, offset, value)
                self.kafka.append("foo", number, value=value, key=key, headers=headers)
        self.work = Work()
        limits = TopicLimits([RESULTS, *OWN])
        limits.update({RESULTS: MOST_BYTES}, {RESULTS: 1})
        encoder = ResultEncoder(RESULTS, [], limits)
        made = (Handlers(Handler("h", self.work, is_async=False), {}), encoder, 300.0)
        slot = Scoreboard(1, THREADS).slots[0]
        hands = [slot.hand(i) for i in range(THREADS)]
        self.chunks_run = 0
        run_chunk = ChunkRun(*made)

        def counted(*arguments: Any) -> ChunkEnd:
            self.chunks_run += 1
            return run_chunk(*arguments)

        self.pool = AlwaysInOrder(make_invoke(*made), hands, counted)
        self.pool.start()
        self.bench = Bench(
            self.kafka,
            ["foo"],
            pool=self.pool,
            transactional=transactional,
            in_flight=in_flight,
            state_dir=state_dir,
        )

    @staticmethod
    def _headers(number: int, offset: int, value: bytes) -> Headers:
        """Those of every second record in the first partition; some are traced."""
        if value == TRACED:
            return (("a", b"1"), TRACE)
        return (("a", b"1"), ("b", None)) if number == 0 and offset % 2 else ()

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        return self.kafka.committed(GROUP)

    def until_done(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Takes turns until all is committed."""
        ends = {("foo", number): len(own) for number, own in enumerate(self.values)}

        def done() -> bool:
            meanwhile()
            self.bench.turn()
            return self.positions == ends and self.bench.poll_loop.idle

        eventually(done, timeout_s=WAIT_S, every_s=0.0)

    def count(self, *values: bytes) -> int:
        return sum(own.count(value) for own in self.values for value in values)

    def check(self) -> None:
        """All that was to be written is, once; and each key ran in its order, one at a time."""
        assert self.chunks_run
        results = Counter(map(place_of, self.kafka.records(RESULTS)))
        assert results == self.results
        assert len(self.kafka.records(DEAD)) == self.count(DIES)
        assert len(self.kafka.records(retry_topic(1.0))) == self.count(AGAIN)
        counters = self.bench.poll_loop.settlement.counters
        assert counters.done == self.count(PLAIN, EMPTY, SLOW, *RESULTS_OF)
        assert (counters.retried, counters.dead) == (self.count(AGAIN), self.count(DIES))
        assert not self.work.overlaps
        assert all(order == sorted(order) for order in self.work.order.values())
        flow = self.bench.poll_loop.flow
        assert (flow.records, flow.bytes, flow.held) == (0, 0, 0)
        assert not self.bench.poll_loop.dispatch.busy
        outbox = self.bench.poll_loop.settlement._outbox
        assert (outbox.pending, outbox._bytes) == (0, 0)

    @property
    def results(self) -> Counter[Place]:
        """How many are to be written, by the places of their sources."""
        return Counter(
            {
                (number, offset): RESULTS_OF[value]
                for number, own in enumerate(self.values)
                for offset, value in enumerate(own)
                if value in RESULTS_OF
            }
        )


def place_of(result: RawMessage) -> Place:
    """The place of the source, which key, value and header tell alike."""
    (name, source), *others = result.headers() or []
    topic, number, offset, timestamp = (source or b"").decode().split("/")
    at = int(number), int(offset)
    assert (name, topic, timestamp) == ("kworker-source", "foo", "1700000000000")
    value = orjson.loads(result.value() or b"")
    assert value["at"] == list(at)
    if "addressed" in value:
        assert (result.key(), others) == (b"mine", OF_RESULT)
        return at
    assert result.key() == b"%d" % (at[1] * at[1] % KEYS)
    assert [each for each in others if each != ("kworker-index", b"1")] == [
        TRACE for _ in range("traced" in value)
    ]
    return at


Rigs = Any


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rigs]:
    monkeypatch.setattr(chunks, "_LEAST", 1)
    monkeypatch.setattr(intake, "_CHUNK_LEAST", 1)
    monkeypatch.setattr(intake, "_CHUNK_MOST", 16)
    made: list[Rig] = []

    def make(values: list[list[bytes]], **options: Any) -> Rig:
        made.append(Rig(values, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.work.gate.set()
        rig.pool.stop()


def some_values(seed: int) -> list[list[bytes]]:
    """Of two partitions. Those that stay in chunks come first, and are the most."""
    chance = random.Random(seed)
    odd = chance.choice([[TWO], [DIES], [AGAIN], [SLOW], [TRACED, EMPTY, AGAIN, DIES, SLOW]])
    usual = chance.choice(
        [[PLAIN], [RESULT], [ADDRESSED], KEEPS_CHUNK, [PLAIN, RESULT, NULL], [*[PLAIN] * 9, RESULT]]
    )
    share = chance.choice([0.003, 0.02, 0.1])

    def value(number: int) -> bytes:
        return chance.choice(odd if number > 2 * IN_FLIGHT and chance.random() < share else usual)

    return [list(map(value, range(RECORDS))) for _ in range(2)]


@pytest.mark.parametrize("transactional", ["", "once"])
@pytest.mark.parametrize("seed", range(12))
def test_every_end_in_a_chunk_is_counted_once(rigs: Rigs, seed: int, transactional: str) -> None:
    rig = rigs(some_values(seed), transactional=transactional)
    rig.until_done()
    assert all(count == 1 for count in rig.work.runs.values())
    assert len(rig.work.runs) == 2 * RECORDS
    rig.check()


@pytest.mark.parametrize("value", KEEPS_CHUNK)
def test_no_more_than_one_result_leaves_a_chunk_whole(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    broken: list[object] = []
    break_up = ChunkRun._broken

    def noted(run: ChunkRun, *arguments: Any) -> Record:
        broken.append(arguments)
        return break_up(run, *arguments)

    monkeypatch.setattr(ChunkRun, "_broken", noted)
    rig = rigs([[value] * RECORDS])
    rig.until_done()
    rig.check()
    assert broken == []


@pytest.mark.parametrize("transactional", ["", "once"])
@pytest.mark.parametrize("seed", range(8))
def test_a_lost_assignment_loses_no_record_of_a_chunk(
    rigs: Rigs, seed: int, transactional: str
) -> None:
    """Records run again, but never beside an earlier run of their key, nor before it."""
    rig = rigs(some_values(seed), transactional=transactional)
    chance = random.Random(seed)
    for _ in range(3):
        for _ in range(chance.randrange(1, 6)):
            rig.bench.turn()
        rig.bench.poll_loop.rejoin("a test")
    rig.until_done()
    assert len(rig.work.runs) == 2 * RECORDS
    assert not rig.work.overlaps
    results = Counter(map(place_of, rig.kafka.records(RESULTS)))
    assert results == rig.results if transactional else results >= rig.results
    eventually(lambda: (rig.bench.turn(), rig.bench.poll_loop.idle)[1], timeout_s=WAIT_S)
    flow = rig.bench.poll_loop.flow
    assert (flow.records, flow.bytes, flow.held) == (0, 0, 0)


@pytest.mark.parametrize("transactional", ["", "once"])
@pytest.mark.parametrize("seed", range(8))
def test_results_of_chunks_outlast_a_broker_that_is_away(
    rigs: Rigs, seed: int, transactional: str
) -> None:
    """They wait in blocks, in part produced; without it, each comes once."""
    rig = rigs(some_values(seed), transactional=transactional)
    chance = random.Random(seed)

    def weather() -> None:
        rig.kafka.writable = chance.random() < 0.3

    rig.until_done(weather)
    assert all(count == 1 for count in rig.work.runs.values())
    rig.check()


def test_a_rejection_goes_when_its_record_was_in_a_block(rigs: Rigs, tmp_path: Path) -> None:
    """It came after the record had ended, and before the result was in Kafka."""
    rig = rigs([[RESULT] * RECORDS], state_dir=tmp_path)
    rig.kafka.writable = False

    def all_have_ended() -> bool:
        rig.bench.turn()
        return len(rig.work.runs) == RECORDS and not rig.bench.poll_loop.flow.records

    eventually(all_have_ended, timeout_s=WAIT_S, every_s=0.0)
    rejections = Rejections(tmp_path)
    rejections.add(Source("foo", 0, RECORDS - 1, 1_700_000_000_000), "me@here")
    rig.bench.poll_loop.dispatch.rejections.refresh(float("inf"))
    rig.kafka.writable = True
    rig.until_done()
    assert rejections.pending() == []
    rig.check()


def test_a_result_that_is_too_large_ends_alone(rigs: Rigs) -> None:
    """The limit is told without measuring each; the others of its chunk are written."""
    values = [RESULT] * RECORDS
    values[200] = values[333] = LARGE
    rig = rigs([values])
    rig.until_done()
    assert len(rig.kafka.records(RESULTS)) == RECORDS - 2
    assert len(rig.kafka.records(DEAD)) == 2


def _until_it_waits(rig: Rig) -> None:
    def waits() -> bool:
        rig.bench.turn()
        return rig.work.runs[rig.work.waits_at] == 1

    eventually(waits, timeout_s=WAIT_S, every_s=0.0)


@pytest.mark.parametrize("value", [PLAIN, RESULT, ADDRESSED])
def test_a_slow_record_in_a_chunk_holds_only_its_key(rigs: Rigs, value: bytes) -> None:
    """Its result is as it would be if its chunk was not broken up meanwhile."""
    rig = rigs([[value] * RECORDS], in_flight=150)
    rig.work.gate.clear()
    rig.work.waits_at = 0, 200
    held = [n for n in range(200, RECORDS) if n * n % KEYS == 200 * 200 % KEYS]
    _until_it_waits(rig)

    def others_ran() -> bool:
        rig.bench.turn()
        return len(rig.work.runs) == RECORDS - len(held) + 1

    eventually(others_ran, timeout_s=WAIT_S, every_s=0.0)
    assert rig.positions["foo", 0] == 200
    assert [n for n in held if rig.work.runs[0, n]] == [200]
    rig.work.gate.set()
    rig.until_done()
    assert all(count == 1 for count in rig.work.runs.values())
    rig.check()


def test_what_ends_while_a_chunk_is_taken_back_is_counted(rigs: Rigs) -> None:
    """It ended after this turn's look at it: the next turn judges it."""
    rig = rigs([[PLAIN] * RECORDS])
    work, dispatch = rig.work, rig.bench.poll_loop.dispatch
    work.gate.clear()
    work.waits_at = 0, 200
    _until_it_waits(rig)
    while (at := work.waits_at)[1] in [each.columns.offsets[-1] for each in dispatch._chunks._out]:
        work.go_on_to(0, at[1] + 1)
        _until_it_waits(rig)

    def meanwhile() -> None:
        work.go_on_to(0, at[1] + 1)
        eventually(lambda: work.runs[work.waits_at] == 1, timeout_s=WAIT_S)

    rig.pool.meanwhile = meanwhile
    rig.bench.turn()
    assert [part.columns.offsets for part in dispatch._parts] == [[at[1]]]
    work.gate.set()
    rig.until_done()
    rig.check()


def test_a_drain_runs_nothing_more_of_a_chunk(rigs: Rigs) -> None:
    rig = rigs([[PLAIN] * RECORDS])
    rig.work.gate.clear()
    rig.work.waits_at = 0, 200
    _until_it_waits(rig)
    rig.bench.poll_loop.stop_taking()
    ran = len(rig.work.runs)
    rig.work.gate.set()

    def idle() -> bool:
        rig.bench.turn()
        return rig.bench.poll_loop.idle

    eventually(idle, timeout_s=WAIT_S, every_s=0.001)
    assert len(rig.work.runs) == ran
    assert rig.positions["foo", 0] == ran == 201


def test_a_partition_that_returns_uses_the_run_that_went_on(rigs: Rigs) -> None:
    """The record that ran in a chunk when its partition was lost is not run again."""
    rig = rigs([[PLAIN] * RECORDS])
    rig.work.gate.clear()
    rig.work.waits_at = 0, 200
    _until_it_waits(rig)
    rig.bench.poll_loop.rejoin("a test")
    rig.bench.turn(4)
    rig.work.gate.set()
    rig.until_done()
    assert rig.work.runs[0, 200] == 1
    assert not rig.work.overlaps
