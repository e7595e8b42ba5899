"""The search for records that a topic never takes, among those that it refused together."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby

from kworker.core.record import Record


class RefusalSearch:
    """Finds the records that a topic refuses for good, within a batch that it refused.

    Owned by `Refusals`. Brokers refuse a whole batch because of one record, and mostly do not name
    that record. So the batch is split, and ever fewer records are tried together. A record that is
    refused when it is tried alone is at fault. But if the topic itself may be at fault, `doubt`
    keeps the record for another try.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.portion = list(records)  # is tried now
        self.took = False  # the topic took one of its records since the search began
        self._portions: deque[list[Record]] = deque()  # to be tried
        self._doubted: list[Record] = []
        self._rests_until = 0.0
        self._stranger = False  # the present probe is one that was not refused alone

    def __iter__(self) -> Iterator[Record]:
        """Iterates over the records of the search, except those that are being tried now."""
        return chain(self._doubted, *self._portions)

    @property
    def over(self) -> bool:
        return not (self.portion or self._portions or self._doubted)

    @property
    def wants_stranger(self) -> bool:
        """True if all records that are left to try were already tried alone, and refused.

        Then the search needs a record that was not refused, to test whether the topic works.
        """
        return bool(self._doubted) and not self._portions

    def add(self, records: Iterable[Record]) -> None:
        """Adds records with outputs for the topic. They are tried after the present records."""
        self._portions.append(list(records))

    def begin(self, now: float) -> list[Record]:
        """Returns the records to try together next; an empty list while the topic backs off."""
        if self._doubted and self.took:
            self._portions.appendleft(self._doubted)
            self._doubted = []
        if self._doubted:
            self.portion = self._probe() if now >= self._rests_until else []
        elif self._portions:
            self.portion = self._portions.popleft()
        return self.portion

    def _probe(self) -> list[Record]:
        """Returns a list of one record, which is tried alone to test whether the topic works.

        The calls take turns between two kinds of records: those that were never tried alone, and
        those that were tried alone and refused. If none of the first kind is left, the record is of
        the second kind. Once the topic accepts a record, the topic works, and any record that it
        refuses when tried alone is at fault.
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
        """Ends a try in which Kafka reported the `guilty` records as invalid.

        If only one record was tried, and is guilty, returns this record. Otherwise splits the
        records into smaller portions to try later, and returns None.
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
        """Keeps a record that was tried alone and refused, since its topic may be at fault.

        No record is tried before the time `until`.
        """
        # In their order: one that was doubted before is the first of them.
        at = len(self._doubted) if self._stranger else 0
        self._doubted.insert(at, record)
        self._rests_until = until

    def forget(self, records: Collection[Record]) -> None:
        """Removes these records from the search.

        They are settled or given up, or another worker owns their partitions now.
        """

        def kept(each: Iterable[Record]) -> list[Record]:
            return [record for record in each if record not in records]

        self.portion, self._doubted = kept(self.portion), kept(self._doubted)
        self._portions = deque(filter(None, map(kept, self._portions)))
