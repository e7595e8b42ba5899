"""A small billing service for the example: real HTTP, some milliseconds a call, with counts.

Run `python billing.py --port 8400`. `POST /invoices` with an order as JSON answers its invoice,
`POST /customers` with a list of names adds customers, and `GET /calls` returns the counts of calls
and answers. Every call creates a new invoice, as in real services: two calls for one order create
two. The service works well by default; `--help` lists the faults that it can show.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

BUSY_S = 2  # the Retry-After of 429

Answer = tuple[HTTPStatus, dict]


@dataclass(frozen=True)
class Troubles:
    """The faults of the service, by number and not by chance: the same in every run."""

    put_off_every: int = 0  # of so many orders, one gets 429 at first and one gets 500
    outage_after: int = 0  # calls
    outage_s: float = 0.0

    def put_off(self, order_id: int, before: int) -> HTTPStatus | None:
        """The error for an order that was put off `before` times; None if it gets its invoice."""
        if not self.put_off_every:
            return None
        match order_id % self.put_off_every:
            case 0 if before < 1:
                return HTTPStatus.TOO_MANY_REQUESTS
            case 1 if before < 1 + order_id // self.put_off_every % 2:
                return HTTPStatus.INTERNAL_SERVER_ERROR
        return None


class Billing:
    """The customers, and the counts of answers so far. Owned by the event loop."""

    def __init__(
        self,
        customers: int,
        troubles: Troubles = Troubles(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows `customers` from the start: customer-000, customer-001 and so on."""
        self._customers = {f"customer-{number:03}" for number in range(customers)}
        self._troubles = troubles
        self._clock = clock
        self._numbers = itertools.count(1)
        self._answers: Counter[HTTPStatus] = Counter()
        self._invoices: Counter[int] = Counter()  # by order
        self._put_off: Counter[int] = Counter()
        self._down_until: float | None = None  # None: the outage is still to come

    def invoice(self, order: dict) -> Answer:
        """Answers one call, and counts it."""
        answer = self._answer(order)
        self._answers[answer[0]] += 1
        return answer

    def _answer(self, order: dict) -> Answer:
        try:
            order_id, customer = order["order_id"], order["customer"]
        except (KeyError, TypeError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"not an order: {error!r}"}
        if self._down():
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "the database is away"}
        if customer not in self._customers:
            return HTTPStatus.BAD_REQUEST, {"error": f"unknown customer {customer}"}
        if status := self._troubles.put_off(order_id, self._put_off[order_id]):
            self._put_off[order_id] += 1
            return status, {"error": status.phrase.lower()}
        self._invoices[order_id] += 1
        number = f"INV-{next(self._numbers):06}"
        return HTTPStatus.CREATED, {"invoice_id": number, "order_id": order_id}

    def _down(self) -> bool:
        begins = 0 < self._troubles.outage_after <= self._answers.total()
        if begins and self._down_until is None:
            self._down_until = self._clock() + self._troubles.outage_s
        return self._down_until is not None and self._clock() < self._down_until

    def welcome(self, customers: list[str]) -> Answer:
        """Adds customers."""
        self._customers.update(customers)
        return HTTPStatus.OK, {"customers": len(self._customers)}

    def calls(self) -> Answer:
        """The counts of calls and answers: in all, and by order."""
        return HTTPStatus.OK, {
            "calls": self._answers.total(),
            "answers": {str(int(status)): times for status, times in self._answers.items()},
            "invoices": dict(self._invoices),
            "put_off": dict(self._put_off),
        }


class Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time, each answered after some milliseconds."""

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
                loop = asyncio.get_running_loop()
                loop.call_later(later, self._take, self._billing.invoice, body)
            case [b"POST", b"/customers"]:
                self._take(self._billing.welcome, body)
            case [b"GET", b"/calls"]:
                self._tell(self._billing.calls())
            case _:
                paths = "POST /invoices, POST /customers or GET /calls"
                self._tell((HTTPStatus.NOT_FOUND, {"error": paths}))

    def _take(self, taker: Callable[..., Answer], body: bytes) -> None:
        try:
            content = json.loads(body)
        except ValueError as error:
            self._tell((HTTPStatus.BAD_REQUEST, {"error": f"not JSON: {error}"}))
        else:
            self._tell(taker(content))

    def _tell(self, answer: Answer) -> None:
        status, body = answer
        text = json.dumps(body).encode()
        again = f"Retry-After: {BUSY_S}\r\n" if status is HTTPStatus.TOO_MANY_REQUESTS else ""
        self._transport.write(
            f"HTTP/1.1 {int(status)} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"{again}Content-Length: {len(text)}\r\n\r\n".encode()
            + text
        )


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int, billing: Billing, latency_s: tuple[float, float]) -> None:
    """Serves until SIGTERM or SIGINT. The first line on stdout is the address."""
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
    parser.add_argument(
        "--customers", type=int, default=500, help="so many are known; others' orders get 400"
    )
    parser.add_argument(
        "--put-off-every",
        type=int,
        default=0,
        metavar="N",
        help="of N orders, one gets 429 at first, and one 500 once or twice; 0: none",
    )
    parser.add_argument(
        "--outage-after", type=int, default=0, metavar="CALLS", help="then all get 503; 0: never"
    )
    parser.add_argument("--outage-s", type=float, default=5.0, metavar="SECONDS")
    arguments = parser.parse_args()
    least, most = arguments.latency_ms
    troubles = Troubles(arguments.put_off_every, arguments.outage_after, arguments.outage_s)
    billing = Billing(arguments.customers, troubles)
    asyncio.run(serve(arguments.port, billing, (least / 1000, most / 1000)))


if __name__ == "__main__":
    main()
