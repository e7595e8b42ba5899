"""Reads the tables of a configuration with Spark, in a process of its own, and prints them."""

import json
import sys

from kworker import config_file
from kworker.spark.session import archives, close_session, iceberg_table, open_session


def main(path: str) -> None:
    """One JSON object: the rows of each table, each row an object."""
    config = config_file.load(path)
    assert config.spark
    session = open_session(config, archives(config.spark.tables, progress=print))
    found = {}
    for index, table in enumerate(config.spark.tables):
        if table.format == "iceberg":
            rows = session.table(iceberg_table(index, table.path))
        else:
            rows = session.read.format(table.format).load(table.path)
        found[table.name] = [json.loads(row) for row in rows.toJSON().collect()]
    close_session(session, config)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
