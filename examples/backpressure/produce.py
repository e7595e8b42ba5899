"""The producer: orders with a photo each, as fast as Kafka takes them."""

import argparse
import json
import random

from confluent_kafka import Producer

PHOTO_BYTES = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="photos")
    parser.add_argument("--messages", type=int, default=10_000)
    arguments = parser.parse_args()
    # Errors alone, for a broker that has just started warns.
    quiet = {"enable.idempotence": True, "log_level": 3}
    producer = Producer({"bootstrap.servers": arguments.servers, **quiet})
    chance = random.Random(7)
    for order_id in range(arguments.messages):
        customer = f"customer-{chance.randrange(500):03}"
        photo = chance.randbytes(PHOTO_BYTES // 2).hex()
        order = {"order_id": order_id, "customer": customer, "photo": photo}
        while True:
            try:
                producer.produce(arguments.topic, json.dumps(order), customer)
                break
            except BufferError:  # the client's queue is full: wait until some are acknowledged
                producer.poll(0.1)
    if left := producer.flush(60):
        raise TimeoutError(f"Kafka has not acknowledged {left:,} messages")
    print(f"{arguments.messages:,} messages of {PHOTO_BYTES // 1000} KB are in Kafka", flush=True)


if __name__ == "__main__":
    main()
