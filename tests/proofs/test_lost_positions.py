"""The group's positions are deleted under a running service, while no member of it is heard."""

from collections.abc import Callable
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.fault_brokers import SESSION_MS
from tests.support.kafka import New, Writer
from tests.support.ledgers import invocations
from tests.support.service import service, stop
from tests.support.waiting import eventually

RECORDS = 20
SETTINGS = {
    "workers": {"processes": 1},
    "kafka.consumer": {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500},
}


def test_lost_positions_repeat_nothing_until_a_person_decides(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """It began at the beginning, and all that the topic holds ran once more, unsaid."""
    source = topic("lost", partitions=1)
    records = [New(f"{n}", b"%d" % n, b"%d" % n) for n in range(RECORDS)]
    Writer(bootstrap, tmp_path / "produced").write(source, records)
    options = {"settings": SETTINGS}
    with service(tmp_path / "service", bootstrap, [source], **options) as live:
        live.serve()
        live.caught_up()
        worker = psutil.Process(live.worker_pids()[0])
        stop(worker)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        eventually(lambda: deleted(admin, live.name), timeout_s=60, what="its session ends")
        worker.resume()
        live.until(lambda: live.state() == "red", "it is red", 60)
        reasons = [why for why in live.status()["reasons"] if why.startswith(source)]
        assert reasons == [
            f"{source}/0 stopped: the group had a position there and has none now; the partition"
            f" now holds 0 to {RECORDS}; `kworker offsets reset` decides where to go on"
        ]
        assert live.stop() == 0
        assert live.committed().get((source, 0)) is None
        live.start()
        live.until(lambda: live.state() == "waiting", "it waits", 60)
        [reason] = live.status()["reasons"]
        assert "ran before and has no positions now" in reason
        live.stop()
        assert len(invocations(live.ledger)) == RECORDS
        done = live.command("offsets", "reset", "--to", "latest")
        assert done.returncode == 0, done.stderr
        live.serve()
        assert live.stop() == 0
        assert len(invocations(live.ledger)) == RECORDS


def deleted(admin: AdminClient, group: str) -> bool:
    """Refused while it has a member."""
    try:
        admin.delete_consumer_groups([group])[group].result(30)
    except KafkaException:
        return False
    return True
