"""The rival from a topic to a table: a Spark job that calls the handler as a Python UDF.

Run as a program: `python -m bench.udf_spark SERVERS TOPIC FOLDER HANDLER`. It runs until a signal.
Spark calls the handler for one record at a time on each core; Arrow carries the values.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from pyspark.sql import functions as f

from bench.bare_spark import session

SCHEMA = "order_id BIGINT, total DOUBLE"
WAIT_S = 0.010

Total = tuple[int, float]


def decoded(value: bytes) -> Total:
    """Decodes the record from JSON and returns a result made from it."""
    order = orjson.loads(value)
    return order["order_id"], order["total"]


def called(value: bytes) -> Total:
    """The same after a sleep, in place of a call to a service."""
    time.sleep(WAIT_S)
    return decoded(value)


HANDLERS: dict[str, Callable[[bytes], Total]] = {"decoded": decoded, "called": called}


def main(servers: str, topic: str, folder: Path, handler: str) -> None:
    """Runs the job. Raises Spark's exceptions."""
    records = (
        session()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    handle = f.udf(HANDLERS[handler], SCHEMA, useArrow=True)
    source = [f.col(name) for name in ("topic", "partition", "offset", "timestamp")]
    rows = records.select(
        *source, f.col("key").cast("string"), handle(f.col("value")).alias("fields")
    )
    query = (
        rows.select("*", "fields.*")
        .drop("fields")
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "table"))
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
