"""When a candidate claims to lead its group, and whether it leads: by views alone, no clock."""

import json

import pytest

from kworker.core.leadership import Candidacy, Claim, Leader, Roster, View

SESSION_S = 10.0
ME, OTHER = Leader("me-1", "here", 1), Leader("other-1", "there", 2)
BOTH = ("me-1", "other-1")


def view(asked_at: float, named: Leader | None, count: int = 0) -> View:
    return View(asked_at, named.note(count) if named else "")


def candidate(*members: str, decides: bool = True) -> Candidacy:
    """A member since second 100, which knows the others since second 101, if they are given."""
    made = Candidacy(SESSION_S)
    made.identify("me-1")
    made.assigned(decides=decides, now=100.0)
    if members:
        made.update_roster(Roster(101.0, frozenset(members)))
    return made


def leader(*, decides: bool = False) -> Candidacy:
    """Leads by a claim of second 101; another has joined since."""
    made = candidate("me-1")
    claim = made.update(view(101.0, None), 101.0)
    assert claim
    made.accepted(claim, 101.0)
    made.revoked()
    made.assigned(decides=decides, now=101.5)
    return made


@pytest.mark.parametrize(
    ("decides", "members", "seen", "claims"),
    [
        pytest.param(True, ["me-1"], view(101, None), True, id="alone, and nobody is named"),
        pytest.param(True, ["me-1"], view(101, OTHER), True, id="the leader is no member"),
        pytest.param(True, ["me-1", "x"], view(101, OTHER), True, id="others are members"),
        pytest.param(True, BOTH, view(101, OTHER), False, id="the leader is a member"),
        pytest.param(True, BOTH, view(101, None), False, id="one of several may have led"),
        pytest.param(True, [], view(101, OTHER), False, id="nobody knows who is a member"),
        pytest.param(True, ["x"], view(101, OTHER), False, id="a roster without itself"),
        pytest.param(True, ["me-1"], view(99, OTHER), False, id="seen before the assignment"),
        pytest.param(False, ["me-1"], view(101, OTHER), False, id="another decides"),
        pytest.param(False, BOTH, view(101, None), False, id="another decides of nobody"),
    ],
)
def test_only_the_decider_claims_and_only_without_a_leader(
    decides: bool, members: list[str], seen: View, claims: bool
) -> None:
    """Of what is no older than the assignment that made it the decider."""
    made = candidate(*members, decides=decides)
    expected = Claim("me-1", 101.25, 100.0) if claims else None
    assert made.update(seen, 101.25) == expected
    assert not made.leads(101.25)


def test_a_roster_is_of_one_assignment() -> None:
    """Whoever joins or leaves begins another."""
    made = candidate()
    assert made.wants_roster
    made.update_roster(Roster(99.0, frozenset(["me-1"])))
    assert made.wants_roster
    made.update_roster(Roster(101.0, frozenset(["me-1"])))
    assert not made.wants_roster
    made.revoked()
    made.assigned(decides=True, now=102.0)
    assert made.wants_roster
    assert made.update(view(103.0, OTHER), 103.0) is None


def test_only_a_decider_that_does_not_lead_wants_a_roster() -> None:
    assert not candidate(decides=False).wants_roster
    assert not leader(decides=True).wants_roster


def test_a_claim_counts_when_the_group_has_committed_it() -> None:
    """Not when it is sent, from where its session counts."""
    made = candidate("me-1")
    claim = made.update(view(101.0, OTHER), 102.0)
    assert claim
    assert not made.leads(102.0)
    made.accepted(claim, 103.0)
    assert made.leads(103.0)
    assert made.leads(111.9)
    assert not made.leads(112.0)


@pytest.mark.parametrize("change", ["session", "assignment"])
def test_a_claim_of_an_earlier_session_does_not_count(change: str) -> None:
    """The client may have kept it back until another decided."""
    made = candidate("me-1")
    claim = made.update(view(101.0, OTHER), 101.0)
    assert claim
    if change == "session":
        made.identify("me-2")
    made.revoked()
    made.assigned(decides=False, now=102.0)
    made.accepted(claim, 103.0)
    assert not made.leads(103.0)


def test_a_view_older_than_the_accepted_claim_is_ignored() -> None:
    """It was asked while the commit was under way, and names the one before."""
    made = candidate("me-1")
    claim = made.update(view(101.0, OTHER), 101.0)
    assert claim
    made.accepted(claim, 103.0)
    assert made.update(view(102.0, OTHER), 103.0) is None
    assert made.leads(103.0)


def test_a_leader_renews_its_claim_even_if_another_decides() -> None:
    """Kafka refuses it once the session is over; while it takes it, the session goes on."""
    made = leader()
    for second in range(102, 200):
        claim = made.update(view(second, ME), second)
        assert claim == Claim("me-1", second, None)
        made.accepted(claim, second)
        assert made.leads(second + 9)


def test_a_leader_leads_through_a_rebalance_that_lasts() -> None:
    """A commit would wait behind the request to join, and so wait for the slowest neighbour."""
    made = leader()
    made.revoked()
    for second in range(102, 200):
        assert made.leads(second)
        assert made.update(view(second, ME), second) is None


def test_in_a_rebalance_a_lease_that_has_ended_stays_ended() -> None:
    """Its process stood still: nobody knows for how long it has been no member."""
    made = leader()
    made.revoked()
    assert made.update(view(120.0, ME), 120.0) is None
    assert not made.leads(120.0)


def test_a_leader_that_sees_another_named_steps_down() -> None:
    """Its lease is not waited for."""
    made = leader()
    assert made.update(view(103.0, OTHER), 103.0) is None
    assert not made.leads(103.0)
    assert not made.lapsed(103.0)


