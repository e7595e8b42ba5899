"""What becomes of records that fail: the poll loop, its triage and its letters over the twin."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core import headers as names
from kworker.core.failure import Described, Failure
from kworker.core.headers import Envelope, Source
from kworker.core.message import Fields, Headers
from kworker.core.outcome import Failed, Reject, Retry, Snooze, Unavailable
from kworker.core.record import Partition, Record
from kworker.instance.crash_journal import CrashJournal
from kworker.instance.rejections import Rejections
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.idempotency.claim_table import ClaimAnswers
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.dead_letter_limit import DeadLetterLimitPolicy
from kworker.worker.retries.policy import RetryPolicy
from kworker.worker.topic_limits import TopicLimits
from tests.support.delayed import Delays
from tests.support.hostile_errors import (
    HOSTILE,
    Bare,
    BareReject,
    BareSnooze,
    BareUnavailable,
    Mute,
    Nameless,
)
from tests.support.poll_loop_rig import DEAD, GROUP, HOLD, REQUEUE, RESULTS, Bench, retry_topic
from tests.support.records import unheard
from tests.support.supervisor_driver import read_config

STAMP = 1_700_000_000_000
FINAL = RetryPolicy(())


@pytest.fixture
def kafka() -> MemoryKafka:
    """A topic of two partitions."""
    kafka = MemoryKafka(lambda: STAMP / 1000)
    kafka.create("foo", 2)
    kafka.create(RESULTS)
    kafka.create(REQUEUE, 2)
    return kafka


def bench_of(kafka: MemoryKafka, *words: bytes, partition: int = 0, **options: object) -> Bench:
    """A worker that has begun with these, each of its own key."""
    for word in words:
        kafka.append("foo", partition, value=word, key=word)
    bench = Bench(kafka, ["foo", REQUEUE], **options)  # type: ignore[arg-type]
    bench.turn(2)
    return bench


def fail(bench: Bench, value: bytes, error: BaseException | None = None) -> None:
    bench.pool.end(bench.holds(value), Failed(error or ValueError("no")))


def told(raw: Fields) -> dict[str, bytes | None]:
    return dict(raw.headers() or ())


def committed(kafka: MemoryKafka, partition: int = 0) -> int | None:
    return kafka.committed(GROUP).get(("foo", partition))


# -- to another run -------------------------------------------------------------------


def test_a_failed_record_moves_to_a_delay_topic_and_is_committed(kafka: MemoryKafka) -> None:
    """A failed record gives up its order and holds back no other."""
    bench = bench_of(kafka, b"alpha", b"bravo", partition=1)
    fail(bench, b"alpha")
    bench.end(b"bravo")
    bench.turn(3)
    [raw] = kafka.records(retry_topic(1.0))
    assert (raw.key(), raw.value(), raw.partition()) == (b"alpha", b"alpha", 1)
    headers = told(raw)
    assert headers[names.SOURCE] == b"foo/1/0/%d" % STAMP
    assert headers[names.ATTEMPT] == b"2"
    assert headers[names.ERROR] == b"ValueError: no"
    assert int(headers[names.DUE] or 0) >= 1000 * 1000
    assert committed(kafka, 1) == 2
    assert (
        bench.poll_loop.settlement.counters.retried,
        bench.poll_loop.settlement.counters.done,
    ) == (
        1,
        1,
    )


def test_nothing_is_committed_before_the_delay_topic_has_it(kafka: MemoryKafka) -> None:
    """A crash between the two would lose the retry."""
    bench = bench_of(kafka, b"alpha")
    kafka.writable = False
    fail(bench, b"alpha")
    bench.turn(5)
    assert committed(kafka) in (None, 0)
    kafka.writable = True
    bench.turn(3)
    assert committed(kafka) == 1


def test_a_record_is_retried_unchanged_until_attempts_run_out(kafka: MemoryKafka) -> None:
    """n delays, n + 1 runs; position, key, value and headers are the source's at each."""
    own: Headers = (("trace", b"1"), ("kworker-mine", b"2"), ("trace", None))
    kafka.append("foo", 1, value=b"alpha", key=b"k", headers=own)
    bench, delays = bench_of(kafka), Delays(kafka)
    seen = []
    for _ in range(3):
        record = bench.holds(b"alpha")
        seen.append((record.source, record.attempt, record.raw.key(), tuple(record.raw.headers())))
        fail(bench, b"alpha")
        bench.turn(2)
        delays.forward()
        bench.turn(2)
    source = Source("foo", 1, 0, STAMP)
    assert seen == [(source, attempt, b"k", own) for attempt in (1, 2, 3)]
    assert not bench.in_hand()
    [dead] = kafka.records(DEAD)
    assert told(dead)[names.REASON] == b"exhausted"
    assert told(dead)[names.ATTEMPT] == b"3"
    assert bench.poll_loop.settlement.counters.dead == 1


