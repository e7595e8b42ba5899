"""What a table's own files tell of the batches of a query, read without Spark."""

import json
import os
from collections.abc import Callable
from pathlib import Path


def planned(checkpoint: Path) -> int:
    """The last batch whose range is fixed, or -1."""
    return highest(checkpoint / "offsets")


def noted(checkpoint: Path) -> int:
    """The last batch that is noted as written, or -1."""
    return highest(checkpoint / "commits")


def highest(folder: Path, suffix: str = ".compact") -> int:
    """The highest of the numbers by which files are called, with or without a suffix; or -1."""
    try:
        names = [name.removesuffix(suffix) for name in os.listdir(folder)]
    except FileNotFoundError:
        return -1  # not made yet, or put aside by a job that takes the table over
    return max((int(name) for name in names if name.isdigit()), default=-1)


def in_delta(table: Path) -> int:
    """The last batch of which the table's newest commit tells, or -1."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = map(json.loads, commits[-1].read_text().splitlines() if commits else ())
    told = (
        action["commitInfo"].get("userMetadata") for action in actions if "commitInfo" in action
    )
    return max(map(_batch, told), default=-1)


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
    return max((_batch(summary.get("kworker")) for summary in summaries), default=-1)


def in_parquet(table: Path) -> int:
    """The last batch that was sealed; -1 for none."""
    seals = table.parent.glob(f".{table.name}.*.batches/[0-9]*.seal")
    last = max(seals, key=lambda path: int(path.stem), default=None)
    try:
        return -1 if last is None else _batch(json.loads(last.read_text())["mark"])
    except FileNotFoundError:
        return -1  # there is another by now


def _batch(mark: str | None) -> int:
    return int(json.loads(mark)["kworker"]["batch"]) if mark else -1


IN: dict[str, Callable[[Path], int]] = {
    "delta": in_delta,
    "iceberg": in_iceberg,
    "parquet": in_parquet,
}
"""By format."""
