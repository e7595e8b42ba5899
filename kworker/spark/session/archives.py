"""The archives that tables need and pyspark does not bring."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from kworker import jars
from kworker.config.model import TableSettings
from kworker.errors import Unreachable
from kworker.spark.session.home import spark_home

_VERSION = re.compile(r"-\d[^/]*$")


def archives(tables: Iterable[TableSettings], *, progress: Callable[[str], None]) -> list[Path]:
    """The archives for the tables beyond pyspark's own, from the cache or else the network.

    Raises `Unreachable` when one is in neither.
    """
    found, missing = available_archives(tables, progress=progress)
    for error in missing.values():
        raise error
    return found


def available_archives(
    tables: Iterable[TableSettings], *, progress: Callable[[str], None]
) -> tuple[list[Path], dict[str, Unreachable]]:
    """The archives that can be had, and by format the errors of others; raises if none are left."""
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
    """The archives whose artefact, in any version, is not in `folder`."""
    shipped = {_artefact(path) for path in folder.glob("*.jar")}
    return list({path.name: path for path in archives if _artefact(path) not in shipped}.values())


def _artefact(path: Path) -> str:
    return _VERSION.sub("", path.name)
