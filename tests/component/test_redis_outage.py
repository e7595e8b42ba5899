"""A worker with idempotency whose Redis does not answer, on Kafka and Redis in memory."""

from pathlib import Path

import pytest

from kworker.core.message import RawMessage
from kworker.worker.poll_loop import IDLE_S
from tests.component.test_partition_return import one_partition
from tests.support import claims_rig
from tests.support.claiming_worker import ClaimingWorker

KEYS = [b"%d" % number for number in range(40)]


@pytest.fixture
def worker(tmp_path: Path) -> ClaimingWorker:
    """It has more records than it claims ahead of its handlers."""
    return ClaimingWorker(one_partition(*KEYS), claims_rig.Bench(tmp_path))


def waits_of(worker: ClaimingWorker, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits for records that the worker's turns will ask of its client."""
    waits, poll = [], worker.bench.consumer.poll

    def noted(most: int, timeout_s: float) -> list[RawMessage]:
        waits.append(timeout_s)
        return poll(most, timeout_s)

    monkeypatch.setattr(worker.bench.consumer, "poll", noted)
    return waits


def test_a_worker_that_waits_for_redis_does_not_spin(
    worker: ClaimingWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on once Redis answers."""
    worker.store.redis.away = True
    worker.turn()
    waits = waits_of(worker, monkeypatch)
    worker.turn()
    assert waits == pytest.approx([IDLE_S] * 6)
    assert worker.begun() == []
    worker.store.redis.away = False
    worker.turn(60)  # until Redis is asked again
    assert len(worker.begun()) == len(KEYS)