def test_a_leader_of_an_earlier_session_does_not_lead() -> None:
    """The group gave up the one that led."""
    made = leader()
    made.identify("")
    assert not made.leads(103.0)
    made.identify("me-1")
    assert not made.leads(103.0)


def test_a_refused_member_does_not_lead() -> None:
    """Its claim was answered that the group does not know it."""
    made = leader()
    made.expelled(Claim("me-0", 90.0, None))
    assert made.leads(103.0)
    made.expelled(Claim("me-1", 103.0, None))
    assert not made.leads(103.0)


def test_a_lease_that_has_ended_comes_back_by_a_claim() -> None:
    """The process stood still, or brokers were away, and nobody has followed."""
    made = leader()
    assert made.lapsed(120.0)
    claim = made.update(view(120.0, ME), 120.0)
    assert claim == Claim("me-1", 120.0, None)
    assert not made.leads(120.0)
    made.accepted(claim, 120.0)
    assert made.leads(120.0)


def test_a_lost_lead_returns_by_a_claim() -> None:
    made = leader()
    made.lost()
    assert not made.leads(103.0)
    made.assigned(decides=False, now=103.0)
    claim = made.update(view(103.0, ME), 103.0)
    assert claim
    made.accepted(claim, 103.0)
    assert made.leads(103.0)


def test_an_answer_is_worth_a_session_from_when_it_was_asked() -> None:
    """One that lay in a socket while the process stood still is old."""
    made = leader()
    claim = made.update(view(103.0, ME), 103.0)
    assert claim
    made.accepted(claim, 150.0)
    assert not made.leads(150.0)


def test_a_leader_writes_its_name_again_where_it_is_missing() -> None:
    """It went with the topic that was deleted, or a stranger committed over it."""
    made = leader()
    assert made.update(view(103.0, None), 103.0) == Claim("me-1", 103.0, None)
    made.revoked()
    assert made.update(view(104.0, None), 104.0) is None
    assert made.leads(104.0)


def test_a_leader_whose_name_is_missing_leads_for_one_lease() -> None:
    made = leader()
    for second in range(103, 111):
        assert made.update(view(second, None), second)
        assert made.leads(second)
    assert made.update(view(111, None), 111) is None
    assert not made.leads(111.0)


def test_several_nameless_members_wait_for_a_session() -> None:
    """One of them may have led, and lost its name with the topic."""
    made = candidate(*BOTH)
    claims = {s: made.update(view(s, None), s) for s in range(101, 113)}
    assert [second for second, claim in claims.items() if claim] == [111, 112]


def test_a_name_that_comes_back_ends_the_wait() -> None:
    made = candidate(*BOTH)
    for second in range(101, 110):
        assert made.update(view(second, None), second) is None
    assert made.update(view(110, OTHER), 110) is None
    assert made.update(view(112, None), 112) is None


def test_a_member_named_unexpectedly_waits_for_a_session() -> None:
    """Its commit was accepted late: another may have been named between, and lead."""
    made = candidate(decides=False)
    claims = {s: made.update(view(s, ME), s) for s in range(101, 112)}
    assert [second for second, claim in claims.items() if claim] == [111]
    assert claims[111] == Claim("me-1", 111, None)


def test_a_leader_that_is_silent_is_told() -> None:
    """A tool that joined the group may own partition 0, and appoint nobody."""
    made = candidate(decides=False)
    for second in range(101, 150):
        made.update(view(second, OTHER, count=second), second)
        assert made.problem() == ""
    for second in range(150, 171):
        made.update(view(second, OTHER), second)
    assert made.problem().startswith("process 2 on there leads, and has been silent for 20 s")
    made.update(view(171, OTHER, count=1), 171)
    assert made.problem() == ""


def test_a_group_without_a_leader_is_told() -> None:
    made = candidate(decides=False)
    for second in range(101, 123):
        made.update(view(second, None), second)
    assert made.problem().startswith("no leader for 21 s: partition 0 belongs to a client")


def test_a_job_without_a_group_answer_joins_anew() -> None:
    """The library waits for minutes for the answer to a join that was lost."""
    made = candidate()
    made.revoked()
    made.update(view(101, OTHER, 1), 101)
    assert (made.problem(), made.overdue()) == ("", False)
    made.update(view(120, OTHER, 2), 120)
    assert made.problem() == "no place in it for 19 s: a rebalance does not end"
    made.update(view(221, OTHER, 3), 221)
    assert made.overdue()
    made.rejoin()
    made.update(view(222, OTHER, 4), 222)
    assert not made.overdue()


def test_a_leader_that_waits_for_a_rebalance_is_not_replaced() -> None:
    """Another client of its would be another member."""
    made = leader()
    made.revoked()
    for second in range(102, 400):
        made.update(view(second, ME), second)
    assert made.leads(400.0)
    assert not made.overdue()
    assert made.problem() == ""


@pytest.mark.parametrize(
    "metadata",
    ["", "x", "1", "[]", "null", "{}", '{"member": "a"}', '{"member": "a", "host": 2, "pid": "x"}'],
)
def test_foreign_metadata_names_no_leader(metadata: str) -> None:
    assert Leader.noted(metadata) is None


def test_a_note_is_read_as_it_was_written() -> None:
    """And tells of each commit apart, so that others see a leader go on."""
    named = Leader("orders-host-1-spark.0f-1", 'hôst "1"', 7)
    assert Leader.noted(named.note(3)) == named
    assert named.note(3) != named.note(4)
    assert json.loads(named.note(3))["count"] == 3
    assert str(named) == 'process 7 on hôst "1"'
