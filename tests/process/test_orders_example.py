"""The orders example over real HTTP: what billing answers, and what the handler makes of it."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import ModuleType
from typing import Any

import pytest

from kworker import Message, Reject, Retry, Unavailable
from kworker.core.message import Undecodable
from tests.support.bare_service import python
from tests.support.orders_example import FOLDER, billing, calls, imported

ORDER = {"customer": "customer-001", "total": 12.5, "ordered_at": "2025-01-01T00:00:00Z"}
Notify = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def handling(url: str) -> Iterator[Notify]:
    """The handler, asking that service: call it with what an order has beside the usual."""
    with pytest.MonkeyPatch.context() as patch, imported("handlers") as (handlers,):
        patch.setattr(handlers, "BILLING_URL", url)
        yield lambda more: handlers.notify(
            Message("orders", value=json.dumps(ORDER | {"order_id": 1} | more).encode())
        )


def test_an_order_becomes_an_invoice() -> None:
    """With no flags nothing goes wrong; a sound attachment changes nothing."""
    with billing() as url, handling(url) as notify, imported("produce") as (produce,):
        assert notify({}) == {**ORDER, "order_id": 1, "invoice_id": "INV-000001"}
        assert notify({"attachment": produce.document(pages=2)})["invoice_id"] == "INV-000002"
        told = calls(url)
    assert told == {"calls": 2, "answers": {"201": 2}, "invoices": {"1": 2}, "put_off": {}}


def test_an_unknown_customer_is_rejected_until_billing_adds_them() -> None:
    with billing("--customers", "1") as url, handling(url) as notify:
        with pytest.raises(Reject, match="unknown customer customer-001"):
            notify({})
        body = json.dumps(["customer-001"]).encode()
        with urllib.request.urlopen(f"{url}/customers", body, timeout=10) as answer:
            assert json.load(answer) == {"customers": 2}
        assert notify({})["order_id"] == 1
        assert calls(url)["answers"] == {"400": 1, "201": 1}


def test_a_busy_service_says_when_to_come_again() -> None:
    """429 at first for one order of so many, which the handler hands on as it is told."""
    with billing("--put-off-every", "10") as url, handling(url) as notify:
        with pytest.raises(Retry) as raised:
            notify({"order_id": 10})
        assert raised.value.after_s == 2.0
        assert notify({"order_id": 10})["order_id"] == 10
        assert calls(url)["put_off"] == {"10": 1}


def test_a_broken_service_is_an_ordinary_error_once_or_twice() -> None:
    """It takes the configured delays, as any exception does."""
    with billing("--put-off-every", "10") as url, handling(url) as notify:
        for order_id, times in ((21, 1), (11, 2)):
            for _ in range(times):
                with pytest.raises(RuntimeError, match="500"):
                    notify({"order_id": order_id})
            assert notify({"order_id": order_id})["order_id"] == order_id
        assert calls(url)["put_off"] == {"21": 1, "11": 2}


def test_in_an_outage_billing_is_unavailable_to_all() -> None:
    """Not to one order: strangers and those that would be put off hear nothing else either."""
    with billing("--outage-after", "1", "--outage-s", "600") as url, handling(url) as notify:
        notify({})
        for order in ({}, {"customer": "nobody"}):
            with pytest.raises(Unavailable, match="billing"):
                notify(order)
        assert calls(url)["answers"] == {"201": 1, "503": 2}


def test_an_outage_ends() -> None:
    """By its clock: calls during it neither prolong nor repeat it."""
    now = [0.0]
    with imported("billing") as (module,):
        service = module.Billing(500, module.Troubles(0, 1, 5.0), lambda: now[0])
        order = {"order_id": 1, **ORDER}
        statuses = []
        for now[0] in (0.0, 1.0, 5.9, 6.0, 100.0):
            statuses.append(service.invoice(order)[0])
    assert statuses == [201, 503, 503, 201, 201]


@pytest.mark.parametrize("body", [b"{", b'{"order_id": 1}', b"[]", b"null"])
def test_an_invalid_order_is_a_bad_request(body: bytes) -> None:
    with billing() as url, pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{url}/invoices", body, timeout=10)
    assert raised.value.code == HTTPStatus.BAD_REQUEST


def test_an_order_that_is_cut_off_is_undecodable() -> None:
    """It never comes to billing."""
    with imported("handlers") as (handlers,), pytest.raises(Undecodable):
        handlers.notify(Message("orders", value=b'{"order_id": 1'))


def test_an_address_without_a_listener_is_a_retriable_error() -> None:
    """Also the call after it, on a new connection."""
    with billing() as url:
        pass
    with handling(url) as notify:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                notify({})


def _pages(module: str, document: str) -> subprocess.CompletedProcess[str]:
    code = f"import attachments; print(attachments.pages({document!r}))"
    return python("-c", code, cwd=FOLDER / module)


@pytest.fixture(scope="module")
def produce() -> Iterator[ModuleType]:
    with imported("produce") as (module,):
        yield module


@pytest.mark.parametrize("release", [".", "fixed"])
def test_a_sound_attachment_is_read_by_both_releases(produce: ModuleType, release: str) -> None:
    """It is the damage that kills, not the attachment; and the fix breaks nothing."""
    for pages in (1, 4):
        assert _pages(release, produce.document(pages)).stdout == f"{pages}\n"
    assert _pages(release, "").stdout == "0\n"


def test_a_damaged_attachment_kills_its_process_before_the_fix(produce: ModuleType) -> None:
    """By a real SIGSEGV, and the same one bears it after."""
    damaged = produce.document(1, produce.FAR_OUTSIDE)
    assert _pages(".", damaged).returncode == -signal.SIGSEGV
    assert _pages("fixed", damaged).stdout == "0\n"
