"""The search for records that a topic never takes, among those that it refused together."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby

from kworker.core.record import Record


class RefusalSearch:
    """Tries records of one topic again in ever smaller portions, in their order.

    Owned by the refusals. Brokers refuse a whole batch for one record, and mostly do not name
    it. A record that is refused alone is guilty, or `doubted` where the topic may be at fault.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.portion = list(records)  # is tried now
        self.took = False  # the topic took one of its records since the search began
        self._portions: deque[list[Record]] = deque()  # to be tried
        self._doubted: list[Record] = []
        self._rests_until = 0.0
        self._stranger = False  # the present probe is one that was not refused alone

    def __iter__(self) -> Iterator[Record]:
        """The records that are not being tried."""
        return chain(self._doubted, *self._portions)

    @property
    def over(self) -> bool:
        return not (self.portion or self._portions or self._doubted)

    @property
    def wants_stranger(self) -> bool:
        """True if a record that was never refused would show more than the doubted ones."""
        return bool(self._doubted) and not self._portions

    def add(self, records: Iterable[Record]) -> None:
        """Takes more records of its topic, to be tried after all others."""
        self._portions.append(list(records))

    def begin(self, now: float) -> list[Record]:
        """Returns the next portion; none while the topic rests."""
        if self._doubted and self.took:
            self._portions.appendleft(self._doubted)
            self._doubted = []
        if self._doubted:
            self.portion = self._probe() if now >= self._rests_until else []
        elif self._portions:
            self.portion = self._portions.popleft()
        return self.portion

    def _probe(self) -> list[Record]:
        """Returns, in turns, one record that was refused alone and one that was not.

        If the latter is taken, the topic is well, and the records that it refuses are guilty.
        """
        self._stranger = not self._stranger and bool(self._portions)
        if not self._stranger:
            return [self._doubted.pop(0)]
        first = self._portions[0]
        one = first.pop(0)
        if not first:
            self._portions.popleft()
        return [one]

    def refused(self, guilty: Collection[Record]) -> Record | None:
        """Ends the trial of the portion, of which these, or others with them, are invalid.

        Returns the record that was refused alone, if any.
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
        """Keeps a record that was refused alone, as all others may be: the topic rests."""
        # In their order: one that was doubted before is the first of them.
        at = len(self._doubted) if self._stranger else 0
        self._doubted.insert(at, record)
        self._rests_until = until

    def forget(self, records: Collection[Record]) -> None:
        """Ends the search among records that are settled, condemned or other members'."""

        def kept(each: Iterable[Record]) -> list[Record]:
            return [record for record in each if record not in records]

        self.portion, self._doubted = kept(self.portion), kept(self._doubted)
        self._portions = deque(filter(None, map(kept, self._portions)))
