"""The folder of Spark."""

import os
from pathlib import Path

import pyspark


def spark_home() -> Path:
    """The folder of Spark, with its `jars`: SPARK_HOME, else the folder of pyspark."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
