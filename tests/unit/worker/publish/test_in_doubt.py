"""Transactions in doubt: what was committed, and whose doing a fence is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.clients.errors import KafkaRequestError
from kworker.core.offset_map import Committed, encode
from kworker.worker.publish.in_doubt import (
    FencedByTwin,
    FencePolicy,
    FencingJudge,
    InDoubtTransaction,
)
from tests.support.records import ORIGIN, a_partition, a_record

POLICY = FencePolicy(limit_s=30.0)
NAME = "orders-here-0"
FENCED, DOUBT = (
    KafkaRequestError("fenced", retriable=False),
    KafkaRequestError("timed out", retriable=True),
)
AT = ("orders", 0)
BEGAN = 1000.0
OLD = BEGAN + POLICY.grown_s


def fences(policy: FencePolicy = POLICY) -> FencingJudge:
    return FencingJudge(NAME, policy, BEGAN)


def survived(fences: FencingJudge, first: float, every_s: float, most: int = 100) -> int:
    """How many fences it takes before it gives up."""
    for number in range(most):
        try:
            fences.judge(FENCED, None, first + number * every_s)
        except FencedByTwin:
            return number
    return most


def test_a_foreign_fence_is_answered_and_counted() -> None:
    foreign = fences().judge(FENCED, OLD - 1, OLD)
    assert foreign is not None
    assert (foreign.nth, foreign.most) == (1, 10)


def test_a_service_that_is_young_gives_up_sooner() -> None:
    """The other was there first."""
    assert survived(fences(), BEGAN + 5, every_s=1.0) == 1
    assert survived(fences(), OLD, every_s=1.0) == 9


@given(st.floats(10.5, 1e6), st.floats(0.0, 40.0), st.floats(0.1, 3.0))
def test_the_older_of_two_that_fence_each_other_goes_on(
    older_s: float, after_s: float, rest_s: float
) -> None:
    """However fast they are; and the one that was there first is the first that is fenced."""
    first, second = fences(), FencingJudge(NAME, POLICY, BEGAN + older_s)
    assert loser(first, second, BEGAN + older_s + after_s, rest_s) is second


def loser(
    first: FencingJudge, second: FencingJudge, now: float, rest_s: float
) -> FencingJudge | None:
    """The one that ends; None if neither does."""
    for each in 50 * (first, second):
        try:
            each.judge(FENCED, None, now)
        except FencedByTwin:
            return each
        now += rest_s
    return None


def test_fences_now_and_then_never_end_a_service() -> None:
    """A script that runs every quarter of a minute is a nuisance, and no fight."""
    assert survived(fences(), OLD, every_s=15.0) == 100


def test_the_last_words_name_the_id_and_what_to_do() -> None:
    tired = fences(replace(POLICY, most=1))
    with pytest.raises(FencedByTwin) as old:
        tired.judge(FENCED, None, OLD)
    assert str(old.value) == (
        "another process took the transactional id orders-here-0 1 times within 60 s: end that"
        " process, or give each copy of the service its own `instance`, then start again; Kafka"
        " lets only one process use an id"
    )
    young = fences()
    young.judge(FENCED, None, BEGAN)
    with pytest.raises(FencedByTwin, match="orders-here-0 2 times in the first 1 s: end that"):
        young.judge(FENCED, None, BEGAN + 1)


def test_our_own_earlier_request_is_no_foreign_fence() -> None:
    """A transaction that was open for too long; and what a doubt left under way, once."""
    own = fences()
    assert own.judge(FENCED, OLD, OLD + POLICY.limit_s) is None
    assert own.judge(DOUBT, OLD, OLD + 40) is None
    assert own.judge(FENCED, OLD + 41, OLD + 42) is None
    assert own.judge(FENCED, OLD + 43, OLD + 44) is not None
    assert own.judge(DOUBT, None, OLD + 50) is None
    assert own.judge(FENCED, None, OLD + 50 + POLICY.excuse_s) is not None


@given(st.lists(st.floats(0.0, 20.0), max_size=60))
def test_a_worker_gives_up_at_the_limit_of_fences_in_its_window(gaps: list[float]) -> None:
    counted, now, times = fences(), OLD, []
    for gap in gaps:
        now += gap
        times.append(now)
        within = [each for each in times if now - each <= POLICY.within_s]
        if len(within) >= POLICY.most:
            with pytest.raises(FencedByTwin):
                counted.judge(FENCED, None, now)
            return
        foreign = counted.judge(FENCED, None, now)
        assert foreign is not None
        assert foreign.nth == len(within)


def test_records_that_the_groups_position_has_passed_were_committed() -> None:
    """The next owner has gone on from there: only what it has not covered is to be done again."""
    partition = a_partition(*AT)
    passed, beyond, open_ = (a_record(partition, offset) for offset in (3, 7, 9))
    sent = Committed(4, encode(ORIGIN, 4, [(7, 8), (9, 10)]))
    doubt = InDoubtTransaction([passed, beyond, open_], {AT: sent}, 0.0)
    assert doubt.resolved({AT: sent}) == ([passed, beyond, open_], [])
    later = Committed(6, encode(ORIGIN, 6, [(7, 9)]))
    assert doubt.resolved({AT: later}) == ([passed, beyond], [open_])
    assert doubt.resolved({AT: Committed(3)}) == ([], [passed, beyond, open_])
    assert doubt.resolved({AT: None}) == ([], [passed, beyond, open_])


def test_what_a_transaction_sent_shows_that_all_of_it_was_committed() -> None:
    """Also where the position has no map, or one that cannot be read."""
    partition = a_partition(*AT)
    records = [a_record(partition, offset) for offset in (3, 7)]
    for sent in (Committed(4), Committed(4, encode(bytes(16), 4, [(7, 8)]))):
        doubt = InDoubtTransaction(records, {AT: sent}, 0.0)
        assert doubt.resolved({AT: sent}) == (records, [])


def test_a_position_of_a_topic_made_again_covers_no_record() -> None:
    """It counts other records."""
    partition = a_partition(*AT)
    record = a_record(partition, 3)
    another = ORIGIN[:8] + b"new id  "
    doubt = InDoubtTransaction([record], {AT: Committed(4)}, 0.0)
    assert doubt.resolved({AT: Committed(9, encode(another, 9, []))}) == ([], [record])
