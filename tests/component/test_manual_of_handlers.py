"""What docs/handlers.md shows is what happens."""

import re
from pathlib import Path
from typing import Any

import pytest

from kworker.testing import message, run

MANUAL = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()
RETRIES = {"retry": {"delays": ["1m"]}}


class Session:
    """What `connect` in the manual stands for."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.open = True

    async def send(self, number: int) -> None:
        assert self.open
        self.sent.append(number)

    async def close(self) -> None:
        self.open = False


@pytest.fixture
def shown() -> dict[str, Any]:
    """All names that the manual defines."""
    session = Session()

    async def connect() -> Session:
        return session

    names: dict[str, Any] = {
        "connect": connect,
        "session": session,
        "slow_digest": lambda order: f"digest of {order.order_id}",
        "__name__": __name__,
    }
    for block in re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL):
        exec(block, names)
    return names


def test_a_handler_takes_the_message(shown: dict[str, Any]) -> None:
    assert run(shown["greet"], ["world"]).values() == [{"hello": "world", "from": "test/0"}]


def test_a_handler_takes_what_is_built_from_the_value(shown: dict[str, Any]) -> None:
    orders = [
        {"order_id": 1, "total": "9.50", "ordered_at": "2026-01-31T12:00:00Z"},
        {"order_id": "2", "total": 1},
        {"order_id": 3},
        {"order_id": 4, "total": 1, "discount": 1},
    ]
    report = run(shown["invoice"], orders)
    assert report.values() == [{"invoice": 1, "total": "9.50", "attempt": 1}]
    assert {letter.reason for letter in report.dead} == {"undecodable"}
    fields = ["order_id: Input should be", "total: Field required", "discount: no such field"]
    for letter, field in zip(report.dead, fields, strict=True):
        assert letter.message.startswith(f"the value does not fit Order at {field}")


def test_a_handler_returns_several_results(shown: dict[str, Any]) -> None:
    report = run(shown["split"], [message({"id": 7, "skus": ["a", "b"]}, key="k")])
    assert report.values() == [{"order": 7, "sku": "a"}, {"order": 7, "sku": "b"}, {"order": 7}]
    assert [(each.key, each.table) for each in report.results] == [
        (b"k", None),
        (b"k", None),
        (b"totals", "totals"),
    ]
    assert report.results[2].headers == [("kind", b"total")]


def test_a_handler_raises_what_the_record_deserves(shown: dict[str, Any]) -> None:
    values = [b'"busy"', b'"later"', b'"unknown"', b'"mistaken"']
    runs: dict[str, int] = {}

    def charge(given: Any) -> None:
        runs[given.text()] = runs.get(given.text(), 0) + 1
        if given.json() != "later" or runs[given.text()] == 1:
            shown["charge"](given)

    report = run(charge, values, settings=RETRIES)
    assert [(letter.source.offset, letter.reason) for letter in report.dead] == [
        (0, "exhausted"),
        (2, "rejected"),
        (3, "exhausted"),
    ]
    assert [(each.source.offset, each.attempt, each.wait_s) for each in report.retries] == [
        (0, 2, 30.0),
        (1, 1, 600.0),
        (3, 2, 60.0),
    ]
    with pytest.raises(AssertionError, match="billing is unavailable"):
        run(charge, [b'"down"'], limit_s=60)


def test_a_batch_handler_returns_an_outcome_for_each(shown: dict[str, Any]) -> None:
    totals = [5, -1, 6, 0, 7]
    orders = [{"order_id": n, "total": total} for n, total in enumerate(totals)]
    report = run(shown["insert"], orders, settings=RETRIES)
    assert [value["inserted"] for value in report.values()] == [0, 2, 4]
    assert [(letter.source.offset, letter.reason) for letter in report.dead] == [
        (1, "rejected"),
        (3, "exhausted"),
    ]


def test_a_class_is_created_and_closed(
    shown: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(shown["Prices"], ["apple", "pear"], settings={"retry": {"delays": []}})
    assert report.values() == [{"price": 3}]
    assert "test/0/1 is dead: 'pear'\n" in capsys.readouterr().out


def test_an_async_class_is_opened_and_closed(shown: dict[str, Any]) -> None:
    report = run(shown["Billing"], [{"order_id": 7, "total": 1}])
    assert report.values() == [{"order": 7, "digest": "digest of 7"}]
    session = shown["session"]
    assert (session.sent, session.open) == ([7], False)


def test_tombstones_are_handled_or_skipped(shown: dict[str, Any]) -> None:
    records = [message({"order_id": 7, "total": 1}, key="a"), message(None, key="b")]
    report = run(shown["mirror"], records)
    assert [(each.key, each.value) for each in report.results] == [
        (b"a", b'{"id":7}'),
        (b"b", None),
    ]
    skipped = run(shown["mirror"], records, settings={"source": {"tombstones": "skip"}})
    assert [each.key for each in skipped.results] == [b"a"]
    assert skipped.committed == {("test", 0): 2}
