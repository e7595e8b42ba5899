"""Kafka away for a while: nothing exits, the status says so, and all goes on where it stood."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kworker.sandbox import Sandbox
from tests.support.evidence import gather
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.ledgers import Fault, now_ns
from tests.support.service import Service, lasting, service
from tests.support.waiting import eventually

SESSION_MS = 6_000  # the shortest that brokers allow
# Longer than that; `make test` must end some day, an hour would do as well.
AWAY_S = float(os.environ.get("PROOF_OUTAGE_S", "9"))
RED_S = 30.0  # by then a status says that no broker answers
SLOWISH = lasting(0.02)


def test_a_kafka_outage_loses_nothing_and_restarts_no_process(
    tmp_path: Path, own_sandbox: Callable[..., Sandbox]
) -> None:
    """Handlers at work, results and commits under way: all of it has to keep until it is back."""
    sandbox = own_sandbox(redis=False)
    source = create_topic(sandbox.bootstrap, "proof", 4)
    results = create_topic(sandbox.bootstrap, "results", 4, message_timestamp_type="LogAppendTime")
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2},
        "delivery": {"results": results},
        "kafka.consumer": {"session.timeout.ms": SESSION_MS},
        # So that results are refused meanwhile, and not only late.
        "kafka.producer": {"message.timeout.ms": 5000},
    }
    writer = Writer(sandbox.bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", sandbox.bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as waiting:
        writer.write(source, numbered(4_000, keys=500))
        waiting.serve()
        waiting.handled(200)
        pids = waiting.worker_pids()
        eventually(lambda: _in_hand(waiting), what="handlers are at work")
        stopped_ns = now_ns()
        sandbox.stop_broker(1)
        _stays_away(waiting, pids)
        waiting.write_handlers(lasting(0.001))
        sandbox.start_broker(1)
        # The session may be over: then what was not committed comes again, to whoever gets it.
        for slot, pid in pids.items():
            waiting.faults.add(Fault("Kafka stopped", pid, slot, (), stopped_ns, now_ns(), 1))
        waiting.is_running()
        assert waiting.worker_pids() == pids
        writer.write(source, numbered(1_000, keys=500, first=4_000))
        waiting.caught_up()
        assert waiting.worker_pids() == pids
        waiting.ends_well()
        found = gather(waiting, writer.acked, results)
    assert "Traceback" not in waiting.said()
    contradictions = found.contradictions()
    # A result that was refused may have been written: it is at least once.
    contradictions.pop("results too many", None)
    assert contradictions == {}


def _in_hand(running: Service) -> int:
    return sum(row["in_hand"] for row in running.workers().values())


def _stays_away(waiting: Service, pids: dict[int, int]) -> None:
    """The time without a broker, in which the status is red and the processes stay."""
    eventually(lambda: waiting.state() == "red", timeout_s=RED_S, what="the status is red")
    back_at = time.monotonic() + AWAY_S

    def over() -> bool:
        assert waiting.process is not None
        assert waiting.process.poll() is None
        if not (status := waiting.status()):
            return False  # the machine is too busy for an answer; nothing has ended
        assert (status["state"], bool(status["reasons"])) == ("red", True)
        assert {row["slot"]: row["pid"] for row in status["workers"]} == pids
        return time.monotonic() >= back_at

    eventually(over, timeout_s=AWAY_S + 30, every_s=0.25, what="the outage is over")
