"""A small billing service for the example: real HTTP, some milliseconds a call, calls counted.

`python billing.py --port 8400`, then `POST /invoices` with an order as JSON answers its invoice,
and `GET /calls` tells how often it was asked. Every call writes a new invoice, as real services do:
who asks twice for one order gets two.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
from collections import Counter


class Billing:
    """The invoices written so far. Owned by the event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._calls_of_order: Counter[int] = Counter()

    def invoice(self, order: dict) -> dict:
        self._calls_of_order[order["order_id"]] += 1
        return {"invoice_id": f"INV-{next(self._numbers):06}", "order_id": order["order_id"]}

    def calls(self) -> dict:
        """How often it was asked, and for how many orders more than once."""
        asked = self._calls_of_order
        return {
            "calls": asked.total(),
            "orders": len(asked),
            "orders_asked_again": sum(times > 1 for times in asked.values()),
        }


class Connection(asyncio.Protocol):
    """One keep-alive connection: a request at a time, each answered after a while."""

    def __init__(self, billing: Billing, latency_s: tuple[float, float]) -> None:
        self._billing = billing
        self._latency_s = latency_s
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        length = _content_length(head)
        if end and len(rest) >= length:
            self._received = rest[length:]
            self._handle(head.split(b" ", 2), rest[:length])

    def _handle(self, request: list[bytes], body: bytes) -> None:
        match request[:2]:
            case [b"POST", b"/invoices"]:
                later = random.uniform(*self._latency_s)
                asyncio.get_running_loop().call_later(later, self._invoice, body)
            case [b"GET", b"/calls"]:
                self._answer("200 OK", self._billing.calls())
            case _:
                self._answer("404 Not Found", {"error": "POST /invoices or GET /calls"})

    def _invoice(self, body: bytes) -> None:
        try:
            invoice = self._billing.invoice(json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            self._answer("400 Bad Request", {"error": f"not an order: {error}"})
        else:
            self._answer("201 Created", invoice)

    def _answer(self, status: str, body: dict) -> None:
        text = json.dumps(body).encode()
        self._transport.write(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n".encode()
            + text
        )


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int, latency_s: tuple[float, float]) -> None:
    """Answers until SIGTERM or SIGINT. The first line on stdout is the address."""
    billing = Billing()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(
        lambda: Connection(billing, latency_s), "127.0.0.1", port, backlog=512
    )
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A billing service for the orders example.")
    parser.add_argument("--port", type=int, default=8400, help="0 takes a free one")
    parser.add_argument(
        "--latency-ms", type=float, nargs=2, default=(5, 10), metavar=("MIN", "MAX")
    )
    arguments = parser.parse_args()
    least, most = arguments.latency_ms
    asyncio.run(serve(arguments.port, (least / 1000, most / 1000)))


if __name__ == "__main__":
    main()
