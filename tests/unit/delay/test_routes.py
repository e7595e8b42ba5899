"""The way of a record that waits: never early, late by less than the smallest delay, as it came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.headers import Envelope, without_foreign
from kworker.core.message import Fields, Headers
from kworker.delay.routes import NEAR_MS, DelayedRecord, Routes, leaves_ms, next_delay

NOW = 1_700_000_000_000
SECOND, TEN, MINUTE = "o.retry.1s", "o.retry.10s", "o.retry.1m"
DELAYS = {SECOND: 1_000, TEN: 10_000, MINUTE: 60_000}
PARTITIONS = {"o.requeue": 4, "o.dead": 3, **dict.fromkeys(DELAYS, 4)}
ROUTES = Routes("o.requeue", "o.dead", DELAYS).with_partitions(PARTITIONS)


def raw(
    *headers: tuple[str, bytes | None], topic: str = SECOND, partition: int = 1, written: int = NOW
) -> Fields:
    return Fields((topic, partition, 7), written, b"k", b"v", headers)


def retried(due_ms: int = 0, source: bytes = b"o/6/9/1600000000000", *user: object) -> Headers:
    own = (("kworker-source", source), ("kworker-attempt", b"3"))
    return (*own, ("kworker-due", b"%d" % due_ms), ("kworker-error", b"E: no"))


def waiting(
    *headers: tuple[str, bytes | None], now_ms: int = NOW, **raw_options: object
) -> DelayedRecord:
    return DelayedRecord(raw(*headers, **raw_options), 1_000, now_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("remaining_ms", "delay_ms"),
    [
        (1, 1_000),
        (999, 1_000),
        (1_000, 1_000),
        (9_899, 1_000),
        (9_900, 10_000),  # less 100 ms that an earlier hop took too long
        (10_000, 10_000),
        (59_899, 10_000),
        (60_000, 60_000),
        (86_400_000, 60_000),
    ],
)
def test_the_largest_delay_that_fits_is_next_else_the_smallest(
    remaining_ms: int, delay_ms: int
) -> None:
    assert next_delay(remaining_ms, DELAYS.values()) == delay_ms


@given(
    delays=st.sets(st.integers(1, 100_000), min_size=1, max_size=6),
    after_ms=st.integers(0, 500_000),
    first=st.integers(0, 5),
    latency_ms=st.integers(0, 50),
)
def test_a_delayed_record_is_never_early_and_soon_forwarded(
    delays: set[int], after_ms: int, first: int, latency_ms: int
) -> None:
    """However many hops it takes; what each takes too long is the machine's, not the way's."""
    due_ms, written_ms = NOW + after_ms, NOW
    delay_ms = sorted(delays)[first % len(delays)]
    if delay_ms > after_ms:
        delay_ms = next_delay(after_ms, delays)
    while True:
        forwarded_ms = leaves_ms(written_ms, delay_ms, due_ms, written_ms) + latency_ms
        if forwarded_ms >= due_ms:
            break
        delay_ms = next_delay(due_ms - forwarded_ms, delays)
        written_ms = forwarded_ms
    assert due_ms <= forwarded_ms <= due_ms + min(delays) + latency_ms


@given(
    written=st.integers(NOW - 10**6, NOW), delay=st.integers(1, 10**6), due=st.integers(0, 2**60)
)
def test_a_hop_ends_never_before_its_delay_is_over(written: int, delay: int, due: int) -> None:
    end = leaves_ms(written, delay, due, taken_ms=NOW)
    assert written + delay <= end <= written + delay + NEAR_MS


def test_a_short_remainder_waits_at_the_head_without_a_hop() -> None:
    assert leaves_ms(NOW, 1_000, NOW + 1_040, NOW) == NOW + 1_040
    assert leaves_ms(NOW, 1_000, NOW + 2_000, NOW) == NOW + 1_000


def test_a_future_timestamp_does_not_hold_up_later_records() -> None:
    """A clock that was an hour ahead wrote it; the due time still decides at the hop's end."""
    ahead = NOW + 3_600_000
    assert leaves_ms(ahead, 1_000, ahead + 1_000, taken_ms=NOW) <= NOW + 10_000


