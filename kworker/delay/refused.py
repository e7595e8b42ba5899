"""Partitions whose records Kafka refused: forwarded one at a time, or left out for a while."""

from collections.abc import Collection
from math import inf

from kworker.core.message import PartitionId


class RefusedPartitions:
    """The partitions whose records were in a transaction that Kafka refused.

    Any of these partitions may be the cause. So each is forwarded next in a transaction of its own.
    If Kafka refuses that, too, the partition is left out for `rest_s` seconds, which begin when
    other partitions can be forwarded again. So a record that cannot be written does not hold up
    other partitions. Owned by the delay process's thread; times are monotonic seconds.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._alone: set[PartitionId] = set()
        self._rests: dict[PartitionId, tuple[float, str]] = {}  # until when, and why

    def refused(self, partitions: Collection[PartitionId], why: str) -> None:
        """Notes that Kafka refused a transaction with records of these partitions.

        Nothing can be forwarded until `resumed` is called.
        """
        self._alone.update(partitions)
        if len(partitions) == 1:
            self._rests.update(dict.fromkeys(partitions, (inf, why)))

    def resumed(self, now: float) -> None:
        """Notes that records can be forwarded again.

        If the last refused transaction had only one partition, that partition is left out for
        `rest_s` seconds from `now`.
        """
        for at, (until, why) in self._rests.items():
            if until == inf:
                self.rest(at, why, now)

    def rest(self, at: PartitionId, why: str, now: float) -> None:
        """Leaves a partition out of all transactions for `rest_s` seconds.

        `why` says why the partition's first record cannot be forwarded now.
        """
        self._rests[at] = (now + self._rest_s, why)

    def accepted(self, partitions: Collection[PartitionId]) -> None:
        """Forgets partitions whose records were forwarded, or which another member owns now."""
        self._alone.difference_update(partitions)
        for at in partitions:
            self._rests.pop(at, None)

    def choose(self, ready: Collection[PartitionId], now: float) -> list[PartitionId]:
        """Returns the partitions whose records the next transaction forwards.

        Skips partitions that are left out now. If any of the rest was in a refused transaction,
        returns one such partition alone: the one refused longest ago. Otherwise returns the rest.
        But while a refused partition is left out, the partitions that were in no refused
        transaction go first, all together: to try a refused one first might delay them.
        """
        awake = [at for at in ready if self.rests_until(at) <= now]
        alone = [at for at in awake if at in self._alone]
        others = [at for at in awake if at not in self._alone]
        one_rests = any(self.rests_until(at) > now for at in self._alone)
        if not alone or (others and one_rests):
            return others
        return [min(alone, key=self.rests_until)]

    def is_alone(self, at: PartitionId) -> bool:
        return at in self._alone

    def rests_until(self, at: PartitionId) -> float:
        return self._rests[at][0] if at in self._rests else 0.0

    @property
    def problems(self) -> list[str]:
        """The reasons why partitions cannot be forwarded now, each once."""
        return list(dict.fromkeys(why for _, why in self._rests.values()))
