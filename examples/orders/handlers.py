"""The handler of an order: calls the billing service, and returns the invoice."""

import http.client
import json
import os
import threading
from http import HTTPStatus
from urllib.parse import urlsplit

import attachments

from kworker import Message, Reject, Retry, Unavailable

BILLING_URL = os.environ.get("BILLING_URL", "http://127.0.0.1:8400")
TIMEOUT_S = 5.0

_own = threading.local()


def notify(message: Message) -> dict:
    """Returns the invoice of one order. The exception it raises decides what happens next."""
    order = message.json()
    pages = attachments.pages(order.get("attachment"))
    invoice = _invoice({**order, "attachment": pages})
    return {
        "invoice_id": invoice["invoice_id"],
        "order_id": order["order_id"],
        "customer": order["customer"],
        "total": order["total"],
        "ordered_at": order["ordered_at"],
    }


def _invoice(order: dict) -> dict:
    response, text = _post("/invoices", order)
    match response.status:
        case HTTPStatus.CREATED:
            return json.loads(text)
        case HTTPStatus.BAD_REQUEST:
            raise Reject(
                json.loads(text)["error"]
            )  # a dead letter, at once: a retry would not help
        case HTTPStatus.TOO_MANY_REQUESTS:
            raise Retry("billing is busy", after=f"{response.headers['Retry-After']}s")
        case HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable("billing")  # not the order's fault: all wait, one probes every 5 s
    raise RuntimeError(f"billing answered {response.status}: {text[:200]!r}")  # retry.delays


def _post(path: str, body: dict) -> tuple[http.client.HTTPResponse, bytes]:
    # One open connection in each thread: a new one would cost more than the call.
    connection = _connection()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response, response.read()
    except (OSError, http.client.HTTPException):
        connection.close()  # a half-sent request or half-read answer must not reach the next order
        raise


def _connection() -> http.client.HTTPConnection:
    if not hasattr(_own, "connection"):
        _own.connection = http.client.HTTPConnection(
            urlsplit(BILLING_URL).netloc, timeout=TIMEOUT_S
        )
    return _own.connection