@pytest.mark.parametrize(
    ("error", "topic", "attempt"),
    [
        (Retry("busy", after="30s"), retry_topic(10.0), b"2"),
        (Retry("busy", after="200ms"), retry_topic(1.0), b"2"),
        (Retry("busy"), retry_topic(1.0), b"2"),
        (Snooze("10s"), retry_topic(10.0), b"1"),
        # Subclasses without their parent's __init__: an AttributeError ended the worker.
        (Bare(3), retry_topic(1.0), b"2"),
        (BareSnooze(), retry_topic(1.0), b"1"),
        (BareReject(4), DEAD, b"1"),
    ],
)
def test_a_handlers_error_says_where_its_record_goes(
    kafka: MemoryKafka, error: BaseException, topic: str, attempt: bytes
) -> None:
    """The largest delay that is not too long; a snooze is no attempt."""
    bench = bench_of(kafka, b"alpha")
    fail(bench, b"alpha", error)
    bench.turn(2)
    [raw] = kafka.records(topic)
    assert told(raw)[names.ATTEMPT] == attempt


def test_a_retried_record_runs_in_the_lane_of_its_source(kafka: MemoryKafka) -> None:
    """Records of a key in a partition run one at a time, whichever topic they come from."""
    bench = bench_of(kafka, b"alpha")
    fail(bench, b"alpha")
    bench.turn(2)
    kafka.append("foo", 0, value=b"alpha-2", key=b"alpha")
    bench.turn(2)
    Delays(kafka).forward()
    bench.turn(2)
    assert bench.in_hand() == [b"alpha-2"]
    bench.end(b"alpha-2")
    bench.turn()
    assert bench.in_hand() == [b"alpha"]


def test_a_retried_record_runs_though_its_source_is_elsewhere(
    kafka: MemoryKafka,
) -> None:
    """Where topics differ in partitions, requeue and source part; keys keep their order there."""
    bench = bench_of(kafka)
    for offset in (5, 6):
        headers = ((names.SOURCE, b"foo/7/%d/1" % offset), (names.ATTEMPT, b"2"))
        kafka.append(REQUEUE, 1, value=b"again-%d" % offset, key=b"k", headers=headers)
    bench.turn(2)
    assert bench.in_hand() == [b"again-5"]
    bench.end(b"again-5")
    bench.turn()
    assert bench.in_hand() == [b"again-6"]


def test_a_redriven_failure_of_a_replay_fails_as_one_again(kafka: MemoryKafka) -> None:
    """Its retries return to the worker, and its dead letter may be redriven once more."""
    headers = ((names.SOURCE, b"foo/0/9/1"), (names.REDRIVEN, b"1"), (names.REPLAY, b"0a1b2c"))
    for key in (b"retried", b"rejected"):
        kafka.append(REQUEUE, 0, value=key, key=key, headers=headers)
    bench = bench_of(kafka, retry=RetryPolicy((1.0,)))
    bench.turn(2)
    fail(bench, b"retried")
    bench.pool.end(bench.holds(b"rejected"), Failed(Reject("no")))
    bench.turn(3)
    [retry], [dead] = kafka.records(retry_topic(1.0)), kafka.records(DEAD)
    assert told(retry)[names.REPLAY] == told(dead)[names.REPLAY] == b"0a1b2c"


# -- to the dead ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Reject("unknown customer"), b"rejected"),
        (KeyError("x"), b"rejected"),  # by `never`, as a LookupError
        (Described(Failure("crashed", message="SIGSEGV")), b"crashed"),
        (Described(Failure("unpublishable")), b"unpublishable"),
    ],
)
def test_poison_is_dead_at_once(kafka: MemoryKafka, error: BaseException, reason: bytes) -> None:
    """No other run can help."""
    policy = RetryPolicy((1.0,), frozenset({"LookupError"}))
    bench = bench_of(kafka, b"alpha", retry=policy)
    fail(bench, b"alpha", error)
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert told(dead)[names.REASON] == reason
    assert bench.poll_loop.settlement.counters.dead_by_reason == {reason.decode(): 1}
    [letter] = bench.poll_loop.dispatch.recent_letters
    assert (letter.record, letter.reason) == ("foo:0:0", reason.decode())
    assert committed(kafka) == 1


def test_a_dead_letter_is_the_record_byte_for_byte_and_says_why(kafka: MemoryKafka) -> None:
    """Redriven, it must be what it was; the user's reserved names cannot pass for kworker's."""
    own: Headers = (("a", b"\xff"), ("kworker-reason", b"mine"), ("a", None))
    kafka.append("foo", 0, value=b"\x00\xff", key=None, headers=own)
    bench = bench_of(kafka, retry=FINAL)
    fail(bench, b"\x00\xff", Reject("no"))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert (dead.key(), dead.value()) == (None, b"\x00\xff")
    envelope = Envelope.open(dead.headers() or ())
    assert names.without_foreign(envelope.restored) == list(own)
    headers = told(dead)
    assert headers[names.EXCEPTION] == b"kworker.core.outcome.Reject"
    assert headers[names.MESSAGE] == b"no"
    assert b"Reject: no" in (headers[names.STACKTRACE] or b"")
    assert headers[names.FOREIGN_TOPIC] == b"foo"
    assert names.REDRIVEN not in headers


def test_a_dead_letter_always_fits(kafka: MemoryKafka) -> None:
    """The stack is trimmed from its outer end, the record is not touched."""
    kafka.create(DEAD, 1, max_message_bytes=4_000)
    bench = bench_of(kafka, b"v" * 1_000, retry=FINAL)
    fail(bench, b"v" * 1_000, Described(Failure("error", "E", (), "m" * 500, "s" * 8_000)))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert dead.value() == b"v" * 1_000
    assert told(dead)[names.MESSAGE] == b"m" * 500
    assert 500 < len(told(dead)[names.STACKTRACE] or b"") < 2_000


