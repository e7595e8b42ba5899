"""A batch that was written, and comes again in another JVM, leaves the table's files alone."""

from pathlib import Path

import pytest

from tests.support.spark_service import Service
from tests.support.tables import Reader, spark_table

ORDERS = 100


@pytest.mark.parametrize("name", ["delta", "iceberg", "parquet"])
def test_files_of_a_table_are_never_written_again(
    tmp_path: Path, bootstrap: str, tables: Reader, name: str
) -> None:
    """Else one that is cut off on the way, or fails, costs rows that were there.

    One table, so that the first tasks of each JVM are those of its first batch.
    """
    made = Service(tmp_path, bootstrap, spark_table("t", format=name))
    try:
        made.create_topic()
        made.send_orders(0, ORDERS)
        assert made.start("--once").ends() == 0
        before = _files(made)
        assert before
        for noted in ("0", ".0.crc"):
            (made.checkpoint("t") / "commits" / noted).unlink()
        assert made.start("--once").ends() == 0
        after = _files(made)
        assert {path: after.get(path) for path in before} == before
        rows = [row["source_offset"] for row in tables.rows(made.file)["t"]]
        assert sorted(rows) == list(range(ORDERS))
    finally:
        made.close()


def _files(made: Service) -> dict[Path, tuple[int, int]]:
    """Whoever writes a file again, or another of its name, changes this."""
    found = (made.folder / "data" / "t").rglob("*.parquet")
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}
