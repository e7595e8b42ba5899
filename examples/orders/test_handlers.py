"""The handler of an order, tested without a server: `python -m pytest examples/orders`."""

from collections.abc import Callable, Iterator
from typing import Any

import handlers
import pytest

from kworker.testing import RunReport, message

HOURLY = {"retry": {"delays": ["1h", "1h"]}}
Run = Callable[..., RunReport]


class Billing:
    """The billing service: answers what the test wants, and counts its calls."""

    def __init__(self) -> None:
        self.answers: dict[int, Iterator[Any]] = {}
        self.calls: list[int] = []

    def invoice(self, order: dict) -> dict:
        number = order["order_id"]
        self.calls.append(number)
        answer = next(self.answers.get(number, iter(())), None)
        if isinstance(answer, Exception):
            raise answer
        return {"invoice_id": f"i-{number}"}


@pytest.fixture
def billing(monkeypatch: pytest.MonkeyPatch) -> Billing:
    made = Billing()
    monkeypatch.setattr(handlers, "_invoice", made.invoice)
    return made


def order(number: int, customer: str = "c-1") -> dict:
    return {"order_id": number, "customer": customer, "total": "9.50", "ordered_at": "2026-01-01"}


def test_an_order_becomes_an_invoice(kworker_run: Run, billing: Billing) -> None:
    report = kworker_run([order(1)])
    assert report.values()[0]["invoice_id"] == "i-1"
    assert billing.calls == [1]


def test_a_busy_billing_service_is_asked_again_in_an_hour(
    kworker_run: Run, billing: Billing
) -> None:
    busy = handlers.Retry("billing is busy", after="3600s")
    billing.answers = {1: iter([busy, busy]), 2: iter([busy] * 3)}
    report = kworker_run([order(1), order(2), order(3)], settings=HOURLY)
    assert sorted(value["order_id"] for value in report.values()) == [1, 3]
    assert [(letter.reason, letter.attempt) for letter in report.dead] == [("exhausted", 3)]
    assert [retry.wait_s for retry in report.retries] == [3600.0] * 4
    assert report.passed_s > 7200  # which took milliseconds


def test_an_unknown_customer_is_a_dead_letter_at_once(kworker_run: Run, billing: Billing) -> None:
    billing.answers = {1: iter([handlers.Reject("unknown customer")])}
    [letter] = kworker_run([message(order(1), key="c-9")]).dead
    assert (letter.reason, letter.message, letter.key) == ("rejected", "unknown customer", b"c-9")


def test_a_truncated_order_is_a_dead_letter(kworker_run: Run, billing: Billing) -> None:
    [letter] = kworker_run([b'{"order_id": 1, "cust']).dead
    assert letter.reason == "undecodable"
    assert billing.calls == []