def test_a_missing_dead_letter_topic_holds_back_no_results(
    kafka: MemoryKafka,
) -> None:
    """Nothing is lost; the worker reports the missing topic and recovers by itself."""
    bench = bench_of(kafka, b"alpha", b"bravo", retry=FINAL)
    kafka.delete(DEAD)
    fail(bench, b"alpha")
    bench.end_with_result(b"bravo")
    bench.turn(6)
    assert len(kafka.records(RESULTS)) == 1
    assert committed(kafka) in (None, 0)
    assert any(reason.startswith(DEAD) for reason in bench.poll_loop.problems)
    kafka.create(DEAD)
    bench.turn(10)
    assert len(kafka.records(DEAD)) == 1
    assert committed(kafka) == 2
    assert bench.poll_loop.problems == []


def test_an_old_record_expires_only_when_first_taken(kafka: MemoryKafka) -> None:
    """Judged when first taken: a retry must not make it too old."""
    kafka.append("foo", 0, value=b"old", key=b"old", timestamp=1)
    headers = ((names.SOURCE, b"foo/0/9/1"), (names.ATTEMPT, b"2"))
    kafka.append(REQUEUE, 0, value=b"again", key=b"k", headers=headers)
    bench = bench_of(kafka, b"new", max_age_s=3600.0)
    bench.turn(2)
    assert sorted(bench.in_hand()) == [b"again", b"new"]  # type: ignore[type-var]
    [dead] = kafka.records(DEAD)
    assert (dead.value(), told(dead)[names.REASON]) == (b"old", b"expired")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((names.SOURCE, b"foo"),),
        ((names.SOURCE, b"foo/0/0/0"), (names.ATTEMPT, b"many")),
        ((names.SOURCE, b"orders.results/0/0/0"),),
        ((names.SOURCE, b"foo/0/%d/0" % 2**63),),
        ((names.SOURCE, b"foo/0/%d/0" % 2**48),),
        ((names.SOURCE, b"foo/%d/0/0" % 2**31),),
        ((names.SOURCE, b"foo/0/0/%d" % 2**63),),
        ((names.SOURCE, b"foo/0/1_0/0"),),
        ((names.SOURCE, b"foo/0/ 1/0"),),
        ((names.SOURCE, "foo/0/\u0661/0".encode()),),
        ((names.SOURCE, b"foo/0/0/0"), (names.ATTEMPT, b"0")),
        ((names.SOURCE, b"foo/0/0/0"), (names.ATTEMPT, b"%d" % 2**64)),
        ((names.SOURCE, b"foo/0/0/0"), (names.REDRIVEN, b"-1")),
        ((names.SOURCE, b"foo/0/0/0"), (names.DUE, b"%d" % 2**53)),
    ],
)
def test_forged_headers_cannot_stop_a_partition(kafka: MemoryKafka, headers: Headers) -> None:
    """Whoever may write to the requeue topic must not steer kworker."""
    kafka.append(REQUEUE, 0, value=b"forged", headers=headers)
    bench = bench_of(kafka, b"alpha")
    bench.turn(3)
    assert bench.in_hand() == [b"alpha"]
    [dead] = kafka.records(DEAD)
    assert told(dead)[names.REASON] == b"undecodable"
    assert told(dead)[names.SOURCE] == b"orders.requeue/0/0/%d" % STAMP
    assert kafka.committed(GROUP)[(REQUEUE, 0)] == 1


@pytest.mark.parametrize("topic", ["foo", REQUEUE])
def test_unreadable_headers_kill_only_their_record(kafka: MemoryKafka, topic: str) -> None:
    """A header name that is not UTF-8 ended the poll thread, again and again."""
    kafka.append("foo", 0, value=b"before", key=b"before")
    for word in (b"\xffone", b"\xfftwo"):
        unheard(kafka, topic, 0, key=word, value=word)
    bench = bench_of(kafka, b"after")
    bench.turn(2)
    assert sorted(bench.in_hand()) == [b"after", b"before"]  # type: ignore[type-var]
    letters = kafka.records(DEAD)
    assert {(dead.key(), dead.value()) for dead in letters} == {
        (b"\xffone", b"\xffone"),
        (b"\xfftwo", b"\xfftwo"),
    }
    for dead in letters:
        assert told(dead)[names.REASON] == b"unreadable"
        assert told(dead)[names.EXCEPTION] == b"UnicodeDecodeError"
        message = told(dead)[names.MESSAGE] or b""
        assert message.startswith(b"its headers cannot be read and are not copied ('utf-8' codec")
        assert str(told(dead)[names.SOURCE], "utf-8").startswith(f"{topic}/0/")
    bench.end(b"before", b"after")
    bench.turn(2)
    assert all(kafka.committed(GROUP)[topic, 0] == kafka.log((topic, 0)).high for topic in {topic})
    assert bench.poll_loop.idle


