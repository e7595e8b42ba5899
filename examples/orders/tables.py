"""Reads the files of the two tables, and writes their contents as JSON.

`python tables.py INVOICES REVENUE OUTPUT`. It replays Delta's log in a few lines, and
reads the Parquet files that the log names, without kworker or Delta's library.
"""

import argparse
import json
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def live_files(table: Path) -> list[str]:
    """The files of the newest version: all that were added and not removed."""
    live: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            match json.loads(line):
                case {"add": {"path": path}}:
                    live.add(path)
                case {"remove": {"path": path}}:
                    live.discard(path)
    return [str(table / unquote(path)) for path in sorted(live)]


def read(spark: SparkSession, table: Path) -> DataFrame:
    return spark.read.parquet(*live_files(table))


def invoices(table: DataFrame) -> dict:
    """The number of rows of each source position, and the sum of all rows."""
    positions = table.groupBy("source_partition", "source_offset").count().collect()
    return {
        "times": [list(row) for row in positions],
        "total": str(table.agg(f.sum("total")).first()[0]),
        "rescued": table.where(f.col("_rescued").isNotNull()).count(),
    }


def revenue(table: DataFrame) -> dict:
    sums = table.agg(f.count("*"), f.sum("orders"), f.sum("revenue")).first()
    return {"rows": sums[0], "orders": sums[1], "total": str(sums[2])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Reads the tables of the orders example.")
    for name in ("invoices", "revenue", "output"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").appName("tables-as-files")
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = {
        "invoices": invoices(read(spark, arguments.invoices)),
        "revenue": revenue(read(spark, arguments.revenue)),
    }
    spark.stop()
    arguments.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
