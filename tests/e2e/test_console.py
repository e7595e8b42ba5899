"""The console of a service with real work: its numbers are what happened."""

import re
from collections.abc import Callable
from pathlib import Path

from kworker.console.source import Document
from tests.support.console import ConsoleClient
from tests.support.kafka import Writer, numbered
from tests.support.service import service
from tests.support.waiting import eventually

# Of 40 records 4 are refused, 4 are bad, and 4 fail once.
HANDLERS = """
import time
from kworker import Reject, Retry
from tests.support.recorded import recorded

@recorded
def handle(message):
    number = message.offset % 10
    time.sleep(0.012)
    if number == 1:
        raise Reject("no")
    if number == 2:
        raise ZeroDivisionError
    if number == 3 and message.attempt == 1:
        raise Retry("busy")
    return message.value
"""


def test_its_numbers_are_what_happened(
    tmp_path: Path,
    bootstrap: str,
    topic: Callable[..., str],
    free_port: Callable[[], int],
) -> None:
    source, port = topic("seen", partitions=1), free_port()
    console = ConsoleClient(port)
    settings = {
        "console": {"listen": f"127.0.0.1:{port}"},
        "retry": {"delays": ["1s"]},
        "workers": {"processes": 2, "threads": 4},
    }
    with service(
        tmp_path / "service", bootstrap, [source], handlers=HANDLERS, settings=settings
    ) as seen:
        seen.serve()
        assert console.comes("/readyz").json["ok"] is True
        Writer(bootstrap, tmp_path / "produced").write(source, numbered(40, keys=40))

        def metric(name: str) -> float:
            found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", console.get("/metrics").text)
            return float(found[1]) if found else -1.0

        eventually(lambda: metric("kworker_records_done_total") == 32, what="32 are done")
        eventually(lambda: metric('kworker_dead_letters_total{reason="exhausted"}') == 4)
        assert metric('kworker_dead_letters_total{reason="rejected"}') == 4
        assert metric('kworker_dead_letters_total{reason="crashed"}') == 0
        assert metric("kworker_retries_total") == 8
        assert metric("kworker_handler_failures_total") == 16
        # A handler's thread adds up its times after the record has gone on.
        eventually(lambda: metric("kworker_handler_run_seconds_count") == 48, what="48 have run")
        assert metric('kworker_handler_run_seconds_bucket{le="0.01"}') == 0
        assert metric("kworker_handler_run_seconds_sum") >= 48 * 0.012
        # A retry by its topic comes anew.
        eventually(lambda: metric("kworker_queue_seconds_count") == 48, what="48 have waited")
        assert 0 < metric("kworker_queue_seconds_sum") < 48 * 60
        assert metric("kworker_rebalances_total") >= 2
        assert metric("kworker_rebalance_seconds_total") > 0
        assert metric('kworker_transaction_seconds_count{outcome="committed"}') == 0
        assert metric('kworker_worker_handlers{worker="1"}') == 4
        assert 0 <= metric('kworker_worker_utilisation_ratio{worker="1"}') <= 1
        eventually(lambda: metric("kworker_lag_records") == 0)
        shown: Document = console.get("/status.json").json
        told = seen.status()
        assert shown["dead_letters"] == told["dead_letters"]
        assert shown["runs"] == told["runs"]
        joined = metric("kworker_rebalances_total")
        took_s = metric("kworker_rebalance_seconds_total")
        seen.kill_worker(0)
        eventually(lambda: metric('kworker_worker_restarts_total{worker="0"}') == 1)
        eventually(lambda: metric("kworker_rebalances_total") > joined, what="it has joined again")
        assert metric("kworker_rebalance_seconds_total") > took_s
        assert metric("kworker_queue_seconds_count") == 48
        assert metric("kworker_handler_run_seconds_count") == 48  # what a dead worker counted stays
        console.comes("/readyz")
        seen.ends_well()
