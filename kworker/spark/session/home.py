"""Where Spark is."""

import os
from pathlib import Path

import pyspark


def spark_home() -> Path:
    """The folder that has Spark's own `jars`: pyspark's, or the one that pyspark is told."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
