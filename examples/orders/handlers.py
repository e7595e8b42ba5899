"""What happens to an order: the billing service is asked for an invoice, which is the result."""

import http.client
import json
import os
import threading
from urllib.parse import urlsplit

from kworker import Message

BILLING_URL = os.environ.get("BILLING_URL", "http://127.0.0.1:8400")
TIMEOUT_S = 5.0

_own = threading.local()


def notify(message: Message) -> dict:
    """Asks for the invoice of one order. Raising leaves the order undone: it is tried again."""
    order = message.json()
    invoice = _post("/invoices", order)
    return {
        "invoice_id": invoice["invoice_id"],
        "order_id": order["order_id"],
        "customer": order["customer"],
        "total": order["total"],
        "ordered_at": order["ordered_at"],
    }


def _post(path: str, body: dict) -> dict:
    # A connection a thread, kept open: connecting anew would cost more than the call.
    connection = _connection()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException):
        connection.close()  # whatever is half sent or half read must not meet the next order
        raise
    if response.status != http.client.CREATED:
        raise RuntimeError(f"billing answered {response.status}: {text[:200]!r}")
    return json.loads(text)


def _connection() -> http.client.HTTPConnection:
    if not hasattr(_own, "connection"):
        _own.connection = http.client.HTTPConnection(
            urlsplit(BILLING_URL).netloc, timeout=TIMEOUT_S
        )
    return _own.connection
