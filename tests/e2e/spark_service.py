"""A service as the Spark job sees it: a folder, a results topic, and results like the workers'."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kworker.clients.offsets import committed
from tests.harness.service import named

COMMAND = "from kworker.cli.spark import app; app()"
MINUTE_MS = 60_000
STAMP_MS = 1_700_000_040_000  # 2023-11-14T22:14:00Z
SLOW_S = 180.0
TRANSFORMS = '''
"""What a user would write."""
from pyspark.sql import functions as f


def revenue(orders):
    minute = f.date_trunc("minute", "source_timestamp").alias("minute")
    fitting = orders.where("_rescued IS NULL AND customer IS NOT NULL")
    sums = (f.count("*").alias("orders"), f.sum("total").alias("revenue"))
    return fitting.groupBy("customer", minute).agg(*sums)


def broken(orders):
    return orders.select("no_such_column")


def nothing(orders):
    return None
'''


class Job:
    """`kworker spark run` as a process."""

    def __init__(self, arguments: list[str], errors: Path, environment: dict[str, str]) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "run", "--config", *arguments],
                stderr=file,
                env={**os.environ, **environment},
            )

    @property
    def said(self) -> str:
        """Its log."""
        return self._errors.read_text()

    def jvm(self) -> psutil.Process:
        """The one that it started; to be asked when Spark runs: another starts that one."""
        [found] = named("java", psutil.Process(self.process.pid).children(recursive=True))
        return found

    def ends(self) -> int:
        """Waits for its end; the exit code."""
        return self.process.wait(SLOW_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Service:
    """A service's folder and results topic, and the Spark jobs that were started for it."""

    def __init__(self, folder: Path, bootstrap: str, tables: str) -> None:
        self.name = f"spark-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}.results"
        self.folder = folder
        self.file = folder / "kworker.toml"
        self._bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._jobs: list[Job] = []
        (folder / "transforms.py").write_text(TRANSFORMS)
        self.file.write_text(
            f'name = "{self.name}"\nhandler = "m:f"\nstate_dir = "state"\n'
            f'[source]\ntopics = ["orders"]\n[kafka]\n"bootstrap.servers" = "{bootstrap}"\n'
            f'[spark]\ntrigger = "200ms"\ncheckpoints = "data/_checkpoints"\n'
            f'[spark.conf]\n"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC"\n{tables}'
        )

    def create_topic(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)

    def send(self, value: bytes | str | None, source: str | None, **headers: str) -> None:
        """A record as the workers write it; `source` is its `kworker-source`."""
        found = [(f"kworker-{name}", text.encode()) for name, text in headers.items()]
        if source is not None:
            found.insert(0, ("kworker-source", source.encode()))
        self._producer.produce(self.topic, value, key="k", headers=found)

    def send_orders(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            value = json.dumps({"order_id": number, "customer": f"c{number % 2}", "total": 0.5})
            stamp = STAMP_MS + number % 3 * MINUTE_MS
            self.send(value, f"orders/{number % 4}/{number}/{stamp}")
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def start(self, *arguments: str, **environment: str) -> Job:
        """Returns at once."""
        errors = self.folder / f"stderr-{len(self._jobs)}"
        self._jobs.append(Job([str(self.file), *arguments], errors, environment))
        return self._jobs[-1]

    def progress(self, state_dir: str = "state") -> dict[str, Any]:
        try:
            text = (self.folder / state_dir / "spark" / "progress.json").read_text()
        except FileNotFoundError:
            return {"state": None, "reason": "", "pid": None, "tables": []}
        found: dict[str, Any] = json.loads(text)
        return found

    def committed(self, table: str) -> dict[int, int]:
        """The positions of a table's consumer group."""
        group = f"{self.name}.spark.{table}"
        return committed({"bootstrap.servers": self._bootstrap}, group, self.topic, [0, 1])

    def close(self) -> None:
        for job in self._jobs:
            job.kill()
