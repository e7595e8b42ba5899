"""Hand-written consumers: raw loops and a pool of threads, each as fast as its kind can be.

Run as a program, one contender each time: `python -m bench.handwritten pool …`. It prints
the number of records, the seconds from the first record to the last one done (or committed, if the
contender commits), and its peak memory in bytes, as a list in JSON.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from threading import Thread

from confluent_kafka import Consumer, Message
from redis import Redis

from bench.topic import TOPIC

TUNED = {
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16384,
    "enable.auto.offset.store": False,
    "enable.auto.commit": False,
}
STORING = {**TUNED, "enable.auto.offset.store": True}
DEFAULTS: dict[str, object] = {}
CHUNK = 500
NO_OP_THREADS = 16
WAIT_THREADS = 64
WAIT_S = 0.010


def poll(consumer: Consumer, records: int) -> float:
    """Reads one record a call."""
    first = _first(consumer)
    started = time.perf_counter()
    taken = len(first)
    while taken < records:
        if consumer.poll(1.0) is not None:
            taken += 1
    return time.perf_counter() - started


def consume(consumer: Consumer, records: int) -> float:
    """Reads some hundred records a call."""
    first = _first(consumer)
    started = time.perf_counter()
    taken = len(first)
    while taken < records:
        taken += len(consumer.consume(CHUNK, 0.1))
    return time.perf_counter() - started


def pool(consumer: Consumer, records: int, threads: int, handle: Callable) -> float:
    """Submits each record of a batch to a pool of threads; commits when all are done."""
    with ThreadPoolExecutor(threads) as executor:
        batch = _first(consumer)
        started = time.perf_counter()
        done = 0
        while True:
            futures = [executor.submit(handle, message) for message in batch]
            for future in futures:
                future.result()
            if batch:
                consumer.commit(asynchronous=False)
            done += len(batch)
            if done >= records:
                return time.perf_counter() - started
            batch = consumer.consume(CHUNK, 0.1)


def pool_waits(consumer: Consumer, records: int, threads: int, handle: Callable) -> float:
    """Another way to write it: waits for the batch as a whole, and for no commit but the last."""
    with ThreadPoolExecutor(threads) as executor:
        batch = _first(consumer)
        started = time.perf_counter()
        done = 0
        while True:
            finished, _ = wait_for([executor.submit(handle, message) for message in batch])
            for future in finished:
                future.result()  # raises what the handler has raised
            done += len(batch)
            if done >= records:
                consumer.commit(asynchronous=False)
                return time.perf_counter() - started
            if batch:
                consumer.commit(asynchronous=True)
            batch = consumer.consume(CHUNK, 0.1)


def set_nx(consumer: Consumer, records: int, redis: Redis, group: str) -> float:
    """Handles one record at a time, after `SET NX` of the order's key in Redis."""
    message: Message | None = _first(consumer)[0]
    started = time.perf_counter()
    done = 0
    while True:
        if message is not None:
            order = json.loads(message.value() or b"")
            if redis.set(f"{group}:{order['order_id']}", "1", nx=True, ex=86_400):
                no_op(message)
            done += 1
            if done % CHUNK == 0 or done == records:
                consumer.commit(asynchronous=False)
            if done == records:
                return time.perf_counter() - started
        message = consumer.poll(1.0)


def bare_threads(records: int, concurrency: int) -> float:
    """Sleeps in so many threads, without Kafka: the highest rate that waiting allows."""
    threads = [
        Thread(target=_sleep_times, args=(records // concurrency,)) for _ in range(concurrency)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def bare_tasks(records: int, concurrency: int) -> float:
    """Sleeps in so many tasks of an event loop, without Kafka."""

    async def sleep_times() -> None:
        for _ in range(records // concurrency):
            await asyncio.sleep(WAIT_S)

    async def all_of_them() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(sleep_times() for _ in range(concurrency)))
        return time.perf_counter() - started

    return asyncio.run(all_of_them())


def _sleep_times(times: int) -> None:
    for _ in range(times):
        time.sleep(WAIT_S)


def _first(consumer: Consumer) -> list[Message]:
    """Waits for the first record, so that joining the group is not measured."""
    while True:
        message = consumer.poll(1.0)
        if message is not None:
            return [message]


def no_op(_: Message) -> None:
    """A handler that does nothing."""


def wait(_: Message) -> None:
    """A handler that sleeps 10 ms, in place of a call."""
    time.sleep(WAIT_S)


Loop = Callable[[Consumer, int, int], float]


def _reading(loop: Callable[[Consumer, int], float]) -> Loop:
    return lambda consumer, records, _: loop(consumer, records)


CONSUMERS: dict[str, tuple[dict, Loop]] = {
    "poll-default": (DEFAULTS, _reading(poll)),
    "consume-default": (DEFAULTS, _reading(consume)),
    "poll": (TUNED, _reading(poll)),
    "consume": (TUNED, _reading(consume)),
    "pool": (STORING, partial(pool, handle=no_op)),
    "pool-waits": (STORING, partial(pool_waits, handle=no_op)),
    "pool-sleeps": (STORING, partial(pool, handle=wait)),
}
SLEEPERS = {"threads": bare_threads, "tasks": bare_tasks}  # without Kafka


def main() -> None:
    parser = argparse.ArgumentParser(description="One contender of the benchmark.")
    parser.add_argument("name", choices=[*CONSUMERS, *SLEEPERS, "set-nx"])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--group", default="bench")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=NO_OP_THREADS)
    arguments = parser.parse_args()
    if sleeper := SLEEPERS.get(arguments.name):
        seconds = sleeper(arguments.records, arguments.concurrency)
    else:
        seconds = _consume(arguments)
    print(json.dumps([arguments.records, seconds, _peak_bytes()]))


def _peak_bytes() -> int:
    """The peak memory of this program; that of getrusage() is its parent's, if that had more."""
    status = Path("/proc/self/status").read_text()
    [kibibytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kibibytes) * 1024


def _consume(arguments: argparse.Namespace) -> float:
    group, redis = arguments.group, Redis.from_url(arguments.redis)
    claiming = (STORING, lambda consumer, records, _: set_nx(consumer, records, redis, group))
    settings, loop = {**CONSUMERS, "set-nx": claiming}[arguments.name]
    client = {"bootstrap.servers": arguments.servers, "group.id": group}
    client["auto.offset.reset"] = "earliest"
    consumer = Consumer(client | settings)
    consumer.subscribe([TOPIC])
    try:
        return loop(consumer, arguments.records, arguments.concurrency)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
