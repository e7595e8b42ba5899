"""Whatever is ended while it joins leaves its group, too: a static ghost keeps its partitions."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from tests.support.kafka import Writer, numbered
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

SESSION_S = 30  # as long as a ghost would stay: longer than everything here
SETTINGS: dict[str, dict[str, Any]] = {
    "workers": {"processes": 2, "threads": 4},
    "kafka": {"consumer": {"session.timeout.ms": SESSION_S * 1000}},
}


def members(bootstrap: str, group: str) -> list[str]:
    """The instance ids in a group, as the brokers know them."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    found = client.describe_consumer_groups([group])[group].result().members
    return sorted(member.group_instance_id or member.member_id for member in found)


def joining(one: Service, slot: int) -> bool:
    row = one.workers().get(slot, {})
    return bool(row.get("pid")) and row["phase"] == "joining"


def test_a_worker_scaled_away_while_it_joins_keeps_no_partition(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """`scale 3`, and at once `scale 2`: a third of the records waited for a session's end."""
    source = topic("proof", partitions=6)
    with service(tmp_path / "service", bootstrap, [source], settings=SETTINGS) as one:
        one.serve()
        before = members(bootstrap, one.name)
        assert len(before) == 2
        for _ in range(3):  # it may be through with it before it is looked at
            assert one.command("scale", "3").returncode == 0
            eventually(lambda: joining(one, 2) or one.state() == "running", every_s=0.001)
            assert one.command("scale", "2").returncode == 0
            eventually(lambda: 2 not in one.workers(), what="the third has gone")
            assert members(bootstrap, one.name) == before
        writer = Writer(bootstrap, tmp_path / "produced")
        began = time.monotonic()
        writer.write(source, numbered(40, keys=40))
        one.caught_up()
        assert time.monotonic() - began < SESSION_S / 2
        assert one.stop() == 0
        reset = one.command("offsets", "reset", "--to", "earliest")
        assert reset.returncode == 0, reset.stderr


def test_a_service_stopped_while_it_joins_leaves_no_member(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Worker or delay process; the next start, and `offsets reset`, would wait for a session."""
    source = topic("proof", partitions=6)
    with service(tmp_path / "service", bootstrap, [source], settings=SETTINGS) as one:
        one.start()
        eventually(lambda: joining(one, 0), timeout_s=60, every_s=0.001, what="a worker joins")
        one.ends_well()
        for group in (one.name, f"{one.name}.delay"):
            assert members(bootstrap, group) == []