def test_a_due_record_goes_to_requeue_in_its_source_partition() -> None:
    """There it meets its lane."""
    record = waiting(*retried(due_ms=NOW + 1_000))
    assert ROUTES.target(record, NOW + 1_000) == "o.requeue"
    output = ROUTES.output(record, "o.requeue", NOW + 1_000)
    assert (output.topic, output.partition) == ("o.requeue", 6 % 4)
    assert (output.key, output.value) == (b"k", b"v")


def test_a_record_not_yet_due_waits_in_another_delay() -> None:
    record = waiting(*retried(due_ms=NOW + 75_000))
    assert ROUTES.target(record, NOW + 1_000) == MINUTE
    assert ROUTES.target(record, NOW + 61_000) == TEN
    output = ROUTES.output(record, TEN, NOW)
    assert Envelope.open(output.headers).due_ms == NOW + 75_000


def test_a_missing_delay_topic_is_not_used() -> None:
    routes = ROUTES.with_partitions({"o.requeue": 4, TEN: 4})
    assert routes.target(waiting(*retried(due_ms=NOW + 75_000)), NOW) == TEN


def test_a_record_stays_in_its_topic_without_configured_delays() -> None:
    """The last delay was retired while it waited."""
    routes = Routes("o.requeue", "o.dead", {}).with_partitions(PARTITIONS)
    assert routes.target(waiting(*retried(due_ms=NOW + 75_000)), NOW) == SECOND


def test_the_users_headers_go_on_as_they_came_and_kworkers_once() -> None:
    user = (("a", b"1"), ("b", None), ("a", b"\xff"), ("kworker-in-source", b"theirs"))
    forged = (("kworker-nonsense", b"x"), ("kworker-source", b"o/0/0/0"))
    record = waiting(*user, *forged, *retried())
    assert ROUTES.output(record, "o.requeue", NOW).headers == [
        *user,
        ("kworker-source", b"o/6/9/1600000000000"),
        ("kworker-attempt", b"3"),
        ("kworker-error", b"E: no"),
    ]


def test_a_delayed_record_keeps_its_redrive_count() -> None:
    record = waiting(*retried(), ("kworker-redriven", b"2"))
    assert Envelope.open(ROUTES.output(record, "o.requeue", NOW).headers).redriven == 2


def test_a_delayed_record_of_a_replay_stays_one() -> None:
    record = waiting(*retried(), ("kworker-replay", b"0a1b2c"))
    assert Envelope.open(ROUTES.output(record, "o.requeue", NOW).headers).replay == b"0a1b2c"


@pytest.mark.parametrize(
    "forged",
    [
        (),
        (("kworker-source", None),),
        (("kworker-source", b"o/0/-1/0"),),
        (("kworker-source", b"o/0/1/0"), ("kworker-due", b"soon")),
        (("kworker-source", b"o/0/1/0"), ("kworker-due", b"9" * 5_000)),
        (("kworker-source", b"o/0/1/0"), ("kworker-attempt", b"\xff")),
    ],
)
def test_a_foreign_record_becomes_a_dead_letter_at_once(forged: Headers) -> None:
    """It must not stop what is behind it, and nobody may lose it."""
    headers = (*forged, ("u", b"\xff"), ("kafka_dlt-original-topic", b"theirs"))
    record = waiting(*headers, partition=5)
    assert record.leaves_ms <= NOW
    assert ROUTES.target(record, NOW) == "o.dead"
    output = ROUTES.output(record, "o.dead", NOW)
    assert (output.key, output.value, output.partition) == (b"k", b"v", 5 % 3)
    letter = Envelope.open(output.headers)
    assert str(letter.source) == f"{SECOND}/5/7/{NOW}"
    assert tuple(without_foreign(letter.restored)) == headers
    assert dict(output.headers)["kworker-reason"] == b"undecodable"
