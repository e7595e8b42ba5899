"""Writes orders to their topic, and keeps a ledger of what Kafka acknowledged.

`python produce.py --orders 1000`. The ledger, one JSON line an order, is what the demo's report
holds everything else against: it knows nothing of workers.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from confluent_kafka import KafkaError, Message, Producer

CUSTOMERS = 500
MINUTES = 10  # the orders' times lie within the last ten minutes


def orders(count: int, until: datetime, seed: int = 7) -> Iterator[dict]:
    """`count` orders of some hundred customers, the last one at `until`."""
    chance = random.Random(seed)
    step = timedelta(minutes=MINUTES) / count
    for order_id in range(1, count + 1):
        yield {
            "order_id": order_id,
            "customer": f"customer-{chance.randrange(CUSTOMERS):03}",
            "total": chance.randrange(100, 50_000) / 100,
            "ordered_at": (until - (count - order_id) * step).isoformat(timespec="milliseconds"),
        }


class Ledger:
    """What became of each order. Written from delivery reports, which `poll` and `flush` serve."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.acked = 0
        self.failed = 0

    def note(self, order: dict, error: KafkaError | None, message: Message) -> None:
        entry: dict = {"order_id": order["order_id"], "total": order["total"]}
        if error:
            self.failed += 1
            entry["failed"] = str(error)
        else:
            self.acked += 1
            entry |= {"partition": message.partition(), "offset": message.offset()}
        self._file.write(json.dumps(entry) + "\n")


def produce(servers: str, topic: str, count: int, ledger: Ledger) -> None:
    """Sends `count` orders, keyed by customer, and waits for every acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "log_level": 3,  # a broker that has just started makes it wait, and it would say so
        }
    )
    for order in orders(count, datetime.now(UTC)):
        _send(producer, topic, order, ledger)
    producer.flush(60)


def _send(producer: Producer, topic: str, order: dict, ledger: Ledger) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        ledger.note(order, error, message)

    while True:
        try:
            producer.produce(topic, json.dumps(order), order["customer"], on_delivery=report)
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
    parser.add_argument("--ledger", type=Path, default=Path("ledger.jsonl"))
    arguments = parser.parse_args()
    with arguments.ledger.open("w") as file:
        ledger = Ledger(file)
        produce(arguments.servers, arguments.topic, arguments.orders, ledger)
    print(f"{ledger.acked:,} orders acknowledged, {ledger.failed:,} failed")
    return 0 if ledger.acked == arguments.orders else 1


if __name__ == "__main__":
    sys.exit(main())
