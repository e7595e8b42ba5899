"""What a table's own files tell of the batches of a query, read without Spark."""

import json
from collections.abc import Callable
from pathlib import Path


def planned(checkpoint: Path) -> int:
    """The last batch whose range is fixed, or -1."""
    return _highest(checkpoint / "offsets")


def noted(checkpoint: Path) -> int:
    """The last batch that is noted as written, or -1."""
    return _highest(checkpoint / "commits")


def in_delta(table: Path) -> int:
    """The last batch of which the table's newest commit tells, or -1."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = map(json.loads, commits[-1].read_text().splitlines() if commits else ())
    return max((action["txn"]["version"] for action in actions if "txn" in action), default=-1)


def in_iceberg(table: Path) -> int:
    """The last batch of which the table's snapshot tells, or -1."""
    metadata = table / "metadata"
    try:
        version = (metadata / "version-hint.text").read_text().strip()
        told = json.loads((metadata / f"v{version}.metadata.json").read_text())
    except (FileNotFoundError, ValueError):
        return -1  # not made yet, or being written
    last = told.get("current-snapshot-id")
    summaries = (each["summary"] for each in told["snapshots"] if each["snapshot-id"] == last)
    return max((int(s.get("kworker.batch", -1)) for s in summaries), default=-1)


def in_parquet(table: Path) -> int:
    """The last batch in the log of Spark's file sink, or -1."""
    return _highest(table / "_spark_metadata")


IN: dict[str, Callable[[Path], int]] = {
    "delta": in_delta,
    "iceberg": in_iceberg,
    "parquet": in_parquet,
}
"""By format."""


def _highest(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    names = (path.name.removesuffix(".compact") for path in folder.iterdir())
    return max((int(name) for name in names if name.isdigit()), default=-1)
