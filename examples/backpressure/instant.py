"""The first act: a consumer that does nothing, and prints its rate each half second.

Nothing piles up, for there is nothing to wait for: this is how fast messages can come.
"""

import argparse
import time

from confluent_kafka import Consumer

EVERY_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="photos")
    parser.add_argument("--messages", type=int, default=10_000)
    arguments = parser.parse_args()
    group = {"group.id": "instant", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": arguments.servers, **group})
    consumer.subscribe([arguments.topic])
    seen = told = 0
    due = 0.0
    while seen < arguments.messages:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            due = due or time.monotonic() + EVERY_S  # from the first, after the group has formed
            seen += 1
        if not seen:
            continue
        if (now := time.monotonic()) >= due or seen == arguments.messages:
            rate = (seen - told) / (now - due + EVERY_S)
            print(f"{rate:8,.0f} messages/s, {seen:6,} seen", flush=True)
            due, told = now + EVERY_S, seen
    consumer.close()


if __name__ == "__main__":
    main()
