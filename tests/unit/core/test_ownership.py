"""Partitions that no worker has: told when they have been nobody's for longer than a rebalance."""

import pytest

from kworker.core.ownership import Ownership

BEHIND = {("orders", n): 10 * n for n in range(9)}


@pytest.fixture
def ownership() -> Ownership:
    return Ownership(20.0)


def test_a_short_rebalance_is_no_problem(ownership: Ownership) -> None:
    ownership.update([("orders", 1)], 100.0)
    assert ownership.problem(BEHIND, 119.0) is None
    ownership.update([], 119.5)
    ownership.update([("orders", 1)], 120.0)
    assert ownership.problem(BEHIND, 139.0) is None


def test_unowned_partitions_are_named_with_their_waiting_records(ownership: Ownership) -> None:
    ownership.update([("orders", 1), ("orders", 3)], 100.0)
    ownership.update([("orders", 1), ("orders", 2), ("orders", 3)], 110.0)
    assert ownership.problem(BEHIND, 125.0) == (
        "no worker has orders/1, orders/3, for 25 s: 40 records wait; the group assigns them"
        " when the session of the member that had them is over"
    )


def test_what_has_an_owner_since_the_last_update_is_not_named(ownership: Ownership) -> None:
    ownership.update([("orders", 1), ("orders", 3)], 100.0)
    reason = ownership.problem({("orders", 2): 20, ("orders", 3): 30}, 125.0)
    assert reason
    assert reason.startswith("no worker has orders/3, for 25 s: 30 records wait;")
    assert ownership.problem({}, 125.0) is None


def test_only_some_of_many_unowned_partitions_are_named(ownership: Ownership) -> None:
    ownership.update(BEHIND, 100.0)
    reason = ownership.problem(BEHIND, 120.0)
    assert reason
    assert "orders/4 and 4 more, for 20 s: 360 records wait" in reason
