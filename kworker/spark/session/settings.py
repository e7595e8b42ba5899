"""The settings of Spark's session and the options of its JVM, from the configuration."""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kworker.config.model import Config, SparkSettings, TableSettings
from kworker.host import spark_heap_bytes
from kworker.spark.session.class_data import given_options
from kworker.spark.session.jvm import STOP_TIMEOUT_S, has_own_jvm, is_local
from kworker.spark.sql import identifier

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_COLLECTOR = re.compile(r"-XX:[+-]Use\w+GC|-XX:(Flags|VMOptionsFile)=|(^|\s)@")  # or in a file
# Three times Java's defaults: a start runs much code a few times, which is quicker than to compile
# it (2.5 of 25 s of CPU on two cores; later batches are as fast).
_COMPILE_LATER = " ".join(
    f"-XX:Tier4{what}={calls}"
    for what, calls in (
        ("InvocationThreshold", 15_000),
        ("MinInvocationThreshold", 1_800),
        ("CompileThreshold", 45_000),
        ("BackEdgeThreshold", 120_000),
    )
)


def properties(
    config: Config,
    archives: Iterable[Path],
    folder: Path,
    missing_formats: Collection[str] = (),
    options: str = "",
) -> dict[str, str]:
    """All properties of the Spark session. `[spark.conf]` overrides kworker's defaults.

    Formats in `missing_formats` are not set up: without their jar files Spark would not start.
    `options` are more options for the JVM.
    """
    spark = config.spark
    assert spark is not None
    usual = {
        "spark.master": spark.master,
        "spark.app.name": f"kworker {config.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{spark_heap_bytes() >> 20}m",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Spark's own choice, INT96, is known to few other readers.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "2",
        # The JVM never compiles a longer method; above this limit Spark generates shorter ones.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        # Options of Kafka's source hold passwords and keys, and are part of Spark's plans.
        "spark.sql.redaction.options.regex": "(?i)url|jaas|keystore|password|secret|token",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_S:.0f}s",
        # Read every second: older ones have been read before.
        "spark.sql.streaming.numRecentProgressUpdates": "16",
        **(_LOCAL if is_local(spark.master) else {}),
        **(_STATE_ON_DISK if any(map(_keeps_positions, spark.tables)) else {}),
        **_catalogs(spark.tables, missing_formats),
    }
    both = {
        **_archive_settings(spark, archives),
        "spark.sql.extensions": ",".join(_extensions(spark, missing_formats)),
        "spark.driver.extraJavaOptions": f"{_java_options(folder, spark.conf)} {options}".strip(),
    }
    return {**usual, **spark.conf, **both}


_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default of 50 tasks for each read of a table's log takes seconds on few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
}


# A checkpoint keeps the provider that it began with.
_STATE_ON_DISK = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


def _keeps_positions(table: TableSettings) -> bool:
    """True if the table's query stores the position of each result, to drop repeated ones."""
    return table.dedupe and table.mode != "append"


def _archive_settings(spark: SparkSettings, archives: Iterable[Path]) -> dict[str, str]:
    """The settings that tell Spark where the jar files are.

    The jar files are on the class path if Spark has only this process's JVM. Otherwise they are in
    `spark.jars`: then Spark copies them to a temporary folder at each start, and a kill leaves that
    folder behind.
    """
    paths = [str(path) for path in archives]
    if not has_own_jvm(spark):
        return {"spark.jars": ",".join(filter(None, [*paths, spark.conf.get("spark.jars", "")]))}
    own = spark.conf.get("spark.driver.extraClassPath", "")
    return {"spark.driver.extraClassPath": os.pathsep.join(filter(None, [*paths, own]))}


def _extensions(spark: SparkSettings, missing_formats: Collection[str]) -> Iterator[str]:
    formats = {table.format for table in spark.tables}.difference(missing_formats)
    if "delta" in formats:
        yield _DELTA_EXTENSION
    if "iceberg" in formats:
        yield _ICEBERG_EXTENSION
    if own := spark.conf.get("spark.sql.extensions"):
        yield own


def _catalogs(tables: Iterable[TableSettings], missing_formats: Collection[str]) -> dict[str, str]:
    """The settings of the catalogs that tables need.

    If there is a Delta table, the session's catalog is Delta's. Each Iceberg table that is given by
    its path gets a catalog of its own, for the folder in which the table's folder lies.
    """
    found = {}
    for index, table in enumerate(tables):
        if table.format in missing_formats:
            continue
        if table.format == "delta":
            found["spark.sql.catalog.spark_catalog"] = (
                "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
        if table.format == "iceberg" and table.path:
            catalog = f"spark.sql.catalog.{iceberg_catalog(index)}"
            found[catalog] = _ICEBERG_CATALOG
            found[f"{catalog}.type"] = "hadoop"
            found[f"{catalog}.warehouse"] = table.path.rstrip("/").rpartition("/")[0] or "/"
    return found


def iceberg_catalog(index: int) -> str:
    """The name of the catalog for the table with this index in the configuration."""
    return f"kworker_{index}"


def iceberg_table(index: int, path: str) -> str:
    """The SQL name of the Iceberg table at `path`. `index` is the table's place in the settings."""
    return f"{iceberg_catalog(index)}.{identifier(path.rstrip('/').rpartition('/')[2])}"


def _java_options(folder: Path, conf: dict[str, str]) -> str:
    own = conf.get("spark.driver.extraJavaOptions", "")
    log4j = f'"-Dlog4j2.configurationFile={folder / "log4j2.properties"}"'
    places = f'"-Dderby.system.home={folder}" "-Djava.io.tmpdir={scratch_folder(folder)}"'
    # A query's start makes gigabytes of garbage. With two collectors chosen Java would not start.
    collector = "" if _COLLECTOR.search(given_options(conf)) else "-XX:+UseParallelGC "
    # If only one thread ended for lack of memory, its query would hang.
    ends = "-XX:+ExitOnOutOfMemoryError"
    return f"{log4j} {places} {collector}{_COMPILE_LATER} {ends} {own}".strip()


def scratch_folder(folder: Path) -> Path:
    """The folder for temporary files of this process's JVM."""
    return folder / "tmp" / str(os.getpid())


def properties_text(settings: dict[str, str]) -> str:
    """The settings in the format of java.util.Properties."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    text = re.sub(r"[\\:=#! ]", r"\\\g<0>", text)
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
