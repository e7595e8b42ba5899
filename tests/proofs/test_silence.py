"""Brokers answer, and the group does not: nothing may look well that is not."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kworker.clients.consumer import KafkaConsumer
from kworker.core.membership import Absence
from kworker.core.message import PartitionId
from tests.support.fault_brokers import Proxied
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.kafka_and_twin import CONSUMER
from tests.support.member import Member, new_group, until
from tests.support.proxy import Api
from tests.support.service import Service, service

GROUPS = (
    Api.FIND_COORDINATOR,
    Api.JOIN_GROUP,
    Api.SYNC_GROUP,
    Api.HEARTBEAT,
    Api.OFFSET_COMMIT,
    Api.OFFSET_FETCH,
)
RED_S = 30
GIVEN_UP_MS = 4000


def test_a_silent_coordinator_is_red_and_its_lag_unknown(tmp_path: Path, proxied: Proxied) -> None:
    """The coordinator is silent while the leaders of all partitions go on answering."""
    source = create_topic(proxied.bootstrap, f"silent-{tmp_path.name}", 2)
    settings: dict[str, Any] = {
        "kafka": {"bootstrap.servers": proxied.through, "socket.timeout.ms": GIVEN_UP_MS},
        "workers": {"processes": 1, "threads": 2},
    }
    with service(tmp_path / "service", proxied.bootstrap, [source], settings=settings) as silent:
        silent.serve()
        pids = silent.worker_pids()
        silent.until(lambda: silent.status()["lag"]["records"] == 0, "its lag is known")
        for client in ("0", "admin"):
            proxied.proxy.lose(f"{silent.name}-here-{client}", *GROUPS)
        silent.until(lambda: says(silent, "not a member of the group for"), "red", RED_S)
        silent.until(lambda: silent.status()["lag"]["records"] is None, "its lag is not known")
        proxied.proxy.let_all_go()
        Writer(proxied.bootstrap, tmp_path / "produced").write(source, numbered(20, keys=20))
        silent.is_running()
        silent.caught_up()
        assert silent.worker_pids() == pids
        silent.ends_well()


@pytest.mark.parametrize(
    ("api", "absence"),
    [(Api.JOIN_GROUP, Absence.REBALANCE), (Api.FIND_COORDINATOR, Absence.COORDINATOR)],
)
def test_a_client_that_waits_is_replaced_by_one_that_joins(
    proxied: Proxied, api: Api, absence: Absence
) -> None:
    """The one whose join was lost would wait for five minutes."""
    source, group = create_topic(proxied.bootstrap, new_group(), 1), new_group()
    client = f"lost-{group}"
    member = Member(Through(proxied, client), [source], group=group)
    proxied.proxy.lose(client, api)
    until(lambda: member.consumer.absence is absence, member, what="it waits")
    proxied.proxy.let_all_go()
    member.consumer.recreate()
    until(lambda: member.owned and member.consumer.absence is None, member, what="it has joined")
    member.consumer.close()


class Through:
    """A cluster whose consumers meet the proxy."""

    wait_s = 0.05

    def __init__(self, proxied: Proxied, client: str) -> None:
        self._common = {**CONSUMER, "bootstrap.servers": proxied.through, "client.id": client}

    def consumer(self, listener: Any, group: str) -> KafkaConsumer:
        return KafkaConsumer({**self._common, "group.id": group}, listener)


def test_partitions_of_a_killed_kip_848_member_are_reported(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """The group gives it out when the session is over, after 45 s as brokers have it."""
    source = topic("killed", partitions=4)
    settings: dict[str, Any] = {
        "kafka.consumer": {"group.protocol": "consumer"},
        "workers": {"processes": 2, "threads": 2, "membership": "dynamic"},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as killed:
        killed.serve()
        checked = killed.command("check", "--online")
        assert "group.consumer.session.timeout.ms of the brokers is 45000" in checked.stdout

        def shares() -> list[list[PartitionId]]:
            rows = killed.workers().values()
            return [[(t, n) for t, n in row["partitions"] if t == source] for row in rows]

        killed.until(lambda: list(map(len, shares())) == [2, 2], "each has its share")
        theirs = shares()[1]
        killed.kill_worker(1)
        written = writer.write(source, numbered(40, keys=40))
        waiting = sum(1 for record in written if record.at in theirs)
        killed.until(lambda: killed.status()["lag"]["records"] == waiting, "lag", RED_S)
        killed.until(lambda: says(killed, f"no worker has {source}/"), "it is told", RED_S)
        os.kill(killed.pid, signal.SIGQUIT)
        killed.exit_code()
        killed.is_gone()


def says(running: Service, words: str) -> bool:
    return any(words in reason for reason in running.status().get("reasons", []))
