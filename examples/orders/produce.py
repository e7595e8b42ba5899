"""Writes orders to their topic, and keeps a ledger of what Kafka acknowledged.

`python produce.py --orders 1000`. The demo's report compares everything with the ledger, which has
one JSON line for each order and knows nothing of workers. `--flawed` adds flaws that real producers
cause: customers that the billing service does not know yet, truncated orders, and one damaged
attachment.
"""

import argparse
import base64
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from confluent_kafka import KafkaError, Message, Producer

CUSTOMERS = 500
NEW_CUSTOMERS = [f"customer-{number}" for number in range(490, CUSTOMERS)]
MINUTES = 10  # the orders' times are within the last ten minutes
ATTACHED_EVERY = 50  # orders
CUT_OFF_AT = (10, 35, 60, 85)  # per cent of all orders
DAMAGED_AT = 55
# A document's last lines give the address of its table of objects. No process has this address.
FAR_OUTSIDE = 1 << 47


class Flaw(StrEnum):
    """The flaw of an order, noted in its ledger line."""

    NEW_CUSTOMER = "new customer"
    CUT_OFF = "cut off"
    DAMAGED = "damaged attachment"


def orders(count: int, until: datetime, seed: int = 7) -> Iterator[dict]:
    """Yields `count` orders of some hundred customers, the last one at `until`."""
    chance = random.Random(seed)
    step = timedelta(minutes=MINUTES) / count
    for order_id in range(1, count + 1):
        order = {
            "order_id": order_id,
            "customer": f"customer-{chance.randrange(CUSTOMERS):03}",
            "total": chance.randrange(100, 50_000) / 100,
            "ordered_at": (until - (count - order_id) * step).isoformat(timespec="milliseconds"),
        }
        if order_id % ATTACHED_EVERY == 0:
            order["attachment"] = document(pages=order_id // ATTACHED_EVERY % 4 + 1)
        yield order


def document(pages: int, table: int = 9) -> str:
    """A minimal PDF in base64: the address of its table of objects, and the table."""
    text = f"%PDF-1.7\nxref\n0 {pages + 1}\ntrailer\nstartxref\n{table}\n%%EOF\n"
    return base64.b64encode(text.encode()).decode()


def flaw(order: dict, count: int) -> Flaw | None:
    """The flaw of one of `count` orders: few have one, and always the same ones."""
    if order["order_id"] == count * DAMAGED_AT // 100:
        return Flaw.DAMAGED
    if order["order_id"] in [count * at // 100 for at in CUT_OFF_AT]:
        return Flaw.CUT_OFF
    return Flaw.NEW_CUSTOMER if order["customer"] in NEW_CUSTOMERS else None


def written(order: dict, wrong: Flaw | None) -> bytes:
    """The record's value."""
    match wrong:
        case Flaw.DAMAGED:
            attachment = document(pages=1, table=FAR_OUTSIDE)
            return json.dumps(order | {"attachment": attachment}).encode()
        case Flaw.CUT_OFF:
            return json.dumps(order).encode()[:-1]
    return json.dumps(order).encode()


class Ledger:
    """The ledger: a line for each order, written by delivery reports in `poll` and `flush`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.acked = 0
        self.failed = 0

    def note(
        self, order: dict, wrong: Flaw | None, error: KafkaError | None, message: Message
    ) -> None:
        entry: dict = {"order_id": order["order_id"], "total": order["total"], "flaw": wrong}
        if error:
            self.failed += 1
            entry["failed"] = str(error)
        else:
            self.acked += 1
            entry |= {"partition": message.partition(), "offset": message.offset()}
        self._file.write(json.dumps(entry) + "\n")


def produce(servers: str, topic: str, count: int, flawed: bool, ledger: Ledger) -> None:
    """Sends `count` orders, keyed by customer, and waits for every acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "log_level": 3,  # hides warnings about a broker that has just started
        }
    )
    for order in orders(count, datetime.now(UTC)):
        _send(producer, topic, order, flaw(order, count) if flawed else None, ledger)
    producer.flush(60)


def _send(producer: Producer, topic: str, order: dict, wrong: Flaw | None, ledger: Ledger) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        ledger.note(order, wrong, error, message)

    value = written(order, wrong)
    while True:
        try:
            producer.produce(topic, value, order["customer"], on_delivery=report)
        except BufferError:
            producer.poll(0.1)  # the queue is full: let some be acknowledged
        else:
            producer.poll(0)
            return


def main() -> int:
    parser = argparse.ArgumentParser(description="Produces orders for the example.")
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--flawed", action="store_true", help="some of them are")
    parser.add_argument("--ledger", type=Path, default=Path("ledger.jsonl"))
    arguments = parser.parse_args()
    count = arguments.orders
    with arguments.ledger.open("w") as file:
        ledger = Ledger(file)
        produce(arguments.servers, arguments.topic, count, arguments.flawed, ledger)
    print(f"{ledger.acked:,} orders acknowledged, {ledger.failed:,} failed")
    return 0 if ledger.acked == count else 1


if __name__ == "__main__":
    sys.exit(main())
