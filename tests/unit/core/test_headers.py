"""Headers: the one that names a record's trace."""

import pytest

from kworker.core.headers import trace_of, with_trace
from kworker.core.message import HeaderList

A: HeaderList = [("a", b"1"), ("a", None)]
OLD = ("traceparent", b"old")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], [("traceparent", b"new")]),
        (A, [*A, ("traceparent", b"new")]),
        ([A[0], OLD, A[1]], [A[0], ("traceparent", b"new"), A[1]]),
        ([OLD, *A, OLD], [("traceparent", b"new"), *A]),
    ],
)
def test_a_trace_takes_the_place_of_another(headers: HeaderList, expected: HeaderList) -> None:
    """The other headers are the user's: kept in their order, with repeats."""
    assert with_trace(headers, b"new") == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [([], b""), ([("traceparent", None)], b""), ([*A, OLD, ("traceparent", b"2")], b"old")],
)
def test_the_first_trace_counts(headers: HeaderList, expected: bytes) -> None:
    assert trace_of(headers) == expected
