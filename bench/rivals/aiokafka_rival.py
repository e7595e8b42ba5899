"""aiokafka: a task for each record, as many at once as a semaphore allows.

Positions are committed by hand, a batch when all its tasks (and the deliveries of their results)
are done, in order: nothing is lost. It has no order of a key, no retries and no dead letters.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import aiokafka
import begun
import orjson
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "1000"))
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
BATCH = 2000
AHEAD = 4 * BATCH  # records that are read and not committed; a batch may be of one record

Delivery = Awaitable[object] | None
Handler = Callable[[ConsumerRecord, AIOKafkaProducer], Awaitable[Delivery]]
Batch = tuple[list[asyncio.Task[Delivery]], dict[TopicPartition, int]]


class Window:
    """The number of records that are read and not committed."""

    def __init__(self) -> None:
        self._records = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def room(self) -> None:
        """Waits until they are fewer than AHEAD."""
        await self._has_room.wait()

    def add(self, records: int) -> None:
        self._records += records
        if self._records < AHEAD:
            self._has_room.set()
        else:
            self._has_room.clear()


async def no_op(_: ConsumerRecord, __: AIOKafkaProducer) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()


async def decoded(record: ConsumerRecord, producer: AIOKafkaProducer) -> Delivery:
    """Sends a result made from the decoded order; returns its delivery."""
    if not begun.noted:
        begun.note()
    order = orjson.loads(record.value)
    result = orjson.dumps({"order_id": order["order_id"], "total": order["total"]})
    return await producer.send(os.environ["BENCH_RESULTS"], result, record.key)


async def probed(record: ConsumerRecord, producer: AIOKafkaProducer) -> Delivery:
    """As `decoded`, but one order takes long."""
    if orjson.loads(record.value)["total"] == begun.PROBE_TOTAL:
        await asyncio.sleep(begun.PROBE_S)
    return await decoded(record, producer)


async def wait(_: ConsumerRecord, __: AIOKafkaProducer) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    await asyncio.sleep(WAIT_S)


HANDLERS: dict[str, Handler] = {
    "no_op": no_op,
    "decoded": decoded,
    "probed": probed,
    "wait": wait,
}


async def read(
    consumer: AIOKafkaConsumer,
    producer: AIOKafkaProducer,
    batches: asyncio.Queue[Batch],
    window: Window,
) -> None:
    """Starts a task for each record, and hands each batch of them over to be committed."""
    handle, free = HANDLERS[os.environ["BENCH_HANDLER"]], asyncio.Semaphore(CONCURRENCY)
    while True:
        await window.room()
        tasks, ends = [], {}
        batch = await consumer.getmany(timeout_ms=200, max_records=BATCH)
        for partition, records in batch.items():
            for record in records:
                await free.acquire()
                task = asyncio.create_task(handle(record, producer))
                task.add_done_callback(lambda _: free.release())
                tasks.append(task)
            ends[partition] = records[-1].offset + 1
        if tasks:
            window.add(len(tasks))
            batches.put_nowait((tasks, ends))


async def commit(consumer: AIOKafkaConsumer, batches: asyncio.Queue[Batch], window: Window) -> None:
    """Commits each batch after all of it is done. Ends with the error of a task, if one fails."""
    while True:
        tasks, ends = await batches.get()
        deliveries = await asyncio.gather(*tasks)
        await asyncio.gather(*(delivery for delivery in deliveries if delivery))
        await consumer.commit(ends)
        window.add(-len(tasks))


async def main() -> None:
    print("aiokafka", aiokafka.__version__, flush=True)
    servers = os.environ["BENCH_SERVERS"]
    consumer = AIOKafkaConsumer(
        os.environ["BENCH_TOPIC"],
        bootstrap_servers=servers,
        group_id=os.environ["BENCH_GROUP"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        enable_idempotence=True,
        linger_ms=int(os.environ["BENCH_LINGER_MS"]),
        max_batch_size=131_072,
        compression_type="lz4",
    )
    batches: asyncio.Queue[Batch] = asyncio.Queue()
    window = Window()
    async with consumer, producer:
        running = asyncio.gather(
            read(consumer, producer, batches, window), commit(consumer, batches, window)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            pass


if __name__ == "__main__":
    uvloop.run(main())
