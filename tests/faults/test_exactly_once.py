"""Exactly once under `kill -9`: what read_committed sees is each result once, whole or not."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.harness.evidence import gather
from tests.harness.kafka import Writer, numbered
from tests.harness.service import Service, service
from tests.waiting import eventually

Topic = Callable[..., str]

RECORDS = 5_000
KILLS = 6
BUSY = 20  # records in hand, as last told
WORKERS = 2

SLOWISH = """
import time
from tests.harness.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.003)
    return message.value
"""


def test_workers_that_are_killed_publish_each_result_once(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """P2: an outcome and the position behind it are in one transaction, or in none."""
    source = topic("exactly", partitions=2 * WORKERS)
    settings = {
        "workers": {"processes": WORKERS, "threads": 8},
        "delivery": {"results": results, "guarantee": "exactly-once"},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:
        struck.serve()
        writer.begin(source, numbered(RECORDS, keys=500))
        for turn in range(KILLS):
            slot = turn % WORKERS
            eventually(partial(_at_work, struck, slot), every_s=0.01, what=f"{slot} at work")
            struck.kill_worker(slot)
        writer.finish()
        struck.caught_up()
        assert struck.stop() == 0
        struck.is_gone()
    found = gather(struck, writer.acked, results, exactly_once=True)
    assert len(found.results) == RECORDS
    assert found.repeated, "an invalid run: nothing was in hand when they died"
    assert found.contradictions() == {}


def _at_work(struck: Service, slot: int) -> bool:
    return bool(struck.worker(slot)["in_hand"] > BUSY)
