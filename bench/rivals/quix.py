"""Quix Streams: one StreamingDataFrame, a record at a time in the process's only thread.

It has no concurrency (so those that wait do so one after the other), no retries and no dead
letters.
"""

import importlib.metadata
import os
import time
from collections.abc import Callable

import begun
from quixstreams import Application
from quixstreams.dataframe import StreamingDataFrame

WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))


def no_op(_: bytes) -> None:
    """Does nothing with the record."""
    if not begun.noted:
        begun.note()


def wait(_: bytes) -> None:
    """Sleeps, in place of a call to a service."""
    if not begun.noted:
        begun.note()
    time.sleep(WAIT_S)


def decoded(order: dict) -> dict:
    """Returns a result made from the decoded order."""
    if not begun.noted:
        begun.note()
    return {"order_id": order["order_id"], "total": order["total"]}


def probed(order: dict) -> dict:
    """As `decoded`, but one order takes long."""
    if order["total"] == begun.PROBE_TOTAL:
        time.sleep(begun.PROBE_S)
    return decoded(order)


def _updating(app: Application, handler: Callable[[bytes], None]) -> StreamingDataFrame:
    source = app.topic(os.environ["BENCH_TOPIC"], value_deserializer="bytes")
    return app.dataframe(source).update(handler)


def _producing(app: Application, handler: Callable[[dict], dict]) -> StreamingDataFrame:
    source = app.topic(os.environ["BENCH_TOPIC"], value_deserializer="json")  # it uses orjson
    results = app.topic(os.environ["BENCH_RESULTS"], value_serializer="json")
    return app.dataframe(source).apply(handler).to_topic(results)


FRAMES: dict[str, Callable[[Application], StreamingDataFrame]] = {
    "no_op": lambda app: _updating(app, no_op),
    "wait": lambda app: _updating(app, wait),
    "decoded": lambda app: _producing(app, decoded),
    "probed": lambda app: _producing(app, probed),
}


def main() -> None:
    print("quixstreams", importlib.metadata.version("quixstreams"), flush=True)
    app = Application(
        broker_address=os.environ["BENCH_SERVERS"],
        consumer_group=os.environ["BENCH_GROUP"],
        auto_offset_reset="earliest",
        processing_guarantee=os.environ.get("BENCH_GUARANTEE", "at-least-once"),
        commit_interval=0.5,  # not 5 s, for a short tail; each commit first flushes the producer
        commit_every=0,  # by time alone
        consumer_poll_timeout=0.1,  # it commits between polls only: not 1 s late when idle
        state_dir=f"{os.environ['BENCH_BEGUN']}.state",  # it makes one, though nothing needs it
        consumer_extra_config={"fetch.queue.backoff.ms": 10, "queued.max.messages.kbytes": 16384},
        producer_extra_config={
            "linger.ms": int(os.environ["BENCH_LINGER_MS"]),
            "compression.type": "lz4",
        },
        loglevel="WARNING",
    )
    FRAMES[os.environ["BENCH_HANDLER"]](app)
    app.run()


if __name__ == "__main__":
    main()
