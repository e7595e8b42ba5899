"""Spark's classes are kept by one real JVM and read by the next; a damaged file stops nobody."""

from contextlib import suppress
from pathlib import Path

import psutil

from kworker.jars import cache_folder
from tests.support.spark_service import Job, Service
from tests.support.tables import Reader, spark_table
from tests.support.waiting import eventually


def test_later_runs_read_the_spark_classes_kept_by_the_second(
    tmp_path: Path, bootstrap: str, tables: Reader
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for each in cache_folder().iterdir():
        if each.name != "classes":
            (cache / each.name).symlink_to(each)
    made = Service(tmp_path, bootstrap, spark_table("t", format="delta"))
    sent = 0

    def run() -> Job:
        nonlocal sent
        made.send_orders(sent, 10)
        sent += 10
        return made.start("--once", KWORKER_CACHE=str(cache), JAVA_TOOL_OPTIONS="")

    def kept() -> list[str]:
        return [path.suffix for path in (cache / "classes").iterdir()]

    try:
        made.create_topic()
        assert run().ends() == 0
        assert kept() == [".seen"]
        learning = run()
        assert learning.ends() == 0
        assert kept() == [".jsa"]
        assert "saves its loaded classes to a file" in learning.said
        reading = run()
        eventually(lambda: _has_open(reading, ".jsa"))
        assert reading.ends() == 0
        [file] = (cache / "classes").glob("*.jsa")
        file.chmod(0o644)
        file.write_bytes(b"no classes" * 1000)
        assert run().ends() == 0
        rows = [row["source_offset"] for row in tables.rows(made.file)["t"]]
        assert sorted(rows) == list(range(sent))
    finally:
        made.close()


def _has_open(job: Job, ending: str) -> bool:
    """Whether a process below the job maps such a file of the cache."""
    paths = []
    with suppress(psutil.NoSuchProcess):  # the job has ended
        for process in psutil.Process(job.process.pid).children(recursive=True):
            # Spark's launcher leaves a zombie below the JVM if bash is slow to reap it.
            with suppress(psutil.NoSuchProcess):
                paths += [each.path for each in process.memory_maps()]
    return any(path.endswith(ending) and "/cache/classes/" in path for path in paths)
