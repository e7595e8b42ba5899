"""The folder of Spark."""

import os
from pathlib import Path

import pyspark


def spark_home() -> Path:
    """The folder with Spark's own `jars`: SPARK_HOME, which pyspark follows, else pyspark's own."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