def test_a_handler_is_told_of_a_record_without_its_headers(kafka: MemoryKafka) -> None:
    """The message that `dead` gets must not ask for them either."""
    unheard(kafka, "foo", key=b"k", value=b"v")
    bench = bench_of(kafka, tells_dead=True)
    [record] = bench.pool.held
    assert record.on_dead is not None
    assert record.raw.headers() is None


def test_strangers_in_requeue_need_no_handler(kafka: MemoryKafka) -> None:
    """Where each source topic has a handler of its own, the requeue topic has none."""
    handlers = Handlers(None, {"foo": Handler("h", lambda _: None, False)})
    kafka.append(REQUEUE, 0, value=b"stray", key=b"k")
    unheard(kafka, REQUEUE, 0, value=b"unheard")
    bench = bench_of(kafka)
    bench.poll_loop.dispatch.endings._tells_dead = lambda topic: (
        handlers.on_dead_of(topic) is not None
    )
    bench.turn(3)
    letters = {dead.value(): told(dead)[names.REASON] for dead in kafka.records(DEAD)}
    assert letters == {b"stray": b"undecodable", b"unheard": b"unreadable"}
    assert handlers.batching_of(REQUEUE) is None


def test_a_bare_unavailable_opens_its_circuit(kafka: MemoryKafka) -> None:
    bench = bench_of(kafka, b"alpha")
    fail(bench, b"alpha", BareUnavailable())
    bench.turn(2)
    assert bench.poll_loop.dispatch.problems[0].startswith("a dependency is unavailable: ")


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_exception_of_a_handler_ends_the_poll_thread(
    kafka: MemoryKafka, kind: str, hold: bool
) -> None:
    """Its record waits in a topic or in memory, or is a dead letter; it is never lost."""
    bench = bench_of(kafka, b"alpha", b"beta", **({"retry": HOLD} if hold else {}))
    fail(bench, b"alpha", HOSTILE[kind]())
    bench.end(b"beta")
    bench.turn(3)
    topics = (DEAD, retry_topic(1.0), retry_topic(10.0))
    own = [raw for topic in topics for raw in kafka.records(topic)]
    again = [record for record in bench.pool.held if record.raw.value() == b"alpha"]
    assert len(own) + len(again) + bench.poll_loop.flow.held == 1
    for raw in own:
        due = int(told(raw).get(names.DUE) or b"0")
        assert Envelope.open(raw.headers() or ()).due_ms == due


@pytest.mark.parametrize("name", [[], "\ud800", "x" * 1_000_000, None, Mute()])
def test_any_name_of_an_unavailable_dependency_can_be_shown(
    kafka: MemoryKafka, name: object
) -> None:
    """A list cannot be looked up, and a megabyte has no room in the status."""
    bench = bench_of(kafka, b"alpha")
    fail(bench, b"alpha", Nameless(name))
    bench.turn(2)
    [reason] = bench.poll_loop.dispatch.problems
    assert len(reason.encode()) < 1_000


# -- what has no room -----------------------------------------------------------------


def test_headers_that_grow_may_cost_a_retry_and_never_the_record(kafka: MemoryKafka) -> None:
    """Each of the reserved names is three bytes longer in kworker's topics: 300 kB here."""
    own = (("kworker-", b""),) * 100_000
    kafka.append("foo", 0, value=b"alpha", key=b"alpha", headers=own)
    bench = bench_of(kafka, b"beta")
    fail(bench, b"alpha")
    fail(bench, b"beta")
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert (dead.value(), told(dead)[names.REASON]) == (b"alpha", b"unpublishable")
    assert dead.headers()[0][0] == names.SOURCE  # type: ignore[index]
    message = (told(dead)[names.MESSAGE] or b"").decode()
    assert message.startswith("no; its retry has up to ")
    assert message.endswith(names.NO_ROOM_FOR_HEADERS)
    assert [raw.value() for raw in kafka.records(retry_topic(1.0))] == [b"beta"]
    assert committed(kafka) == 2


@pytest.mark.parametrize(
    ("forged", "reason"),
    [((), b"undecodable"), (((names.SOURCE, b"foo/0/1000/0"),), b"exhausted")],
)
def test_a_foreign_record_too_large_to_bury_stays_in_its_topic(
    kafka: MemoryKafka, forged: Headers, reason: bytes
) -> None:
    """Its partition would stand still for ever."""
    value = b"x" * (1_048_588 - 200)
    kafka.append(REQUEUE, 0, value=value, headers=forged)
    bench = bench_of(kafka, retry=FINAL)
    if forged:
        fail(bench, value)
    bench.turn(4)
    [dead] = kafka.records(DEAD)
    assert (dead.value(), told(dead)[names.REASON]) == (None, reason)
    assert (told(dead)[names.MESSAGE] or b"").decode().endswith(f"stays at {REQUEUE}/0/0")
    assert kafka.committed(GROUP)[REQUEUE, 0] == 1


def test_a_source_record_too_large_for_its_dead_topic_waits(kafka: MemoryKafka) -> None:
    """A dead-letter topic that takes less than it should is for a person to correct."""
    value = b"x" * (1_048_588 - 200)
    kafka.append("foo", 0, value=value)
    bench = bench_of(kafka, retry=FINAL)
    fail(bench, value)
    bench.turn(4)
    assert (kafka.records(DEAD), committed(kafka)) == ([], 0)


