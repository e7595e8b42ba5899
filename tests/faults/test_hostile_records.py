"""Thousands of records that somebody made to harm (32, 33, 38, 39), beside a normal load."""

import os
from pathlib import Path

from tests.support import hostile_run

SEED = int(os.environ.get("PROOF_FUZZ_SEED", "20261123"))
RECORDS = int(os.environ.get("PROOF_FUZZ_RECORDS", "4000"))


def test_each_hostile_record_ends_once_and_nothing_else_stops(
    tmp_path: Path, bootstrap: str
) -> None:
    """The end is a result or a dead letter; no process ends, and no other record is lost."""
    found = hostile_run.run(tmp_path / "service", bootstrap, seed=SEED, count=RECORDS)
    print(f"PROOF_FUZZ_SEED={SEED}, {RECORDS} records: {dict(found.reasons)}")
    assert hostile_run.judge(found) == {}
    assert {"result", "unreadable", "undecodable", "rejected", "exhausted"} <= found.reasons.keys()
