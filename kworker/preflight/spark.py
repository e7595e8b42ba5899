"""Checks that the Spark job could start on this host."""

import importlib.util

from kworker.config.model import Config
from kworker.distribution import how_to_install
from kworker.errors import ConfigError
from kworker.jars import find_java
from kworker.preflight.findings import Finding
from kworker.preflight.imports import IMPORT_TIMEOUT_S, import_all


def check_spark(config: Config) -> list[Finding]:
    """Checks that the Spark job can start on this host, if `kworker start` is to launch it."""
    if config.spark is None or config.spark.run == "elsewhere":
        return []
    found = []
    try:
        find_java()
    except ConfigError as error:
        step = 'or run the job on another host, with spark.run = "elsewhere"'
        found.append(Finding("spark", str(error), step))
    if importlib.util.find_spec("pyspark") is None:
        found.append(
            Finding("spark", "pyspark is not installed", f"install it: {how_to_install('spark')}")
        )
        return found
    transforms = {
        table.transform: f"spark.tables[{table.name}].transform"
        for table in config.spark.tables
        if table.transform
    }
    if transforms:
        found += import_all(config, transforms, IMPORT_TIMEOUT_S).findings
    return found
