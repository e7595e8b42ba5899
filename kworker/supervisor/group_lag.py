"""The group's lag as the status tells it: what the workers know of theirs, and all the rest."""

from collections.abc import Callable
from typing import Any

from kworker.core.message import PartitionId
from kworker.core.ownership import Ownership
from kworker.instance.scoreboard import Field, Text
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.limits import Limits

_LOOK_EVERY_S = 1.0


class GroupLag:
    """Sums what the workers and the delay process tell, and watches for what nobody has.

    Owned by the supervisor.
    """

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._ownership = Ownership(limits.unowned_s)
        self._look_at = 0.0

    def turn(self, ask: Callable[[], Text], now: float) -> None:
        """Now and then compares what the delay process tells with what the workers have."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        told = ask()
        others = {(topic, number) for topic, numbers in told.others for number in numbers}
        self._ownership.hear(_behind(told).keys() - others - self._owned(), now)

    def reasons(self, told: Text, now: float) -> list[str]:
        reason = self._ownership.reason(_behind(told), now)
        return [reason] if reason else []

    def part(self, told: Text) -> dict[str, Any]:
        """`lag` of the status document; None is not known."""
        fleet = self._fleet
        oldest_ms = max((m.slot.words[Field.AGE_MS] for m in fleet.members), default=0)
        records, unfinished = None, None
        if told.behind is not None:
            owned = self._owned()
            rest = sum(count for at, count in _behind(told).items() if at not in owned)
            records = fleet.sum(Field.LAG_RECORDS) + rest
            unfinished = fleet.sum(Field.UNFINISHED) + rest
        return {"records": records, "unfinished": unfinished, "age_s": oldest_ms / 1000}

    def _owned(self) -> set[PartitionId]:
        texts = [member.slot.read_text() for member in self._fleet.living]
        return {at for text in texts for at in text.partitions}


def _behind(told: Text) -> dict[PartitionId, int]:
    rows = told.behind or ()
    return {(topic, n): count for topic, numbers in rows for n, count in enumerate(numbers)}
