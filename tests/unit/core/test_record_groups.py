"""Records by partition, and the runs of equal entries in a column of them."""

from hypothesis import given
from hypothesis import strategies as st

from kworker.core.outcome import (
    NO_RESULTS,
    TOMBSTONE,
    Outcome,
    Output,
    Results,
    RetryScheduled,
)
from kworker.core.record_groups import (
    WithoutResults,
    all_plain,
    all_without_results,
    by_partition,
    edges,
)
from tests.support.records import a_partition, a_record, plain_result_of

PARTITIONS = [a_partition(number=number) for number in range(3)]


@given(st.lists(st.integers(0, 2)))
def test_each_partition_is_there_once_with_its_records_in_order(numbers: list[int]) -> None:
    records = [a_record(PARTITIONS[number]) for number in numbers]
    expected = {
        partition: [record for record in records if record.partition is partition]
        for partition in dict.fromkeys(record.partition for record in records)
    }
    assert list(by_partition(records)) == list(expected.items())


def test_records_without_results_are_not_looked_at_again() -> None:
    records = [a_record(PARTITIONS[number]) for number in (0, 1, 0)]
    for record in records:
        record.outcome = NO_RESULTS
    known = WithoutResults(records, by_partition(records))
    assert (known, known.groups) == (records, by_partition(known))
    records[1].outcome = None
    assert (all_without_results(known), all_without_results(records)) == (True, False)


RECORD = a_record(PARTITIONS[0])
ONE = Output("results", None, b"v", [])
OUTCOMES: dict[str, tuple[Outcome, bool]] = {
    "nothing": (NO_RESULTS, True),
    "plain": (plain_result_of(RECORD, "results", b"v"), True),
    "one": (Results((ONE,)), True),
    "two": (Results((ONE, ONE)), False),
    "retry": (RetryScheduled((ONE,)), False),
    "tombstone": (TOMBSTONE, False),
}


@given(st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=1))
def test_records_are_plain_if_none_has_more_than_one_result(names: list[str]) -> None:
    records = [a_record(PARTITIONS[0], offset) for offset in range(len(names))]
    for record, name in zip(records, names, strict=True):
        record.outcome = OUTCOMES[name][0]
    assert all_plain(records) == all(OUTCOMES[name][1] for name in names)


@given(st.lists(st.integers(0, 2)))
def test_edges_are_where_an_entry_differs_and_the_end(column: list[int]) -> None:
    ends = range(1, len(column) + 1)
    assert edges(column) == [i for i in ends if i == len(column) or column[i] != column[i - 1]]
