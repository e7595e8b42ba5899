"""Sentry's arroyo: a chain of strategies, whose last one commits in the order of the topic.

BENCH_ARROYO chooses the one that calls the handler: `serial` (RunTask), `threads` (for handlers
that wait) or `processes` (for those that compute). Only `serial` keeps the order of a key. It has
dead letters, which nothing here needs; it has no retries and no transactions.
"""

import importlib.metadata
import os
import signal
import time
from collections.abc import Mapping

import begun
import orjson
from arroyo import Message, Partition, Topic
from arroyo.backends.kafka import KafkaConsumer, KafkaPayload, KafkaProducer
from arroyo.commit import CommitPolicy
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import (
    CommitOffsets,
    ProcessingStrategy,
    ProcessingStrategyFactory,
    Produce,
    RunTask,
    RunTaskInThreads,
    RunTaskWithMultiprocessing,
)
from arroyo.processing.strategies.run_task_with_multiprocessing import MultiprocessingPool
from arroyo.types import BrokerValue, Commit

KAFKA = {"bootstrap.servers": os.environ["BENCH_SERVERS"]}
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "16"))
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
COMPUTE_S = 200e-6
POLL_S = 0.1
HANDLER = os.environ["BENCH_HANDLER"]
STRATEGY = os.environ["BENCH_ARROYO"]


def no_op(_: Message[KafkaPayload]) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()


def decoded(message: Message[KafkaPayload]) -> KafkaPayload:
    """Returns a result made from the decoded order."""
    if not begun.noted:
        begun.note()
    order = orjson.loads(message.payload.value)
    result = orjson.dumps({"order_id": order["order_id"], "total": order["total"]})
    return KafkaPayload(message.payload.key, result, [])


def probed(message: Message[KafkaPayload]) -> KafkaPayload:
    """As `decoded`, but one order takes long."""
    if orjson.loads(message.payload.value)["total"] == begun.PROBE_TOTAL:
        time.sleep(begun.PROBE_S)
    return decoded(message)


def wait(_: Message[KafkaPayload]) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    time.sleep(WAIT_S)


def compute(_: Message[KafkaPayload]) -> None:
    """Computes for 200 microseconds of this thread's CPU time."""
    if not begun.noted:
        begun.note()
    until = time.thread_time() + COMPUTE_S
    while time.thread_time() < until:
        pass


HANDLERS = {
    "no_op": no_op,
    "decoded": decoded,
    "probed": probed,
    "wait": wait,
    "compute": compute,
}


class Consumer(KafkaConsumer):
    """Waits for a record for at most POLL_S.

    The processor waits for a second between two turns of its strategies, which give results and
    commits on. When idle they would be so late, and no setting changes it.
    """

    def poll(self, timeout: float | None = None) -> BrokerValue[KafkaPayload] | None:
        return super().poll(POLL_S if timeout is None else min(timeout, POLL_S))


class Chain(ProcessingStrategyFactory[KafkaPayload]):
    """The handler, the delivery of its result, and the commit."""

    def __init__(self) -> None:
        settings = {
            "enable.idempotence": True,
            "linger.ms": int(os.environ["BENCH_LINGER_MS"]),
            "compression.type": "lz4",
        }
        self._producer = KafkaProducer(KAFKA | settings, use_simple_futures=True)
        self._pool = MultiprocessingPool(CONCURRENCY) if STRATEGY == "processes" else None

    def create_with_partitions(
        self, commit: Commit, _: Mapping[Partition, int]
    ) -> ProcessingStrategy:
        handler = HANDLERS[HANDLER]
        last: ProcessingStrategy = CommitOffsets(commit)
        if HANDLER in ("decoded", "probed"):
            last = Produce(self._producer, Topic(os.environ["BENCH_RESULTS"]), last)
        if STRATEGY == "threads":
            return RunTaskInThreads(handler, CONCURRENCY, 1000 + 4 * CONCURRENCY, last)
        if self._pool:
            # Small batches, the next at hand: no process waits for the others at the end.
            return RunTaskWithMultiprocessing(
                handler, last, 500, 0.2, self._pool, prefetch_batches=True
            )
        return RunTask(handler, last, better_backpressure=True)

    def shutdown(self) -> None:
        self._producer.close()
        if self._pool:
            self._pool.close()


def main() -> None:
    print("arroyo", importlib.metadata.version("sentry-arroyo"), flush=True)
    settings = {
        "group.id": os.environ["BENCH_GROUP"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.queue.backoff.ms": 10,
    }
    processor = StreamProcessor(
        consumer=Consumer(KAFKA | settings),
        topic=Topic(os.environ["BENCH_TOPIC"]),
        processor_factory=Chain(),
        commit_policy=CommitPolicy(0.2, None),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: processor.signal_shutdown())
    processor.run()


if __name__ == "__main__":
    main()
