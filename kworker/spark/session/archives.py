"""The jar files that tables need and that pyspark does not include."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from kworker import jars
from kworker.config.model import TableSettings
from kworker.errors import Unreachable
from kworker.spark.session.home import spark_home

_VERSION = re.compile(r"-\d[^/]*$")


def archives(tables: Iterable[TableSettings], *, progress: Callable[[str], None]) -> list[Path]:
    """Returns the jar files that the tables need and pyspark lacks, from cache or network.

    Raises `Unreachable` for a jar file that is in neither.
    """
    found, missing = available_archives(tables, progress=progress)
    for error in missing.values():
        raise error
    return found


def available_archives(
    tables: Iterable[TableSettings], *, progress: Callable[[str], None]
) -> tuple[list[Path], dict[str, Unreachable]]:
    """Returns the jar files that tables need, and an error for each format without its jar files.

    Raises `Unreachable` if every format lacks its jar files, or if Spark's Kafka connector is not
    in the cache and cannot be fetched.
    """
    found = list(jars.fetch(jars.SPARK_KAFKA, progress=progress))
    formats = {table.format for table in tables}
    missing: dict[str, Unreachable] = {}
    for name in sorted(formats & _ARCHIVES.keys()):
        try:
            found += jars.fetch(_ARCHIVES[name], progress=progress)
        except Unreachable as error:
            missing[name] = error
            if missing.keys() == formats:
                raise
    return not_shipped(spark_home() / "jars", found), missing


_ARCHIVES = {"delta": jars.DELTA, "iceberg": jars.ICEBERG}


def not_shipped(folder: Path, archives: Iterable[Path]) -> list[Path]:
    """Returns those jar files that are not in `folder`, not even in another version."""
    shipped = {_artefact(path) for path in folder.glob("*.jar")}
    return list({path.name: path for path in archives if _artefact(path) not in shipped}.values())


def _artefact(path: Path) -> str:
    return _VERSION.sub("", path.name)
