"""What a dead letter says, which are meant by a selection, and how they group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.message import Fields, HeaderList
from kworker.dead_letters.dead_letter import FOREIGN, DeadLetter, DeadLetterPosition
from kworker.dead_letters.grouping import group_by_reason
from kworker.dead_letters.selection import Selection, spans
from tests.support.dead import NOW, dead_headers
from tests.support.records import Unreadable

PRODUCED = [
    ("plain", b"1"),
    ("plain", None),
    ("kworker-source", b"the producer's"),
    ("kworker-in-x", b""),
    ("kafka_dlt-original-topic", b"the producer's, too"),
]


def letter(
    partition: int = 0,
    offset: int = 0,
    *,
    key: bytes | None = b"k",
    headers: HeaderList | None = None,
    **told: object,
) -> DeadLetter:
    written = dead_headers(**told) if headers is None else headers
    raw = Fields(("orders.dead", partition, offset), 123, key, b"v", tuple(written))
    return DeadLetter.of(raw)


def test_a_dead_letter_separates_kworkers_and_producers_headers():
    """kworker's are not among them; what the producer called alike is."""
    found = letter(3, 17, own=PRODUCED, redriven=2)
    assert found.identity == (3, 17, 123)
    assert str(found.place) == "3:17"
    assert found.headers == PRODUCED
    assert str(found.source) == "orders/0/5/1700000000000"
    assert (found.reason, found.exception) == ("exhausted", "requests.exceptions.Timeout")
    assert (found.message, found.attempt, found.redriven) == ("no answer", 4, 2)
    assert found.failed_at == NOW


def test_a_record_with_unreadable_headers_is_foreign():
    """kworker writes none such; and nobody may ask for them again."""
    found = DeadLetter.of(Fields(("orders.dead", 0, 1), 123, b"k", b"v", Unreadable()))
    assert (found.reason, found.headers, found.key, found.value) == (FOREIGN, [], b"k", b"v")
    assert found.message.startswith("its headers cannot be read ('utf-8' codec")


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "kworker-x", "kworker-in-y", "kworker-source", "kworker-reason"])
        | st.text(max_size=5),
        st.none() | st.binary(max_size=5),
    ),
    max_size=8,
)


@given(HEADERS)
def test_no_header_of_a_producer_is_lost_or_believed(own):
    """Whatever its name: else a producer could have its record resolved, or sent elsewhere."""
    found = letter(own=own)
    assert found.headers == own
    assert found.reason == "exhausted"


@given(HEADERS)
def test_a_record_with_any_headers_can_be_listed(headers):
    """Anybody may write into a topic."""
    found = letter(headers=headers)
    assert found in Selection()
    if found.envelope is None:
        assert (found.reason, found.source, found.failed_at) == (FOREIGN, None, 123)
        assert found.headers == headers


@pytest.mark.parametrize("failed_at", ["", "yesterday", "-1", "²", "9" * 5_000])
def test_an_invalid_failure_time_becomes_the_record_time(failed_at):
    assert letter(failed_at=failed_at).failed_at == 123


@pytest.mark.parametrize(
    ("selection", "meant"),
    [
        (Selection(), True),
        (Selection(reason="exhausted"), True),
        (Selection(reason="rejected"), False),
        (Selection(exception="requests.exceptions.Timeout"), True),
        (Selection(exception="Timeout"), True),
        (Selection(exception="exceptions.Timeout"), False),
        (Selection(exception="imeout"), False),
        (Selection(since_ms=NOW), True),
        (Selection(since_ms=NOW + 1), False),
        (Selection(key="k"), True),
        (Selection(key="K"), False),
        (Selection(key=""), False),
        (Selection(places=frozenset({DeadLetterPosition(3, 17)})), True),
        (Selection(places=frozenset({DeadLetterPosition(3, 18)})), False),
        (Selection(sources=frozenset({("orders", 0, 5)})), True),
        (Selection(sources=frozenset({("orders", 0, 6)})), False),
        (
            Selection(
                places=frozenset({DeadLetterPosition(0, 0)}), sources=frozenset({("orders", 0, 5)})
            ),
            True,
        ),
        (Selection(reason="exhausted", key="other"), False),
        (Selection(reason="exhausted", exception="Timeout", since_ms=NOW, key="k"), True),
    ],
)
def test_a_selection_meets_all_its_conditions(selection, meant):
    assert (letter(3, 17) in selection) is meant
    assert bool(selection) is (selection != Selection())


def test_a_binary_key_is_selected_by_hex_and_null_by_nothing():
    """As `show` shows it."""
    assert letter(key=b"\xff\x0a") in Selection(key="FF0a")
    assert letter(key=b"") in Selection(key="")
    assert letter(key=None) not in Selection(key="")


def test_groups_count_by_reason_and_exception_the_largest_first():
    """Of those that are resolved, it tells how many."""
    letters = [
        (letter(0, 0, reason="b", failed_at=NOW + 5, message="newest"), False),
        (letter(0, 1, reason="b", failed_at=NOW), True),
        (letter(0, 2, reason="a", exception="x"), False),
        (letter(0, 3, reason="a", exception="y"), False),
    ]
    groups = group_by_reason(letters)
    found = [(group.reason, group.exception, group.count, group.resolved) for group in groups]
    assert found == [
        ("b", "requests.exceptions.Timeout", 2, 1),
        ("a", "x", 1, 0),
        ("a", "y", 1, 0),
    ]
    assert (groups[0].oldest_ms, groups[0].newest_ms) == (NOW, NOW + 5)
    assert (groups[0].message, groups[0].example) == ("newest", DeadLetterPosition(0, 0))


@given(st.sets(st.builds(DeadLetterPosition, st.integers(0, 3), st.integers(0, 50)), min_size=1))
def test_spans_reach_from_the_first_to_the_last_offset(places):
    found = spans(places)
    for partition, span in found.items():
        offsets = [place.offset for place in places if place.partition == partition]
        assert (span.start, span.stop - 1) == (min(offsets), max(offsets))
    assert found.keys() == {place.partition for place in places}
