"""The search for records that a topic never takes, among those that it refused together."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby

from kworker.core.record import Record


class RefusalSearch:
    """Records of one topic that are tried again in ever smaller portions, in their order.

    Owned by the backlog. Brokers refuse a whole batch for one record, and mostly do not name
    it; what is refused alone is guilty, or `doubted` where the topic may be at fault.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.portion = list(records)  # is tried now
        self.took = False  # the topic took one of its records since the search began
        self._portions: deque[list[Record]] = deque()  # to be tried
        self._doubted: list[Record] = []
        self._rests_until = 0.0
        self._stranger = False  # whose turn it is, among those that nobody has tried alone

    def __iter__(self) -> Iterator[Record]:
        """What is not tried now."""
        return chain(self._doubted, *self._portions)

    @property
    def over(self) -> bool:
        return not (self.portion or self._portions or self._doubted)

    @property
    def wants_stranger(self) -> bool:
        """Whether one of its topic that nobody refused would tell more than those in doubt."""
        return bool(self._doubted) and not self._portions

    def add(self, records: Iterable[Record]) -> None:
        """More of its topic, to be tried after all others."""
        self._portions.append(list(records))

    def begin(self, now: float) -> list[Record]:
        """The next portion; none while the topic rests."""
        if self._doubted and self.took:
            self._portions.appendleft(self._doubted)
            self._doubted = []
        if self._doubted:
            self.portion = self._probe() if now >= self._rests_until else []
        elif self._portions:
            self.portion = self._portions.popleft()
        return self.portion

    def _probe(self) -> list[Record]:
        """One that was refused alone, and in its turn one that was not: if that is taken, the
        topic is well, and those that it refuses are guilty."""
        self._stranger = not self._stranger and bool(self._portions)
        if not self._stranger:
            return [self._doubted.pop(0)]
        first = self._portions[0]
        one = first.pop(0)
        if not first:
            self._portions.popleft()
        return [one]

    def refused(self, guilty: Collection[Record]) -> Record | None:
        """Reports came of the portion, and of these that they, or others with them, are invalid.

        Returns the one that was refused alone.
        """
        portion, self.portion = self.portion, []
        if len(portion) == 1 and portion[0] in guilty:
            return portion[0]
        runs = [list(run) for _, run in groupby(portion, guilty.__contains__)]
        if len(runs) == 1 and portion[0] in guilty:
            middle = len(portion) // 2
            runs = [portion[:middle], portion[middle:]]
        self._portions.extendleft(reversed(runs))
        return None

    def doubt(self, record: Record, until: float) -> None:
        """It was refused alone, but so may be all others: the topic rests."""
        # In their order: one that was in doubt before is the first of them.
        at = len(self._doubted) if self._stranger else 0
        self._doubted.insert(at, record)
        self._rests_until = until

    def forget(self, records: Collection[Record]) -> None:
        """They are settled, condemned, or others' to publish."""

        def kept(each: Iterable[Record]) -> list[Record]:
            return [record for record in each if record not in records]

        self.portion, self._doubted = kept(self.portion), kept(self._doubted)
        self._portions = deque(filter(None, map(kept, self._portions)))
