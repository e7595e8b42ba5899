"""The rival of the Spark job: a script of pyspark alone, from the topic into a Delta table.

Run as a program: `python -m bench.bare_spark SERVERS TOPIC FOLDER BATCH_RECORDS`. It reads the
results that exist, writes the same columns except `_rescued`, and ends.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kworker import jars

SCHEMA = "order_id BIGINT, customer STRING, total DOUBLE, note STRING"
_SOURCE = "split(CAST(filter(headers, h -> h.key = 'kworker-source')[0].value AS STRING), '/')"


def session() -> SparkSession:
    """A session on all cores that reads Kafka and writes Delta, without more."""
    wanted = (jars.SPARK_KAFKA, jars.DELTA)
    archives = {str(path) for each in wanted for path in jars.fetch(each, progress=print)}
    return (
        SparkSession.builder.master("local[*]")
        .config("spark.jars", ",".join(sorted(archives)))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )


def main(servers: str, topic: str, folder: Path, batch_records: int) -> None:
    """Runs the script. Raises Spark's exceptions."""
    running = session()
    records = (
        running.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", batch_records)
        .load()
    )
    source = f.expr(_SOURCE)
    rows = records.select(
        source[0].alias("source_topic"),
        source[1].cast("int").alias("source_partition"),
        source[2].cast("bigint").alias("source_offset"),
        f.timestamp_millis(source[3].cast("bigint")).alias("source_timestamp"),
        f.col("key").cast("string"),
        f.from_json(f.col("value").cast("string"), SCHEMA).alias("fields"),
    )
    query = (
        rows.select("*", "fields.*")
        .drop("fields")
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()
    running.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
