"""When a process without a place in its group says so, and when another client joins for it."""

from math import inf

import pytest

from kworker.core.membership import Absence, Membership, MembershipPolicy

POLICY = MembershipPolicy(red_s=15, renew_s=60, renew_most_s=200)


@pytest.fixture
def membership() -> Membership:
    """A member until now, which is second 50."""
    made = Membership(POLICY, 0.0)
    made.update(None, 50.0)
    return made


def renewals(membership: Membership, seconds: range, answering_since: float = 0.0) -> list[int]:
    """The seconds at which another client joins."""
    found = []
    for now in seconds:
        if membership.renewal_due(now, answering_since):
            membership.renewed(now)
            found.append(now)
    return found


def test_a_short_rebalance_is_no_problem(membership: Membership) -> None:
    membership.update(Absence.REBALANCE, 100.0)
    assert membership.problem(114.0, 0.0) is None
    reason = membership.problem(117.0, 0.0)
    assert reason
    assert reason.startswith("not a member of the group for 17 s, though brokers answer: the group")
    assert reason.endswith("; another client joins in 43 s")


def test_a_broker_outage_hides_the_missing_coordinator(membership: Membership) -> None:
    membership.update(Absence.COORDINATOR, 100.0)
    assert membership.problem(200.0, inf) is None
    assert not membership.renewal_due(200.0, inf)


def test_a_member_rejoins_ever_less_often_until_it_is_one(membership: Membership) -> None:
    """Each time the whole group rebalances."""
    membership.update(Absence.REBALANCE, 100.0)
    assert renewals(membership, range(100, 800)) == [160, 280, 480, 680]
    membership.update(None, 800.0)
    membership.update(Absence.REBALANCE, 810.0)
    assert renewals(membership, range(810, 900)) == [870]


def test_brokers_must_have_answered_all_that_time(membership: Membership) -> None:
    """Back from an outage, the client joins by itself."""
    membership.update(Absence.JOINING, 100.0)
    assert renewals(membership, range(100, 300), answering_since=200.0) == [260]


def test_a_client_that_looks_for_its_coordinator_is_replaced(membership: Membership) -> None:
    """One was seen that never found it again."""
    membership.update(Absence.COORDINATOR, 100.0)
    reason = membership.problem(130.0, 0.0)
    assert reason
    assert "the group's coordinator does not answer" in reason
    assert reason.endswith("; another client joins in 30 s")
    assert renewals(membership, range(130, 500)) == [160, 280, 480]


def test_a_coordinator_found_late_leaves_the_join_its_time(membership: Membership) -> None:
    membership.update(Absence.COORDINATOR, 100.0)
    membership.update(Absence.JOINING, 150.0)
    assert renewals(membership, range(150, 300)) == [210]
    reason = membership.problem(250.0, 0.0)
    assert reason
    assert reason.startswith("not a member of the group for 150 s")


@pytest.mark.parametrize("absence", Absence)
def test_the_end_of_an_outage_gives_each_client_its_time(
    membership: Membership, absence: Absence
) -> None:
    membership.update(absence, 100.0)
    assert renewals(membership, range(100, 1000), answering_since=inf) == []
    assert renewals(membership, range(1000, 1060), answering_since=1000.0) == []
