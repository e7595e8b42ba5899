"""Hand-written consumers: raw loops and a pool of threads, each as fast as its kind can be.

Run as a program, one contender each time: `python -m bench.handwritten pool …`. It prints
the number of records, the seconds from the first record to the last one done (or committed, if the
contender commits), and its peak memory in bytes, as a list in JSON. With `--results` the handler is
that of the probe, which produces; then it runs until a signal ends it.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer
from redis import Redis

from bench.handlers import PROBE_S, PROBE_TOTAL, SLOW_S
from bench.place import Place
from bench.topic import HOT_EVERY, TOPIC

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

Handler = Callable[[Message], None]


class Slept(NamedTuple):
    """A number of sleeps, and the seconds from the begin of the first to the end of the last."""

    number: int
    seconds: float


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


def pool(consumer: Consumer, records: int, threads: int, handle: Handler) -> float:
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


def pool_waits(consumer: Consumer, records: int, threads: int, handle: Handler) -> float:
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


def set_nx(
    consumer: Consumer, records: int, _: int, handle: Handler, *, redis: Redis, group: str
) -> float:
    """Handles one record at a time, after `SET NX` of the order's key in Redis."""
    message: Message | None = _first(consumer)[0]
    started = time.perf_counter()
    done = 0
    while True:
        if message is not None:
            order = json.loads(message.value() or b"")
            if redis.set(f"{group}:{order['order_id']}", "1", nx=True, ex=86_400):
                handle(message)
            done += 1
            if done % CHUNK == 0 or done == records:
                consumer.commit(asynchronous=False)
            if done == records:
                return time.perf_counter() - started
        message = consumer.poll(1.0)


def bare_threads(records: int, concurrency: int) -> Slept:
    """Sleeps in so many threads, without Kafka: the highest rate that waiting allows."""
    threads = [
        Thread(target=_sleep_times, args=(records // concurrency,)) for _ in range(concurrency)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Slept(records, time.perf_counter() - started)


def bare_tasks(records: int, concurrency: int) -> Slept:
    """Sleeps in so many tasks of an event loop, without Kafka."""

    async def sleep_times() -> None:
        for _ in range(records // concurrency):
            await asyncio.sleep(WAIT_S)

    async def all_of_them() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(sleep_times() for _ in range(concurrency)))
        return time.perf_counter() - started

    return Slept(records, asyncio.run(all_of_them()))


def bare_tasks_beside_slow(records: int, concurrency: int, slow_s: float = SLOW_S) -> Slept:
    """The same, but one sleep of a hundred takes `slow_s`. Returns the figures of the others.

    A task goes on with the next sleep that no other has begun, so that no other sleep waits for a
    slow one.
    """
    numbers = iter(range(records))
    last = 0.0

    async def sleep_times() -> None:
        nonlocal last
        for number in numbers:
            if number % HOT_EVERY:
                await asyncio.sleep(WAIT_S)
                last = time.perf_counter()
            else:
                await asyncio.sleep(slow_s)

    async def others() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(sleep_times() for _ in range(concurrency)))
        return last - started

    return Slept(records - len(range(0, records, HOT_EVERY)), asyncio.run(others()))


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


class Probed:
    """The handler of the probe, as `bench.handlers.probed`: a result each, and one takes long."""

    def __init__(self, servers: str, results: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        self._results = results

    def __call__(self, message: Message) -> None:
        order = json.loads(message.value() or b"")
        if order["total"] == PROBE_TOTAL:
            time.sleep(PROBE_S)
        result = json.dumps({"order_id": order["order_id"], "total": order["total"]})
        self._producer.produce(self._results, result, message.key())
        self._producer.poll(0)


Loop = Callable[[Consumer, int, int, Handler], float]


def _reading(loop: Callable[[Consumer, int], float]) -> Loop:
    return lambda consumer, records, _, __: loop(consumer, records)


CONSUMERS: dict[str, tuple[dict, Loop]] = {
    "poll-default": (DEFAULTS, _reading(poll)),
    "consume-default": (DEFAULTS, _reading(consume)),
    "poll": (TUNED, _reading(poll)),
    "consume": (TUNED, _reading(consume)),
    "pool": (STORING, pool),
    "pool-waits": (STORING, pool_waits),
    "pool-sleeps": (STORING, pool),
}
HANDLERS: dict[str, Handler] = {"pool-sleeps": wait}  # of the others: no_op
SLEEPERS: dict[str, Callable[[int, int], Slept]] = {  # without Kafka
    "threads": bare_threads,
    "tasks": bare_tasks,
    "tasks-even": partial(bare_tasks_beside_slow, slow_s=WAIT_S),
    "tasks-slow": bare_tasks_beside_slow,
}


def command(place: Place, name: str, run: str, records: int, *more: str) -> list[str]:
    """The command that runs a contender with a group of this name; to be run in ROOT."""
    program = [sys.executable, "-m", "bench.handwritten", name, "--servers", place.kafka]
    return [*program, "--redis", place.redis, "--group", run, "--records", str(records), *more]


def main() -> None:
    parser = argparse.ArgumentParser(description="One contender of the benchmark.")
    parser.add_argument("name", choices=[*CONSUMERS, *SLEEPERS, "set-nx"])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--group", default="bench")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=NO_OP_THREADS)
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--results", metavar="TOPIC", help="of the probe's handler")
    arguments = parser.parse_args()
    if sleeper := SLEEPERS.get(arguments.name):
        records, seconds = sleeper(arguments.records, arguments.concurrency)
    else:
        records, seconds = arguments.records, _consume(arguments)
    print(json.dumps([records, seconds, _peak_bytes()]))


def _peak_bytes() -> int:
    """The peak memory of this program; that of getrusage() is its parent's, if that had more."""
    status = Path("/proc/self/status").read_text()
    [kibibytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kibibytes) * 1024


def _consume(arguments: argparse.Namespace) -> float:
    group, redis = arguments.group, Redis.from_url(arguments.redis)
    claiming: Loop = partial(set_nx, redis=redis, group=group)
    settings, loop = {**CONSUMERS, "set-nx": (STORING, claiming)}[arguments.name]
    handle = HANDLERS.get(arguments.name, no_op)
    if arguments.results:
        handle = Probed(arguments.servers, arguments.results)
    client = {"bootstrap.servers": arguments.servers, "group.id": group}
    client["auto.offset.reset"] = "earliest"
    consumer = Consumer(client | settings)
    consumer.subscribe([arguments.topic])
    try:
        return loop(consumer, arguments.records, arguments.concurrency, handle)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