# -- hold -----------------------------------------------------------------------------


def test_a_held_key_does_not_take_the_room_of_others(kafka: MemoryKafka) -> None:
    """Ten records of the key that waits, and room for four in flight."""
    for i in range(10):
        kafka.append("foo", 0, value=b"slow-%d" % i, key=b"slow")
    for i in range(10):
        kafka.append("foo", 0, value=b"fast-%d" % i, key=b"fast")
    bench = bench_of(kafka, retry=HOLD, in_flight=4)
    fail(bench, b"slow-0")
    ended = 0
    for _ in range(40):
        bench.turn()
        for value in [value for value in bench.in_hand() if value and value.startswith(b"fast")]:
            bench.end(value)
            ended += 1
        if bench.in_hand() == [b"slow-0"]:
            fail(bench, b"slow-0")
    assert ended == 10
    assert bench.poll_loop.flow.held == 10


def test_held_records_are_bounded(kafka: MemoryKafka) -> None:
    """Memory is bounded, however many records of a key wait."""
    for i in range(20):
        kafka.append("foo", 0, value=b"slow-%d" % i, key=b"slow")
    bench = bench_of(kafka, retry=HOLD, in_flight=4, held=6)
    for _ in range(10):
        if bench.in_hand():
            fail(bench, b"slow-0")
        bench.turn()
    assert bench.poll_loop.flow.held <= 6 + 4
    assert bench.poll_loop.stats().consumed <= 6 + 4


def test_a_held_key_keeps_its_order_to_the_end(kafka: MemoryKafka) -> None:
    """Record by record, through failures."""
    for i in range(6):
        kafka.append("foo", 0, value=b"%d" % i, key=b"k")
    bench = bench_of(kafka, retry=HOLD)
    ended: list[bytes] = []
    while len(ended) < 6:
        [record] = bench.pool.held or [None]
        if record is not None and record.attempt == 1:
            bench.pool.end(record, Failed(ValueError("first")))
        elif record is not None:
            ended.append(record.raw.value() or b"")
            bench.pool.end(record)
        bench.turn()
    bench.turn(2)
    assert ended == [b"%d" % i for i in range(6)]
    assert (bench.poll_loop.flow.held, bench.poll_loop.flow.records) == (0, 0)
    assert committed(kafka) == 6


# -- unavailable ----------------------------------------------------------------------


def test_the_circuit_breaker_probes_one_record_each_five_seconds(kafka: MemoryKafka) -> None:
    """Nobody's fault: no attempt is spent, intake stops, each probe is another record."""
    bench = bench_of(kafka, *[b"%d" % i for i in range(20)], hands=2)
    began = bench.clock.now
    for value in list(bench.in_hand()):
        fail(bench, value or b"", Unavailable("billing"))
    probes: list[bytes] = []
    while bench.clock.now < began + 31:
        bench.turn()
        for value in list(bench.in_hand()):
            probes.append(value or b"")
            fail(bench, value or b"", Unavailable("billing"))
    assert len(probes) == len(set(probes)) == 6
    assert any("billing is unavailable" in reason for reason in bench.poll_loop.problems)
    ended = 0
    while ended < 20:
        bench.turn()
        assert all(record.attempt == 1 for record in bench.pool.held)
        for value in list(bench.in_hand()):
            bench.end(value or b"")
            ended += 1
    bench.turn(2)
    assert committed(kafka) == 20
    assert bench.poll_loop.problems == []


def test_a_single_unavailable_customer_stops_no_other(kafka: MemoryKafka) -> None:
    """It is snoozed as soon as others are seen to succeed."""
    words = [b"%d" % i for i in range(60)]
    bench, delays = bench_of(kafka, *words, hands=4), Delays(kafka)
    ended: set[bytes] = set()
    began = bench.clock.now
    while len(ended) < 50 and bench.clock.now < began + 60:
        bench.turn()
        delays.forward()
        for value in list(bench.in_hand()):
            if (value or b"").endswith(b"7"):
                fail(bench, value or b"", Unavailable("customer-7"))
            else:
                bench.end(value or b"")
                ended.add(value or b"")
    assert len(ended) >= 50
    assert bench.clock.now < began + 30
    assert all(told(raw)[names.ATTEMPT] == b"1" for raw in kafka.records(retry_topic(1.0)))


def test_a_drain_does_not_wait_for_what_is_unavailable(kafka: MemoryKafka) -> None:
    """Records that wait for their time do not make a drain time out."""
    bench = bench_of(kafka, b"alpha", b"bravo", hands=1)
    fail(bench, b"alpha", Unavailable("billing"))
    bench.turn(2)
    bench.drain()
    assert committed(kafka) in (None, 0)


# -- the breaker ----------------------------------------------------------------------

BREAKER = DeadLetterLimitPolicy(0.5, 10)
SOON = DeadLetterLimitPolicy(0.5, 2)  # opens at the second dead letter


def fail_all(bench: Bench) -> int:
    held = list(bench.pool.held)
    for record in held:
        bench.pool.end(record, Failed(ValueError("no")))
    return len(held)


