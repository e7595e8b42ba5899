"""The group's lag as the delay process tells it: asked aside, and unknown when it is."""

import pytest

from kworker.clients.admin_connection import AdminRequestError
from kworker.clients.group_view import GroupView
from kworker.delay.group_lag import GroupLagReader
from kworker.errors import Unreachable
from kworker.instance.scoreboard import Scoreboard, Text
from tests.support.waiting import eventually

OWNERS = {("orders", 0): "here-0", ("orders", 1): "there-0"}


class Brokers:
    """Answers what the test says."""

    def __init__(self) -> None:
        self.behind = {("orders", 0): 5, ("orders", 1): 6, ("orders.requeue", 0): 7}
        self.error: Exception | None = None
        self.asked = 0

    def look(self) -> GroupView:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return GroupView(self.behind, OWNERS)


def told(lag: GroupLagReader, brokers: Brokers, now: float) -> Text:
    """After one more answer."""
    before = brokers.asked
    lag.turn(now)
    eventually(lambda: brokers.asked > before)
    eventually(lambda: lag._asked is None or lag._asked.done())
    lag.turn(now)
    return lag.add_to(Text(problems=("one",)))


def test_each_partition_is_counted_and_foreign_owners_are_marked() -> None:
    """And all of it comes through shared memory."""
    brokers = Brokers()
    lag = GroupLagReader(brokers.look, lambda name: name.startswith("here-"))
    text = told(lag, brokers, 10.0)
    assert text.behind == (("orders", (5, 6)), ("orders.requeue", (7,)))
    assert text.others == (("orders", (1,)),)
    [slot] = Scoreboard(1, 0).slots
    slot.write_text(text)
    assert slot.read_text() == text


@pytest.mark.parametrize(
    "error", [Unreachable("no broker answers"), AdminRequestError("no leader")]
)
def test_an_unknown_lag_is_not_zero(error: Exception) -> None:
    brokers = Brokers()
    lag = GroupLagReader(brokers.look, lambda _: True)
    assert lag.add_to(Text()).behind is None
    assert told(lag, brokers, 10.0).behind
    brokers.error = error
    assert told(lag, brokers, 20.0) == Text(problems=("one",))
    brokers.error = None
    assert told(lag, brokers, 30.0).behind
