"""The group's lag in the status: of this instance's partitions and of all others."""

from collections.abc import Callable
from typing import Any

from kworker.core.message import PartitionId
from kworker.core.ownership import Ownership
from kworker.instance.scoreboard import Text
from kworker.instance.scoreboard_fields import Field
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.limits import Limits

_COMPARE_EVERY_S = 1.0


class GroupLag:
    """Sums the group's lag, and finds partitions without an owner. Owned by the supervisor."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._ownership = Ownership(limits.unowned_s)
        self._compare_at = 0.0

    def turn(self, read_delay_text: Callable[[], Text], now: float) -> None:
        """Reads the delay process's report once a second, to find partitions without an owner."""
        if now < self._compare_at:
            return
        self._compare_at = now + _COMPARE_EVERY_S
        self._ownership.update(self._unowned(read_delay_text()), now)

    def problems(self, delay_text: Text, now: float) -> list[str]:
        problem = self._ownership.problem(self._unowned(delay_text), now)
        return [problem] if problem else []

    def status(self, delay_text: Text) -> dict[str, Any]:
        """Returns the value of `lag` in `status --json`, in which unknown numbers are None.

        `records` is the number of offsets that no worker has taken, `unfinished` the number from
        the committed positions on. `topics` has an entry for each topic, in which `behind` is the
        number of offsets from the group's positions to the ends of the partitions. While the
        brokers do not answer, or if there are too many topics for a report, both numbers are
        unknown, and `topics` is empty. If a worker has too many partitions to report all of them,
        only the two numbers are unknown.
        """
        fleet = self._fleet
        oldest_ms = max((m.slot.words[Field.AGE_MS] for m in fleet.workers), default=0)
        records, unfinished = None, None
        owned = self._owned()
        if delay_text.behind is not None and owned is not None:
            rest = sum(count for at, count in _behind(delay_text).items() if at not in owned)
            records = fleet.sum(Field.LAG_RECORDS) + rest
            unfinished = fleet.sum(Field.UNFINISHED) + rest
        topics = [
            {"topic": topic, "partitions": len(counts), "behind": sum(counts)}
            for topic, counts in delay_text.behind or ()
        ]
        return {
            "records": records,
            "unfinished": unfinished,
            "age_s": oldest_ms / 1000,
            "topics": topics,
        }

    def _unowned(self, delay_text: Text) -> dict[PartitionId, int]:
        """Returns the partitions that no member of the group has, and how many offsets each lags.

        Returns {} if a worker cannot report all of its partitions.
        """
        if (owned := self._owned()) is None:
            return {}
        others = {(topic, number) for topic, numbers in delay_text.others for number in numbers}
        behind = _behind(delay_text)
        return {at: behind[at] for at in behind.keys() - owned - others}

    def _owned(self) -> set[PartitionId] | None:
        """Returns the workers' partitions; None if a worker has too many to report all of them."""
        texts = [worker.slot.read_text() for worker in self._fleet.living]
        if any(text.partitions_cut for text in texts):
            return None
        return {at for text in texts for at in text.partitions}


def _behind(delay_text: Text) -> dict[PartitionId, int]:
    rows = delay_text.behind or ()
    return {(topic, n): count for topic, numbers in rows for n, count in enumerate(numbers)}