def test_the_dead_letter_limit_saves_records_when_all_fail(
    kafka: MemoryKafka,
) -> None:
    """The fault is not the records': after the fix all are processed without a hand."""
    bench = bench_of(kafka, *[b"%d" % i for i in range(60)], retry=FINAL, breaker=BREAKER)
    for _ in range(100):
        fail_all(bench)
        bench.turn()
    assert len(kafka.records(DEAD)) == 10
    assert any("breaker is open" in reason for reason in bench.poll_loop.problems)
    for _ in range(400):
        for record in list(bench.pool.held):
            bench.pool.end(record)
        bench.turn()
    assert len(kafka.records(DEAD)) == 10
    assert bench.poll_loop.settlement.counters.done == 50
    assert committed(kafka) == 60
    assert bench.poll_loop.problems == []


def test_a_person_may_accept_the_held_dead_letters(kafka: MemoryKafka) -> None:
    bench = bench_of(kafka, *[b"%d" % i for i in range(30)], retry=FINAL, breaker=BREAKER)
    for _ in range(4):
        fail_all(bench)
        bench.turn()
    assert len(kafka.records(DEAD)) == 10
    bench.poll_loop.accept_dead()
    bench.turn(4)
    assert len(kafka.records(DEAD)) == 30
    assert committed(kafka) == 30


def test_accepting_the_dead_leaves_out_a_rejected_record(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """It has its dead letter, and a second one would be counted as one more record that left."""
    bench = bench_of(kafka, b"a", b"b", b"c", b"d", retry=FINAL, breaker=SOON, state_dir=tmp_path)
    fail_all(bench)
    bench.turn(2)
    assert "2 records that would be dead letters are held" in bench.poll_loop.problems[0]
    Rejections(tmp_path).add(Source("foo", 0, 3, STAMP), "me@here")
    bench.turn(4)
    bench.poll_loop.accept_dead()
    bench.turn(4)
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"a", b"b", b"c", b"d"]
    assert (bench.poll_loop.flow.records, committed(kafka)) == (0, 4)


def test_a_handler_is_told_of_a_dead_letter_that_is_accepted(kafka: MemoryKafka) -> None:
    """As of every other; before the letter is written."""
    bench = bench_of(kafka, b"a", b"b", b"c", retry=FINAL, breaker=SOON, tells_dead=True)
    fail_all(bench)
    bench.turn(2)
    for record in list(bench.pool.held):
        assert record.on_dead is not None
        bench.pool.end(record, record.on_dead.letter)
    bench.turn(2)
    assert len(kafka.records(DEAD)) == 2
    bench.poll_loop.accept_dead()
    bench.turn(2)
    [dying] = bench.pool.held
    assert dying.on_dead is not None
    assert str(dying.on_dead.error) == "ValueError: no"
    assert len(kafka.records(DEAD)) == 2
    bench.pool.end(dying, dying.on_dead.letter)
    bench.turn(3)
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"a", b"b", b"c"]
    assert (bench.poll_loop.flow.records, committed(kafka)) == (0, 3)


def test_accepting_the_dead_leaves_out_what_a_drain_has_dropped(kafka: MemoryKafka) -> None:
    """It is delivered again, to whoever comes next."""
    bench = bench_of(kafka, b"a", b"b", b"c", retry=FINAL, breaker=SOON)
    fail_all(bench)
    bench.turn(2)
    bench.poll_loop.stop_taking()
    bench.poll_loop.accept_dead()
    bench.turn(4)
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"a", b"b"]
    assert (bench.poll_loop.flow.records, committed(kafka)) == (0, 2)


@pytest.mark.parametrize("begin", [lambda b: b.drain(), lambda b: b.consumer.close()])
def test_a_reached_dead_letter_limit_delays_no_drain_or_revoke(
    kafka: MemoryKafka, begin: Callable[[Bench], None]
) -> None:
    """What it holds is delivered again, to whoever comes next."""
    bench = bench_of(kafka, *[b"%d" % i for i in range(30)], retry=FINAL, breaker=BREAKER)
    for _ in range(4):
        fail_all(bench)
        bench.turn()
    before = bench.clock.now
    begin(bench)
    assert bench.clock.now - before < 3
    assert len(kafka.records(DEAD)) == 10


# -- rejected by a person -------------------------------------------------------------


@pytest.mark.parametrize("retry", [HOLD, RetryPolicy((1.0, 10.0)), FINAL])
def test_a_rejected_record_is_dead_at_its_next_turn(
    kafka: MemoryKafka, tmp_path: Path, retry: RetryPolicy
) -> None:
    """Whether it runs, is held, or has yet to begin; and once only."""
    words = [b"running", b"waiting", b"failing"]
    bench = bench_of(kafka, *words, retry=retry, state_dir=tmp_path, hands=1)
    delays = Delays(kafka)
    for offset in range(3):
        Rejections(tmp_path).add(Source("foo", 0, offset, STAMP), "me@here")
    bench.turn()
    assert bench.in_hand() == [b"running"]
    fail(bench, b"running")
    for _ in range(10):
        bench.turn()
        delays.forward()
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"running", b"waiting", b"failing"]
    for raw in kafka.records(DEAD):
        assert told(raw)[names.REASON] == b"operator"
        assert told(raw)[names.MESSAGE] == b"rejected by me@here"
    assert bench.pool.runs == bench.pool.runs[:1]
    assert list(tmp_path.iterdir()) == []
    assert committed(kafka) == 3


