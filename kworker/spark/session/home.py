"""The folder in which Spark is installed."""

import os
from pathlib import Path

import pyspark


def spark_home() -> Path:
    """Spark's folder, which holds `jars`: SPARK_HOME if set, else the folder of pyspark."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
