"""docs/failures.md has each reason of a dead letter, and each header."""

from kworker.core import headers
from kworker.instance.scoreboard_fields import DEAD_BY_REASON
from tests.unit.docs.pages import page, rows, spans

TEXT = page("failures.md")


def test_each_reason_of_a_dead_letter_is_described() -> None:
    described = [spans(reason)[0] for reason, _ in rows(TEXT, "reason")]
    assert sorted(described) == sorted(DEAD_BY_REASON)


def test_each_header_is_described() -> None:
    described = [name for first, *_ in rows(TEXT, "header") for name in spans(first)]
    names = [
        value
        for name, value in vars(headers).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    ]
    assert sorted(described) == sorted(set(names) - {headers.NO_ROOM_FOR_HEADERS})
