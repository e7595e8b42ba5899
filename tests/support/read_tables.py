"""Reads tables with Spark, as each line of JSON on standard input asks; answers with JSON."""

import contextlib
import io
import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.spark.session.archives import archives
from kworker.spark.session.session import close_session, open_session


def main(path: str) -> None:
    """Until the input ends. `path` is a configuration with tables of every format."""
    # Standard output is for answers; a JVM says there what it likes.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = toml_file.load(path)
    assert config.spark
    session = open_session(config, archives(config.spark.tables, progress=print))
    for line in sys.stdin:
        # In a session of its own, so that no table is one of before.
        answer = asked(session.newSession(), json.loads(line))
        answers.write(json.dumps(answer) + "\n")
    close_session(session, config)


def asked(session: SparkSession, question: dict[str, str]) -> Any:
    """The rows of a configuration's tables; or what code prints that knows `spark`."""
    if "config" in question:
        return rows(session, toml_file.load(question["config"]))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(question["code"], {"spark": session})
    return printed.getvalue()


def rows(session: SparkSession, config: Config) -> dict[str, list[dict[str, Any]]]:
    """By table; each row an object."""
    assert config.spark
    return {
        table.name: [
            json.loads(text)
            for (text,) in session.read.format(table.format)
            .load(table.path)
            .selectExpr("to_json(struct(*))")  # `toJSON` has no 10 October 1582
            .collect()
        ]
        for table in config.spark.tables
    }


if __name__ == "__main__":
    main(sys.argv[1])
