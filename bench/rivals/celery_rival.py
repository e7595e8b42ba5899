"""Celery with Redis: a process reads Kafka and sends a task for each record; a worker runs them.

Celery does not read Kafka, so the first process is written by hand. Tasks count themselves in
Redis when they are done, by batch, which is faster than Celery's results. Batches are committed in
order, each when all of it is done: nothing is lost. Tasks run without order of a key, and return
nothing to Kafka but in the probe, where the task does it by hand.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import begun
import celery
from celery import Celery
from confluent_kafka import Consumer, Producer, TopicPartition
from redis import Redis

CONCURRENCY = os.environ.get("BENCH_CONCURRENCY", "16")
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
BATCH = 1_000
AHEAD = 3 * BATCH  # records that are sent and not committed
LOOK_S = 0.005
STOP_S = 10.0

app = Celery("celery_rival", broker=os.environ["BENCH_REDIS"])
redis = Redis.from_url(os.environ["BENCH_REDIS"])
DONE = f"{os.environ['BENCH_GROUP']}:done"  # and the number of a batch
app.conf.update(
    task_default_queue=os.environ["BENCH_GROUP"],
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=16,
    worker_hijack_root_logger=False,
)


class Batch(NamedTuple):
    """Records whose tasks were sent together, and the positions after them."""

    number: int
    records: int
    ends: list[TopicPartition]

    def is_done(self) -> bool:
        return int(redis.get(f"{DONE}:{self.number}") or 0) >= self.records


@cache
def producer() -> Producer:
    return Producer({"bootstrap.servers": os.environ["BENCH_SERVERS"], "linger.ms": 0})


@app.task
def no_op(_: str, batch: int) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()
    redis.incr(f"{DONE}:{batch}")


@app.task
def probed(value: str, batch: int) -> None:
    """Sends a result made from the decoded order; one order takes long."""
    order = json.loads(value)
    if order["total"] == begun.PROBE_TOTAL:
        time.sleep(begun.PROBE_S)
    result = json.dumps({"order_id": order["order_id"], "total": order["total"]})
    sending = producer()
    sending.produce(os.environ["BENCH_RESULTS"], result)
    sending.flush()
    redis.incr(f"{DONE}:{batch}")


@app.task
def wait(_: str, batch: int) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    time.sleep(WAIT_S)
    redis.incr(f"{DONE}:{batch}")


HANDLERS: dict[str, Callable] = {"no_op": no_op, "probed": probed, "wait": wait}


def read(consumer: Consumer) -> None:
    """Sends tasks, and commits each batch, in order, when it is done."""
    handler = HANDLERS[os.environ["BENCH_HANDLER"]]
    batches: deque[Batch] = deque()
    sent = committed = number = 0
    with app.producer_or_acquire() as sending:
        while True:
            if sent - committed < AHEAD:
                records = consumer.consume(BATCH, 0.01)
            else:
                records = []
                time.sleep(LOOK_S)
            if records:
                number += 1
                for message in records:
                    arguments = (message.value().decode(), number)
                    handler.apply_async(arguments, producer=sending)
                sent += len(records)
                ends = [e for e in consumer.position(consumer.assignment()) if e.offset >= 0]
                batches.append(Batch(number, len(records), ends))
            done: list[TopicPartition] = []
            while batches and batches[0].is_done():
                batch = batches.popleft()
                committed, done = committed + batch.records, batch.ends
            if done:
                consumer.commit(offsets=done, asynchronous=False)


def main() -> None:
    print("celery", celery.__version__, flush=True)
    work = ["-A", "celery_rival", "worker", "--pool", "threads", "--concurrency", CONCURRENCY]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *work, *quiet], cwd=os.path.dirname(__file__)
    )
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BENCH_SERVERS"],
            "group.id": os.environ["BENCH_GROUP"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([os.environ["BENCH_TOPIC"]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        read(consumer)
    finally:
        consumer.close()
        worker.terminate()
        try:
            worker.wait(STOP_S)
        except subprocess.TimeoutExpired:
            worker.kill()


if __name__ == "__main__":
    main()
