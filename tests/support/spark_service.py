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
from tests.support import kafka
from tests.support.service import named

COMMAND = "from kworker.cli.spark.commands import app; app()"
KWORKER = "from kworker.cli.main import main; main()"
MINUTE_MS = 60_000
STAMP_MS = 1_700_000_040_000  # 2023-11-14T22:14:00Z
SLOW_S = 300.0  # after which a job hangs: the same work takes 30 to 206 s, by machine
PARTITIONS = 5
QUIET = 4  # the partition that holds no result, only what was aborted
TRANSFORMS = '''
"""What a user would write."""
from pyspark.sql import functions as f


def revenue(orders):
    minute = f.date_trunc("minute", "source_timestamp").alias("minute")
    fitting = orders.where("_rescued IS NULL AND customer IS NOT NULL")
    sums = (f.count("*").alias("orders"), f.sum("total").alias("revenue"))
    return fitting.groupBy("customer", minute).agg(*sums)


def sides(orders):
    return orders.withColumn("side", f.explode(f.array(f.lit("debit"), f.lit("credit"))))


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

    def __init__(
        self, folder: Path, bootstrap: str, tables: str, checkpoints: str = "data/_checkpoints"
    ) -> None:
        """`tables` begins with more lines for `[spark.conf]`, if there are any."""
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
            f'[spark]\ntrigger = "200ms"\ncheckpoints = "{checkpoints}"\n'
            f'[spark.conf]\n"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC"\n{tables}'
        )

    def create_topic(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)

    def send(self, value: bytes | str | None, source: str | None, **headers: str) -> None:
        """A record as the workers write it; `source` is its `kworker-source`."""
        found = [(f"kworker-{name}", text.encode()) for name, text in headers.items()]
        if source is not None:
            found.insert(0, ("kworker-source", source.encode()))
        self._producer.produce(self.topic, value, key="k", partition=0, headers=found)

    def send_orders(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            _send_order(self._producer, self.topic, number, number % QUIET)
        self.flush()

    def send_in_transactions(self, first: int, count: int) -> None:
        """As exactly-once workers do: orders that are committed, then some that are aborted."""
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": self.name}
        producer = Producer({**settings, "log_level": 3})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(first, first + count):
            _send_order(producer, self.topic, number, number % QUIET)
        producer.commit_transaction(60)
        producer.begin_transaction()
        for number in range(first, first + count):
            _send_order(producer, self.topic, number, QUIET)
        producer.flush(60)
        producer.abort_transaction(60)

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
        found = committed(
            {"bootstrap.servers": self._bootstrap}, group, self.topic, range(PARTITIONS)
        )
        assert found is not None
        return found

    def checkpoint(self, table: str) -> Path:
        return self.folder / "data" / "_checkpoints" / table

    def lag(self, table: str) -> int:
        """As any lag tool counts it, transaction markers included."""
        found = kafka.ends(self._bootstrap, self.topic)
        return sum(found.values()) - sum(self.committed(table).values())

    def kworker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `kworker …` for this service, to its end."""
        return subprocess.run(
            [sys.executable, "-c", KWORKER, *arguments, "--config", str(self.file)],
            capture_output=True,
            text=True,
            timeout=SLOW_S,
            check=False,
        )

    def close(self) -> None:
        for job in self._jobs:
            job.kill()


def _send_order(producer: Producer, topic: str, number: int, partition: int) -> None:
    value = json.dumps({"order_id": number, "customer": f"c{number % 2}", "total": 0.5})
    stamp = STAMP_MS + number % 3 * MINUTE_MS
    source = f"orders/{number % 4}/{number}/{stamp}".encode()
    producer.produce(
        topic, value, key="k", partition=partition, headers=[("kworker-source", source)]
    )
