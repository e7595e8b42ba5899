"""A failed batch that is examined on a real Spark: which results are set aside, and which wait.

No broker: the records of the batch are made here.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.spark.checkpoints.folders import LocalFolder
from kworker.spark.checkpoints.set_aside import read_set_aside
from kworker.spark.progress import TableProgress
from kworker.spark.session.archives import archives
from kworker.spark.session.session import close_session, open_session
from kworker.spark.tables import examined_batch
from kworker.spark.tables.examiner import (
    ALL_BAD_TRIES,
    Examiner,
    ResultsSetAside,
    TransformFails,
)
from tests.support.spark_service import STAMP_MS
from tests.support.tables import spark_config, spark_table

KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TRANSFORM = """
from pyspark.sql import functions as f


def share(rows):
    return rows.withColumn("share", f.expr("100 / divisor"))
"""
FAILED = RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    file = tmp_path_factory.mktemp("examined") / "kworker.toml"
    table = spark_table("shares", schema="id INT, divisor INT", transform="sharing:share")
    file.write_text(spark_config("examined", table))
    (file.parent / "sharing.py").write_text(TRANSFORM)
    (file.parent / "state" / "spark").mkdir(parents=True)
    return toml_file.load(str(file))


@pytest.fixture(scope="module")
def session(config: Config) -> Iterator[SparkSession]:
    """In this process, whose environment it changes meanwhile."""
    assert config.spark
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
            patch.setenv(name, os.environ.get(name, ""))
        patch.delenv("PYSPARK_PYTHON")
        made = open_session(config, archives(config.spark.tables, progress=print))
        yield made
        close_session(made, config)


Examine = Callable[[int, Collection[int]], Callable[[], None]]


@pytest.fixture
def examine(
    tmp_path: Path, config: Config, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Examine:
    """Makes a batch of so many results, some of which are bad; returns one try of it."""
    assert config.spark
    [table] = config.spark.tables
    examiner = Examiner(table, config, LocalFolder(tmp_path), TableProgress("shares"))

    def made(results: int, bad: Collection[int]) -> Callable[[], None]:
        records = [_record(offset, bad=offset in bad) for offset in range(results)]
        frame = session.createDataFrame(records, KAFKA)
        monkeypatch.setattr(examined_batch, "records_between", lambda *_: frame)
        return lambda: examiner(session, 0, (None, {0: results}), FAILED)

    return made


def _record(offset: int, *, bad: bool) -> tuple[object, ...]:
    value = json.dumps({"id": offset, "divisor": 0 if bad else 1}).encode()
    source = ("kworker-source", f"orders/0/{offset}/{STAMP_MS}".encode())
    return b"k", value, "results", 0, offset, datetime.now(UTC), 0, [source]


def test_fifty_results_that_all_fail_are_waited_for(tmp_path: Path, examine: Examine) -> None:
    """It was a service that was down, or a mistake of the transform."""
    one_try = examine(50, range(50))
    one_try()
    for _ in range(8):
        with pytest.raises(TransformFails, match=r"fails on each of .*: \[DIVIDE_BY_ZERO\]"):
            one_try()
    assert read_set_aside(LocalFolder(tmp_path), 0) == (0, [])


def test_a_lone_poison_result_is_set_aside_at_last(tmp_path: Path, examine: Examine) -> None:
    """Its table would stand still for ever."""
    one_try = examine(1, [0])
    one_try()
    for _ in range(ALL_BAD_TRIES - 1):
        with pytest.raises(TransformFails):
            one_try()
    with pytest.raises(ResultsSetAside):
        one_try()
    number, [found] = read_set_aside(LocalFolder(tmp_path), 0)
    assert (number, found.offset, found.source) == (1, 0, f"orders/0/0/{STAMP_MS}")
    assert found.reason.startswith("[DIVIDE_BY_ZERO]")


def test_each_try_of_a_batch_takes_another_sample(tmp_path: Path, examine: Examine) -> None:
    """Of fifty results three are good, so that the first eight are often bad."""
    one_try = examine(50, range(3, 50))
    one_try()
    assert any(_sets_aside(one_try) for _ in range(60))
    assert read_set_aside(LocalFolder(tmp_path), 0).number == 47


def _sets_aside(one_try: Callable[[], None]) -> bool:
    try:
        one_try()
    except TransformFails:
        return False
    except ResultsSetAside:
        return True
    return False
