"""The second act: the same loop, with a call to a service for each message, and no limit.

This is how most such consumers begin. The pool has 64 threads, so only 64 calls run at a time. But
what waits for a thread has no limit: messages come as fast as in the first act, and all of them are
in memory until the service has answered.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

import calls
from confluent_kafka import Consumer

EVERY_S = 0.1
THREADS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="photos")
    parser.add_argument("--messages", type=int, default=10_000)
    arguments = parser.parse_args()
    group = {"group.id": "unbounded", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": arguments.servers, **group})
    consumer.subscribe([arguments.topic])
    begun, ended = 0, []
    due = time.monotonic() + EVERY_S
    with ThreadPoolExecutor(THREADS) as pool:
        while len(ended) < arguments.messages:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                pool.submit(_bill, message.value()).add_done_callback(ended.append)
                begun += 1
            if time.monotonic() >= due:
                due += EVERY_S
                print(f"{len(ended):6,} done, {begun - len(ended):6,} in memory", flush=True)
    consumer.close()


def _bill(value: bytes) -> dict:
    return calls.invoice(json.loads(value))


if __name__ == "__main__":
    main()
