"""A standalone cluster without executors: told with the next step; with some, the table goes on."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from deltalake import DeltaTable

from tests.support.spark_service import SLOW_S, Service
from tests.support.tables import spark_table
from tests.support.waiting import eventually

RESULTS = 400
CONF = '"spark.executor.memory" = "512m"\n"spark.cores.max" = "1"\n'


@contextmanager
def running(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    """A process of Spark's standalone cluster."""
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder / "work")}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def test_batches_wait_for_executors_and_say_so(
    tmp_path: Path, bootstrap: str, free_port: Callable[[], int]
) -> None:
    service = Service(tmp_path, bootstrap, CONF + spark_table("orders"))
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    text = service.file.read_text()
    service.file.write_text(text.replace("[spark]\n", f'[spark]\nmaster = "{master}"\n'))
    service.create_topic()
    service.send_orders(0, RESULTS)
    place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
    with ExitStack() as stack:
        stack.enter_context(running(tmp_path, "master.Master", *place))
        stack.callback(service.close)
        service.start()
        told = eventually(lambda: _waits(service), timeout_s=SLOW_S)
        assert told == (
            f"{master} gives this job no executors, and batches wait: start workers there, or"
            " lower spark.executor.memory or spark.cores.max in [spark.conf]"
        )
        size = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()))
        stack.enter_context(running(tmp_path, "worker.Worker", *size, master))
        eventually(lambda: service.progress()["tables"][0]["rows"] == RESULTS, timeout_s=SLOW_S)
        eventually(lambda: service.progress()["reason"] == "", timeout_s=SLOW_S)
    table = DeltaTable(str(tmp_path / "data" / "orders")).to_pyarrow_table()
    assert sorted(table["source_offset"].to_pylist()) == list(range(RESULTS))


def _waits(service: Service) -> str:
    """What the job says once it runs."""
    told = service.progress()
    return str(told["reason"]) if told["state"] == "running" else ""
