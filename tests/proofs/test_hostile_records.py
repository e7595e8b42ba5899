"""Hostile records by the ten thousand, under threads, a loop and transactions (32, 33, 38, 39)."""

import os
from pathlib import Path

import pytest

from tests.support import hostile_run

SEED = int(os.environ.get("PROOF_FUZZ_SEED", "20261123"))
RECORDS = int(os.environ.get("PROOF_FUZZ_RECORDS", "24000"))


@pytest.mark.parametrize(
    ("handlers", "guarantee", "share"),
    [
        (hostile_run.PLAIN, "at-least-once", 1.0),
        (hostile_run.ASYNC, "at-least-once", 0.25),
        (hostile_run.BATCHES, "at-least-once", 0.25),
        (hostile_run.PLAIN, "exactly-once", 0.25),
    ],
    ids=["threads", "loop", "batches", "exactly once"],
)
def test_each_of_many_hostile_records_ends_once(
    tmp_path: Path, bootstrap: str, handlers: str, guarantee: str, share: float
) -> None:
    """Every kind of pool and of guarantee ends each record."""
    count = int(RECORDS * share)
    found = hostile_run.run(
        tmp_path / "service",
        bootstrap,
        seed=SEED,
        count=count,
        handlers=handlers,
        guarantee=guarantee,
    )
    print(f"PROOF_FUZZ_SEED={SEED}, {count} records: {dict(found.reasons)}")
    assert hostile_run.judge(found) == {}


def test_claims_of_hostile_records_stop_nothing(
    tmp_path: Path, bootstrap: str, redis_url: str
) -> None:
    """A function of the user's makes ids, and fails in each of its ways."""
    idempotency = {"redis": f"{redis_url}/0", "key": "handlers:event", "prefix": "hostile:"}
    found = hostile_run.run(
        tmp_path / "service",
        bootstrap,
        seed=SEED,
        count=RECORDS // 4,
        handlers=hostile_run.IDENTIFIED,
        more={"idempotency": idempotency},
    )
    assert hostile_run.judge(found) == {}
