"""A consumer that starts a task for each record, without a limit: fast, short, and unbounded.

`python -m bench.naive --servers … --group … --topic … --seconds 1`. It reads as fast as
Kafka delivers, however slow the handlers are, so a large lag moves into its memory.
"""

import argparse
import asyncio

from confluent_kafka import Consumer, Message


async def handle(message: Message, seconds: float, done: asyncio.Queue[int]) -> None:
    """Sleeps, in place of a slow call."""
    await asyncio.sleep(seconds)
    done.put_nowait(len(message.value()))


async def run(consumer: Consumer, records: int, seconds: float) -> None:
    """Runs until `records` are done."""
    done: asyncio.Queue[int] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = (
        set()
    )  # keeps references: tasks without one may be collected while they run
    while done.qsize() < records:
        for message in await asyncio.to_thread(consumer.consume, 500, 0.1):
            task = asyncio.create_task(handle(message, seconds, done))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


def main() -> None:
    parser = argparse.ArgumentParser(description="A task for each record.")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="that each handler takes")
    arguments = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.servers,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([arguments.topic])
    asyncio.run(run(consumer, arguments.records, arguments.seconds))
    consumer.close()


if __name__ == "__main__":
    main()