def test_a_held_record_is_rejected_without_waiting_for_its_time(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """And its key goes on."""
    policy = RetryPolicy((3600.0,), hold=True)
    bench = bench_of(kafka, b"alpha", retry=policy, state_dir=tmp_path)
    kafka.append("foo", 0, value=b"behind", key=b"alpha")
    fail(bench, b"alpha")
    bench.turn(2)
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP), "me@here")
    bench.turn(4)
    assert len(kafka.records(DEAD)) == 1
    assert bench.in_hand() == [b"behind"]
    assert bench.poll_loop.flow.held == 0


def test_a_rejection_goes_when_its_record_has_ended_well(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """Else it stays for ever, and kills whatever has that place next."""
    bench = bench_of(kafka, b"alpha", state_dir=tmp_path)
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP), "me@here")
    bench.end(b"alpha")
    bench.turn(4)
    assert (committed(kafka), kafka.records(DEAD)) == (1, [])
    assert list(tmp_path.iterdir()) == []


def test_a_rejection_ends_with_a_record_that_is_done_already(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    claimant = Granting()
    bench = bench_of(kafka, b"alpha", state_dir=tmp_path, claims=claimant, hands=0)
    claimant.done_before, claimant.granted = list(claimant.granted), deque()
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP), "me@here")
    bench.turn(4)
    assert (committed(kafka), kafka.records(DEAD)) == (1, [])
    assert list(tmp_path.iterdir()) == []


def test_a_rejection_does_not_apply_to_a_recreated_topic(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """A topic that was made again has another at its offset."""
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP - 1), "me@here")
    bench = bench_of(kafka, b"alpha", state_dir=tmp_path)
    assert bench.in_hand() == [b"alpha"]


def test_an_undone_rejection_has_no_effect(kafka: MemoryKafka, tmp_path: Path) -> None:
    bench = bench_of(kafka, b"alpha", b"bravo", state_dir=tmp_path, hands=1)
    refusals = Rejections(tmp_path)
    for offset in range(2):
        refusals.add(Source("foo", 0, offset, STAMP), "me@here")
    bench.turn(2)
    assert refusals.undo(("foo", 0, 1))
    assert not refusals.undo(("foo", 0, 1))
    bench.turn(2)
    fail(bench, b"alpha")
    bench.turn(4)
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"alpha"]
    assert bench.in_hand() == [b"bravo"]


# -- a pool that stands still ------------------------------------------------------------


def still_s(bench: Bench) -> float:
    """After a minute and more."""
    bench.turn(300)
    return bench.poll_loop.dispatch.stalled_s


def test_a_pool_that_has_records_and_ends_none_is_still(kafka: MemoryKafka) -> None:
    """From outside it looks like a worker that has nothing to do."""
    bench = Bench(kafka, ["foo"])
    bench.pool.waiting = deque()
    kafka.append("foo", value=b"alpha")
    bench.turn(2)
    assert bench.pool.waiting
    assert 60 < still_s(bench) < 80


def test_a_pool_that_takes_nothing_of_what_is_ready_is_still(kafka: MemoryKafka) -> None:
    bench = bench_of(kafka, b"alpha", hands=0)
    assert still_s(bench) > 60


@pytest.mark.parametrize("error", [ValueError("again"), Unavailable("billing")])
def test_waiting_for_a_retry_does_not_count_as_a_still_pool(
    kafka: MemoryKafka, error: Exception
) -> None:
    """A held key, and what is unavailable, probed now and then."""
    bench = bench_of(kafka, b"alpha", retry=HOLD)
    for _ in range(300):
        for record in list(bench.pool.held):
            bench.pool.end(record, Failed(error))
        bench.turn()
        assert bench.poll_loop.dispatch.stalled_s < 1


def test_time_without_polling_does_not_count_as_still(kafka: MemoryKafka) -> None:
    """A rebalance that waits for positions: handlers are through, and nobody hears of it."""
    bench = bench_of(kafka, b"alpha")
    bench.clock.now += 3600
    bench.turn()
    assert bench.poll_loop.dispatch.stalled_s < 1


# -- too old --------------------------------------------------------------------------


HOUR_S = 3600.0


def test_expired_records_do_not_count_for_the_dead_letter_limit(kafka: MemoryKafka) -> None:
    """A source that lags by a day has nothing else: it would stop there, and try them after all."""
    bench = bench_of(kafka, max_age_s=HOUR_S, breaker=DeadLetterLimitPolicy(0.5, 20))
    bench.clock.now += 2 * HOUR_S
    for i in range(60):
        kafka.append("foo", 0, value=b"%d" % i, key=b"%d" % i)
    bench.turn(100)
    assert bench.pool.runs == []
    assert [told(raw)[names.REASON] for raw in kafka.records(DEAD)] == [b"expired"] * 60
    assert bench.poll_loop.problems == []
    assert committed(kafka) == 60


