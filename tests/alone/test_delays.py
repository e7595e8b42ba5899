"""How late the delay process is, seen by whoever reads what it forwards."""

import statistics
from collections.abc import Callable
from pathlib import Path

from tests.faults.test_delay_process import PARTITIONS, Reader, Retries, settings
from tests.harness.service import service

Topic = Callable[..., str]

WITHIN_MS = 500


def test_99_of_100_are_forwarded_within_half_a_second_when_5_000_come_due_at_once(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """What is due has waited for long enough."""
    source = topic("orders", partitions=PARTITIONS)
    with service(tmp_path / "service", bootstrap, [source], settings=settings()) as struck:
        struck.serve()
        reader, retries = Reader(struck), Retries(struck)
        for _ in range(10):
            for delay in ("4s", "2s", "1s"):
                retries.write(delay, 167)
            retries.finish()
        reader.until(len(retries.due_ms))
        reader.close()
        late_ms = [seen - retries.due_ms[number] for number, seen in reader.seen_ms.items()]
        spread = statistics.quantiles(late_ms, n=100)
        assert min(late_ms) >= 0
        assert spread[98] <= WITHIN_MS, (spread[49], spread[89], spread[98], max(late_ms))
        print("late, ms:", round(spread[49]), round(spread[98]), max(late_ms))
        assert struck.stop() == 0
