"""Exactly once under `kill -9`: what read_committed sees is each result once, whole or not."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.harness import kafka
from tests.harness.kafka import Writer, numbered
from tests.harness.ledgers import invocations
from tests.harness.oracles import lost
from tests.harness.service import service
from tests.waiting import eventually

Topic = Callable[..., str]

RECORDS = 5_000
KILLS = 6
BUSY = 20  # records in hand, as last told

SLOWISH = """
import time
from tests.harness.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.003)
    return message.value
"""


def test_workers_that_are_killed_publish_each_result_once(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """P2: an outcome and the position behind it are in one transaction, or in none."""
    source, results = topic("exactly", partitions=4), topic("exactly-results", partitions=3)
    settings = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"results": results, "guarantee": "exactly-once"},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:
        struck.serve()
        writer.begin(source, numbered(RECORDS, keys=500))
        for turn in range(KILLS):
            slot = turn % 2
            eventually(
                lambda slot=slot: struck.worker(slot)["in_hand"] > BUSY, every_s=0.01, what="work"
            )
            struck.kill_worker(slot)
        writer.finish()
        struck.caught_up()
        assert struck.stop() == 0
        struck.is_gone()
    found = kafka.read_all(bootstrap, results)
    runs = invocations(struck.ledger)
    assert lost(writer.acked, runs) == []
    times = Counter(read.source for read in found)
    assert times.keys() == {record.position for record in writer.acked}
    assert [position for position, count in times.items() if count > 1] == []
    assert len(runs) > RECORDS, "an invalid run: nothing was in hand when they died"
