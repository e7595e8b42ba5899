"""Celery with Redis: a process reads Kafka and sends a task for each record; a worker runs them.

Celery does not read Kafka, so the first process is written by hand. Tasks count themselves in
Redis when they are done, which is faster than Celery's results. A batch is committed when so many
are done as were sent by then: nothing is lost. Tasks run without order of a key.
"""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

import begun
import celery
from celery import Celery
from confluent_kafka import Consumer, TopicPartition
from redis import Redis

CONCURRENCY = os.environ.get("BENCH_CONCURRENCY", "16")
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
BATCH = 1_000
BATCHES_AHEAD = 2
STOP_S = 10.0

app = Celery("celery_rival", broker=os.environ["BENCH_REDIS"])
redis = Redis.from_url(os.environ["BENCH_REDIS"])
DONE = f"{os.environ['BENCH_GROUP']}:done"
app.conf.update(
    task_default_queue=os.environ["BENCH_GROUP"],
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=16,
    worker_hijack_root_logger=False,
)


@app.task
def no_op(_: str) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()
    redis.incr(DONE)


@app.task
def wait(_: str) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    time.sleep(WAIT_S)
    redis.incr(DONE)


HANDLERS: dict[str, Callable] = {"no_op": no_op, "wait": wait}


def read(consumer: Consumer) -> None:
    """Sends tasks, and commits each batch, in order, when it is done."""
    handler = HANDLERS[os.environ["BENCH_HANDLER"]]
    batches: deque[tuple[int, list[TopicPartition]]] = deque()
    sent = 0
    with app.producer_or_acquire() as producer:
        while True:
            batch = consumer.consume(BATCH, 0.01)
            for message in batch:
                handler.apply_async((message.value().decode(),), producer=producer)
            sent += len(batch)
            if batch:
                batches.append((sent, consumer.position(consumer.assignment())))
            done = int(redis.get(DONE) or 0)
            while batches and (batches[0][0] <= done or len(batches) > BATCHES_AHEAD):
                until, ends = batches.popleft()
                while int(redis.get(DONE) or 0) < until:
                    time.sleep(0.005)
                consumer.commit(offsets=[e for e in ends if e.offset >= 0], asynchronous=False)


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
