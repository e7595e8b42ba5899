"""Pauses: of each topic the newest order counts, whoever hears of it, and in whatever sequence."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.pauses import (
    ALL,
    EVERYTHING_PAUSED,
    NOTHING_PAUSED,
    Pause,
    PausedTopics,
    PauseOrder,
    Resumption,
    in_force,
    merge,
    order_pause,
    order_resumption,
)

NOW_MS = 1_790_000_000_000
TOPICS = ("orders", "payments", ALL)

times = st.integers(0, 3)  # few, so that some are equal
names = st.sampled_from(["ann@a", "bob@b"])
orders = st.one_of(
    st.builds(Pause, times, names, times, st.none() | times), st.builds(Resumption, times, names)
)
known = st.dictionaries(st.sampled_from(TOPICS), orders)


@given(st.lists(known, min_size=1, max_size=5), st.randoms())
def test_hosts_that_know_the_same_orders_agree(told: list[dict[str, PauseOrder]], random) -> None:
    """They hear of them in different sequences, some of them several times."""
    one = merge(*told)
    other = told * 2
    random.shuffle(other)
    assert reduce(merge, other) == one
    for topic, order in one.items():
        assert order.at_ms == max(each[topic].at_ms for each in told if topic in each)


@given(known, st.sampled_from(TOPICS), st.integers(0, 5), st.none() | st.integers(6, 9))
def test_a_new_order_outranks_every_known_one(
    before: dict[str, PauseOrder], topic: str, now_ms: int, until_ms: int | None
) -> None:
    """The clock of the host that gave the earlier one may be ahead."""
    pause = order_pause(before, [topic], "me", now_ms, until_ms)
    assert merge(pause, before)[topic] == pause[topic]
    resumption = order_resumption(merge(before, pause), [topic], "me", now_ms)
    after = merge(resumption, pause, before)
    assert after[topic] == resumption[topic]
    assert {each: after[each] for each in after if each != topic} == {
        each: before[each] for each in before if each != topic
    }


def test_a_pause_ends_by_itself_at_its_time() -> None:
    orders = order_pause({}, ["orders"], "me", NOW_MS, NOW_MS + 1000)
    assert list(in_force(orders, NOW_MS + 999)) == ["orders"]
    assert in_force(orders, NOW_MS + 1000) == {}


def test_a_pause_without_an_end_lasts_until_it_is_resumed() -> None:
    orders = order_pause({}, ["orders", "payments"], "me", NOW_MS, None)
    orders |= order_resumption(orders, ["orders"], "me", NOW_MS)
    assert list(in_force(orders, 10 * NOW_MS)) == ["payments"]


def test_a_pause_ordered_again_moves_its_end_and_keeps_its_beginning() -> None:
    first = order_pause({}, ["orders"], "ann", NOW_MS, NOW_MS + 1000)
    longer = order_pause(first, ["orders"], "bob", NOW_MS + 500, None)
    assert longer == {"orders": Pause(NOW_MS + 500, "bob", NOW_MS, None)}
    anew = order_pause(first, ["orders"], "bob", NOW_MS + 1000, None)
    assert anew == {"orders": Pause(NOW_MS + 1000, "bob", NOW_MS + 1000, None)}


@pytest.mark.parametrize(
    ("paused", "covered"),
    [
        (NOTHING_PAUSED, False),
        (EVERYTHING_PAUSED, True),
        (PausedTopics(frozenset(["orders"])), False),
        (PausedTopics(frozenset(["orders", "orders.requeue", "payments"])), True),
        (PausedTopics(frozenset([ALL, "orders"])), True),
    ],
)
def test_all_is_paused_by_one_order_or_by_one_for_each(paused: PausedTopics, covered: bool) -> None:
    assert paused.cover(["orders", "payments", "orders.requeue"]) is covered


def test_a_pattern_is_covered_by_the_pause_of_all_topics_only() -> None:
    """Topics may appear that nobody could name."""
    assert EVERYTHING_PAUSED.cover(["^orders-", "orders.requeue"])
    assert not PausedTopics(frozenset(["orders-1", "orders.requeue"])).cover(["^orders-"])
