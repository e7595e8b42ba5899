"""Common properties of many records: their partitions, and outcomes that ended them well."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

from kworker.core.outcome import NO_RESULTS, PlainResult, Results
from kworker.core.record import Partition, Record

_ADJACENT = 3  # records, by which it is guessed that the records of a partition are adjacent
Groups = Collection[tuple[Partition, Sequence[Record]]]
"""Records by partition, in their order; each partition once."""
_partition = attrgetter("partition")


class WithoutResults(list[Record]):
    """Records that all ended well with `NO_RESULTS`, and the same records by partition.

    Nothing is written for them, so they are settled as they are: to look at each again, and to
    group them again, costs a third as much as all else that follows the run of a cheap handler.
    """

    def __init__(self, records: Sequence[Record], groups: Groups) -> None:
        super().__init__(records)
        self.groups = groups


def all_without_results(records: Sequence[Record]) -> bool:
    """Returns True if there are records and all ended well with `NO_RESULTS`: the fastest check."""
    if type(records) is WithoutResults:
        return True
    if not records or records[0].outcome is not NO_RESULTS:
        return False
    outcomes = [record.outcome for record in records]
    return outcomes.count(NO_RESULTS) == len(outcomes)


def all_plain(records: Sequence[Record]) -> bool:
    """Returns True if each record ended well, with no more than one result."""
    if all_without_results(records):
        return True
    outcomes: list[Any] = [record.outcome for record in records]
    kinds = list(map(type, outcomes))
    if kinds.count(PlainResult) == len(kinds):  # the fastest check
        return True
    singles = [
        kind is PlainResult or (kind is Results and len(outcome) < 2)
        for kind, outcome in zip(kinds, outcomes, strict=True)
    ]
    return all(singles)


def all_ended_well(records: Sequence[Record]) -> bool:
    """Returns True if all outcomes are `Succeeded`: one fast check of many records."""
    if all_without_results(records):
        return True
    kinds: list[type] = [type(record.outcome) for record in records]
    well = kinds.count(Results)
    return well == len(kinds) or well + kinds.count(PlainResult) == len(kinds)


def by_partition(records: Sequence[Record]) -> Groups:
    """Groups records by partition, since work on a whole group costs half as much."""
    if type(records) is WithoutResults:
        return records.groups
    found: defaultdict[Partition, list[Record]] = defaultdict(list)
    first = records[0].partition if records else None
    if all(record.partition is first for record in records[:_ADJACENT]):
        # Then others are most likely adjacent, too, which is twice as fast.
        for partition, own in groupby(records, _partition):
            found[partition] += own
    else:
        for record in records:
            found[record.partition].append(record)
    return found.items()


def edges(column: Sequence[object]) -> list[int]:
    """Returns the index after each run of equal entries; the last index is the length."""
    if not column or column.count(column[0]) == len(column):
        return [len(column)] if column else []
    return list(accumulate([len(list(run)) for _, run in groupby(column)]))
