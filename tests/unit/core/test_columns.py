"""Records by partition, and the runs of equal entries in a column of them."""

from hypothesis import given
from hypothesis import strategies as st

from kworker.core.record import by_partition, edges
from tests.support.records import a_partition, a_record

PARTITIONS = [a_partition(number=number) for number in range(3)]


@given(st.lists(st.integers(0, 2)))
def test_each_partition_is_there_once_with_its_records_in_order(numbers: list[int]) -> None:
    records = [a_record(PARTITIONS[number]) for number in numbers]
    expected = {
        partition: [record for record in records if record.partition is partition]
        for partition in dict.fromkeys(record.partition for record in records)
    }
    assert list(by_partition(records)) == list(expected.items())


@given(st.lists(st.integers(0, 2)))
def test_edges_are_where_an_entry_differs_and_the_end(column: list[int]) -> None:
    ends = range(1, len(column) + 1)
    assert edges(column) == [i for i in ends if i == len(column) or column[i] != column[i - 1]]