def test_an_old_record_expires_at_the_dead_letter_limit(kafka: MemoryKafka) -> None:
    """What is held is tried, and its handler would have it after all."""
    options = {"max_age_s": HOUR_S, "breaker": DeadLetterLimitPolicy(0.5, 2), "retry": FINAL}
    bench = bench_of(kafka, b"a", b"b", b"c", **options)
    for word in (b"a", b"b", b"c"):
        fail(bench, word)
    bench.turn(2)
    assert "the breaker is open" in bench.poll_loop.problems[0]
    bench.clock.now += 2 * HOUR_S
    kafka.append("foo", 1, value=b"old", key=b"old")
    bench.turn(3)
    assert kafka.records(DEAD)[-1].value() == b"old"
    assert b"old" not in [record.raw.value() for record in bench.pool.runs]


def test_an_expired_record_expires_again_after_a_death(kafka: MemoryKafka) -> None:
    """It was never settled."""
    options = {"max_age_s": HOUR_S, "tells_dead": True}
    first = bench_of(kafka, **options)
    first.clock.now += 2 * HOUR_S
    kafka.append("foo", 0, value=b"old", key=b"old")
    first.turn(2)
    assert first.holds(b"old").on_dead is not None
    first.die()
    second = Bench(kafka, ["foo"], clock=first.clock, **options)
    second.turn(4)
    assert second.holds(b"old").on_dead is not None


def test_no_handler_hears_of_a_suspects_dead_letter(kafka: MemoryKafka, tmp_path: Path) -> None:
    """The call of `dead` may be what ended its process, again and again."""
    folder = tmp_path / "suspects"
    CrashJournal(folder).add_suspects([("foo", 0, 0)], "crash", "SIGSEGV", 0.0, 10)
    ward = Quarantine(read_config(tmp_path), folder, TopicLimits([]))
    bench = bench_of(kafka, max_age_s=HOUR_S, tells_dead=True, quarantine=ward)
    bench.clock.now += 2 * HOUR_S
    for word in (b"suspect", b"another"):
        kafka.append("foo", 0, value=word, key=word)
    bench.turn(4)
    assert [raw.value() for raw in kafka.records(DEAD)] == [b"suspect"]
    assert bench.in_hand() == [b"another"]


class Granting:
    """A claimant that grants everything, and remembers what it is given back."""

    problem, pending, unprotected, keeps_outcomes = None, False, 0, True

    def __init__(self) -> None:
        self.granted: deque[Record] = deque()
        self.given_back: list[Record] = []
        self.done_before: list[Record] = []

    @property
    def ready(self) -> int:
        return len(self.granted)

    def room(self) -> int:
        return 100 - self.ready

    def claim(self, records: Iterable[Record]) -> None:
        self.granted.extend(records)

    def take(self, most: int) -> deque[Record]:
        return deque(self.granted.popleft() for _ in range(min(most, self.ready)))

    def turn(self, now: float) -> ClaimAnswers:
        answers = ClaimAnswers(duplicates=self.done_before)
        self.done_before = []
        return answers

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        return []

    def close(self, partition: Partition) -> list[Record]:
        return []

    def cancelled(self, records: Iterable[Record]) -> None:
        self.given_back += records

    def settled(self, records: Iterable[Record]) -> None:
        """They led to something."""

    released = hand_over = settled


def test_a_revoke_releases_the_claim_of_a_rejected_record(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """Else its event would be in hand for as long as this worker lives, and the next would wait."""
    claimant = Granting()
    bench = bench_of(kafka, b"alpha", state_dir=tmp_path, claims=claimant, hands=0)
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP), "me@here")
    bench.turn()
    bench.pool._hands = 1
    bench.poll_loop.dispatch.turn(0.0)  # it is taken for the pool, and doomed
    [partition] = [p for p in bench.poll_loop.assignment.partitions.values() if p.ledger.unsettled]
    bench.poll_loop.dispatch.close(partition)
    assert [record.source.place for record in claimant.given_back] == [("foo", 0, 0)]
    assert (bench.poll_loop.flow.records, bench.poll_loop.dispatch.waiting) == (0, False)


class OneCell:
    """A ward whose cell runs its suspect until the test has it die."""

    isolates_any, problem = True, ""

    def __init__(self) -> None:
        self.runs: list[Record] = []
        self.waits: list[Record] = []

    def isolates(self, record: Record) -> bool:
        return record.raw.value() == b"suspect"

    def add(self, records: Iterable[Record]) -> None:
        self.runs += records

    def refresh(self, now: float, *, force: bool = False) -> None: ...

    def turn(self, now: float) -> list[Record]:
        return []

    def settled(self, records: Iterable[Record]) -> None: ...

    @property
    def count(self) -> int:
        return len(self.runs) + len(self.waits)

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        back, self.waits = [r for r in self.waits if r.partition in going], []
        return back

    def dies(self) -> None:
        self.runs, self.waits = [], self.runs


def test_a_suspect_does_not_restart_during_a_drain(kafka: MemoryKafka) -> None:
    """It is delivered again, and a suspect there, too."""
    ward = OneCell()
    bench = bench_of(kafka, b"suspect", quarantine=ward)
    assert len(ward.runs) == 1
    bench.poll_loop.stop_taking()
    assert not bench.poll_loop.idle
    ward.dies()
    bench.turn(2)
    assert (ward.runs, ward.waits, bench.poll_loop.idle) == ([], [], True)
    assert committed(kafka) in (None, 0)
