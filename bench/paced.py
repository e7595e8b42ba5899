"""Records at a fixed pace, and the delay until the result of each can be read."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.handlers import PROBE_TOTAL
from bench.topic import PARTITIONS, RECORD_BYTES, TIMEOUT_S, values
from bench.watched import START_S, Broken

PACED = "paced"
PER_SECOND = 1_000
LOOK_S, MOST_READ = 0.002, 1_000  # results
MOST = 1 << 20  # orders

Observer = Callable[[Message, float], None]
"""Gets each result with its delay in milliseconds."""


class _Written(NamedTuple):
    """The monotonic time before an order was written, and if its delay counts."""

    at_s: float
    counts: bool


class Pace:
    """Writes orders to a topic, and reads their results as `read_committed`."""

    def __init__(
        self, servers: str, topic: str, results: str, reader: Consumer, per_second: int
    ) -> None:
        self._topic = topic
        self._per_second = per_second
        self._writer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 3})
        self._reader = reader
        self._orders = values(MOST, RECORD_BYTES)
        self.written = 0
        reader.assign([TopicPartition(results, p, 0) for p in range(PARTITIONS)])

    def begin(self) -> None:
        """Writes one order and waits for its result, so that a start is not measured."""
        self._write(self._orders, 1)
        if not self._reader.consume(1, START_S):
            raise Broken("the first result has not come")

    def keep(self, seconds: float, observe: Observer | None = None) -> list[float]:
        """Keeps the pace for so long, and on until the results of that time have come.

        So a client that is late with its last records, since nothing follows them, is not late
        with those that count. Then waits for the other results. Returns the delays of those that
        count, in milliseconds, each from before its write until it was read.
        """
        count = round(seconds * self._per_second)
        began = time.monotonic()
        deadline = began + seconds + TIMEOUT_S
        awaited: dict[int, _Written] = {}
        delays_ms: list[float] = []
        written = 0
        while len(delays_ms) < count or awaited:
            now = time.monotonic()
            if now > deadline:
                raise Broken(f"{len(awaited):,} of {written:,} results have not come")
            due = int((now - began) * self._per_second) if len(delays_ms) < count else written
            for number, order_id in enumerate(self._write(self._orders, due - written), written):
                awaited[order_id] = _Written(now, counts=number < count)
            written = due
            for message in self._reader.consume(MOST_READ, LOOK_S):
                # A repeated result is none that is awaited.
                found = awaited.pop(json.loads(message.value() or b"")["order_id"], None)
                if found is None or not found.counts:
                    continue
                delays_ms.append((time.monotonic() - found.at_s) * 1000)
                if len(delays_ms) == count:
                    deadline = time.monotonic() + TIMEOUT_S  # for the others
                if observe:
                    observe(message, delays_ms[-1])
        return delays_ms

    def probe(self) -> None:
        """Writes the order whose handler takes long."""
        order = {"order_id": -1, "customer": "slow", "total": PROBE_TOTAL}
        self._write(iter([("slow", json.dumps(order))]), 1)

    def _write(self, orders: Iterator[tuple[str, str]], count: int) -> list[int]:
        """Returns the numbers of the orders."""
        numbers = []
        for key, value in islice(orders, count):
            self._writer.produce(self._topic, value, key)
            numbers.append(json.loads(value)["order_id"])
        self._writer.poll(0)
        self.written += len(numbers)
        return numbers


@contextmanager
def pace(
    servers: str, results: str, topic: str = PACED, per_second: int = PER_SECOND
) -> Iterator[Pace]:
    """Reads the results topic from its begin."""
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "pace",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        yield Pace(servers, topic, results, reader, per_second)
    finally:
        reader.close()
