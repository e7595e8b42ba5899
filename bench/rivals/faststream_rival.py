"""FastStream on its confluent broker; BENCH_FASTSTREAM chooses how a subscriber gets records.

`batch` (up to 1,000 a call) and `single` commit after each call, and lose nothing. It has no dead
letters. Its max_workers are no contender, since it allows them with ACK_FIRST only: what was read
is committed, done or not, so a crash loses the records in work.
"""

import asyncio
import importlib.metadata
import os
from typing import Any

import begun
import orjson
import uvloop
from confluent_kafka import Message
from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage, KafkaPublishMessage

CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "64"))
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
HANDLER = os.environ["BENCH_HANDLER"]
WAY = os.environ["BENCH_FASTSTREAM"]
BATCH = 1000


async def no_op(_: Message) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()


async def decoded(record: Message) -> KafkaPublishMessage:
    """Returns a result made from the decoded order."""
    if not begun.noted:
        begun.note()
    order = orjson.loads(record.value())
    result = {"order_id": order["order_id"], "total": order["total"]}
    return KafkaPublishMessage(result, key=record.key())


async def probed(record: Message) -> KafkaPublishMessage:
    """As `decoded`, but one order takes long."""
    if orjson.loads(record.value())["total"] == begun.PROBE_TOTAL:
        await asyncio.sleep(begun.PROBE_S)
    return await decoded(record)


async def wait(_: Message) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    await asyncio.sleep(WAIT_S)


HANDLERS = {"no_op": no_op, "decoded": decoded, "probed": probed, "wait": wait}
WAITING = ("wait", "probed")


async def raw(message: KafkaMessage) -> Message | tuple[Message, ...]:
    """A decoder that leaves the client's own record, with its key, to the handler."""
    return message.raw_message


async def batch(records: Any) -> list[Any]:
    """Handles a batch: one record after the other, or all at once if they wait."""
    handle = HANDLERS[HANDLER]
    if HANDLER in WAITING:
        return await asyncio.gather(*map(handle, records))
    return [await handle(record) for record in records]


async def main() -> None:
    print("faststream", importlib.metadata.version("faststream"), flush=True)
    broker = KafkaBroker(
        os.environ["BENCH_SERVERS"],
        apply_types=False,  # no validation by pydantic
        decoder=raw,
        logger=None,  # else it logs each record
        enable_idempotence=True,
        compression_type="lz4",
        config={"fetch.queue.backoff.ms": 10},
    )
    how: dict[str, dict[str, Any]] = {
        "batch": {
            "batch": True,
            "max_records": CONCURRENCY if HANDLER == "wait" else BATCH,
            "ack_policy": AckPolicy.NACK_ON_ERROR,
        },
        "single": {"ack_policy": AckPolicy.NACK_ON_ERROR},
    }
    call = batch if WAY == "batch" else HANDLERS[HANDLER]
    if HANDLER in ("decoded", "probed"):
        call = broker.publisher(os.environ["BENCH_RESULTS"], batch=WAY == "batch")(call)
    broker.subscriber(
        os.environ["BENCH_TOPIC"],
        group_id=os.environ["BENCH_GROUP"],
        auto_offset_reset="earliest",
        **how[WAY],
    )(call)
    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    uvloop.run(main())
