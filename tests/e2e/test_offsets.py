"""`kworker offsets` on a real broker: where a group stands, and that it can be put elsewhere."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kworker.cli.main import run
from kworker.clients.watch import KafkaWatch
from kworker.config import toml_file
from kworker.core.offset_map import TopicIdentity, encode, origin_of
from kworker.instance.state_folder import StateFolder
from kworker.preflight.positions import ensure_start_offsets
from tests.support import kafka
from tests.support.service import Service
from tests.support.waiting import eventually

PARTITIONS = 2
RECORDS = 10  # in each partition
FIRST_MS = 1_790_000_000_000  # of the first one; each next one is a second later


class Desk:
    """A service that has never run, and a person who puts its group somewhere."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        self.source = service.topics[0]
        self.requeue = f"{service.name}.requeue"
        self.admin = AdminClient({"bootstrap.servers": service.bootstrap})
        self._capsys = capsys
        self.code = 0
        self.errors = ""

    def types(self, *arguments: object) -> str:
        """What `kworker offsets …` says on stdout; its exit code and stderr are kept."""
        self._capsys.readouterr()
        words = [*map(str, arguments), "--config", str(self.service.config)]
        self.code = run(["offsets", *words])
        out, self.errors = self._capsys.readouterr()
        return out

    def rows(self, *arguments: object) -> dict[tuple[str, int], Any]:
        """The same for one that succeeds, with `--json`."""
        said = self.types(*arguments, "--json")
        assert self.code == 0, self.errors
        return {(row["topic"], row["partition"]): row for row in json.loads(said)}

    def committed(self) -> dict[tuple[str, int], int]:
        return kafka.committed(self.service.bootstrap, self.service.name)

    def trim(self, partition: int, before: int) -> None:
        at = TopicPartition(self.source, partition, before)
        self.admin.delete_records([at])[at].result(30)


@pytest.fixture
def desk(
    tmp_path: Path,
    bootstrap: str,
    topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    source = topic("orders", partitions=PARTITIONS)
    service = Service(tmp_path / "service", bootstrap, [source])
    service.create_topics()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS * PARTITIONS):
        stamp = FIRST_MS + 1000 * (number // PARTITIONS)
        producer.produce(source, b"v", partition=number % PARTITIONS, timestamp=stamp)
    assert producer.flush(30) == 0
    return Desk(service, capsys)


def both(desk: Desk, position: int) -> dict[tuple[str, int], int]:
    return {(desk.source, number): position for number in range(PARTITIONS)}


def test_offsets_show_counts_finished_beyond_until_a_reset(
    desk: Desk,
) -> None:
    """Whoever is put elsewhere runs again what lies there, however it ended before."""
    service = desk.service
    [identity] = (
        KafkaWatch({"bootstrap.servers": service.bootstrap})
        .identities([desk.source], 10.0)
        .values()
    )
    for number, of_partition in ((0, 0), (1, 7)):  # the second is of a partition that is not
        text = encode(origin_of(identity, (desk.source, of_partition)), 4, [(5, 7), (8, 9)])
        place = TopicPartition(desk.source, number, 4, metadata=text)
        kafka.commit(service.bootstrap, service.name, [place])
    rows = desk.rows("show")
    assert [rows[desk.source, n]["finished_beyond"] for n in (0, 1)] == [3, 0]
    assert [rows[desk.source, n]["lag"] for n in (0, 1)] == [6, 6]
    assert "3 records of the lag are finished" in desk.types("show")
    desk.rows("reset", "--to", 4)
    assert desk.rows("show")[desk.source, 0]["finished_beyond"] == 0


def test_a_reset_replaces_a_position_of_a_former_topic(desk: Desk) -> None:
    """Nobody goes on there."""
    service = desk.service
    watch = KafkaWatch({"bootstrap.servers": service.bootstrap})
    cluster_id = watch.identities([desk.source], 10.0)[desk.source].cluster_id
    former = origin_of(TopicIdentity(cluster_id, "former"), (desk.source, 0))
    place = TopicPartition(desk.source, 0, 4, metadata=encode(former, 4, [(5, 7)]))
    kafka.commit(service.bootstrap, service.name, [place])
    row = desk.rows("show")[desk.source, 0]
    assert (row["committed"], row["lag"], row["finished_beyond"]) == (4, 10, 0)
    assert row["made_again"]
    assert "the topic was deleted and created again" in desk.types("show")
    desk.rows("reset", "--to", 4)
    row = desk.rows("show")[desk.source, 0]
    assert (row["committed"], row["lag"], row["made_again"]) == (4, 6, False)


def test_offsets_show_lists_partitions_of_sources_and_requeue(desk: Desk) -> None:
    """Also for a group that has no positions yet, and one whose records have expired."""
    assert desk.rows("show").keys() == {
        (name, number) for name in (desk.source, desk.requeue) for number in range(PARTITIONS)
    }
    desk.rows("reset", "--to", 4)
    desk.trim(0, 6)
    rows = desk.rows("show")
    row = {
        "topic": desk.source,
        "committed": 4,
        "high": 10,
        "finished_beyond": 0,
        "made_again": False,
    }
    assert rows[desk.source, 0] == {**row, "partition": 0, "low": 6, "lag": 4}
    assert rows[desk.source, 1] == {**row, "partition": 1, "low": 0, "lag": 6}
    assert rows[desk.requeue, 0]["committed"] is None
    assert "2 records expired before they were read" in desk.types("show")


@pytest.mark.parametrize(
    ("to", "position"),
    [
        ("earliest", 0),
        ("latest", RECORDS),
        ("7", 7),
        ("99", RECORDS),
        (str(FIRST_MS + 2_500), 3),
        (str(FIRST_MS - 1), 0),
        (str(FIRST_MS + 1_000_000), RECORDS),
        ("2026-09-21T14:13:25", 5),
    ],
)
def test_every_partition_of_the_sources_is_set(desk: Desk, to: str, position: int) -> None:
    """To the first record of a time, and never outside of what the partition holds."""
    desk.rows("reset", "--to", "1")
    rows = desk.rows("reset", "--to", to)
    assert {at: row["after"] for at, row in rows.items()} == both(desk, position)
    assert {row["before"] for row in rows.values()} == {1}
    assert {row["clamped"] for row in rows.values()} == {to == "99"}
    assert desk.committed() == both(desk, position)


def test_a_reset_to_an_expired_offset_sets_the_first_there(desk: Desk) -> None:
    """Otherwise the group would stop at a gap as soon as it starts."""
    desk.trim(0, 6)
    shown = desk.types("reset", "--to", "2")
    assert desk.code == 0
    assert "offset 2 does not exist" in shown
    assert desk.committed() == {(desk.source, 0): 6, (desk.source, 1): 2}


def test_a_dry_run_shows_and_sets_nothing(desk: Desk) -> None:
    """Who skips records wants to see it first, and may while the service runs."""
    rows = desk.rows("reset", "--to", "latest", "--dry-run")
    assert {at: row["after"] for at, row in rows.items()} == both(desk, RECORDS)
    assert desk.committed() == {}


def test_one_partition_is_reset_only_in_a_group_with_positions(desk: Desk) -> None:
    """A group with some positions is one that goes on, from the earliest where it has none."""
    one = ("reset", "--topic", desk.source, "--partition", "1", "--to")
    desk.types(*one, "5")
    assert desk.code == 1
    assert "has no committed positions: reset all partitions" in desk.errors
    desk.rows("reset", "--to", "latest")
    desk.rows(*one, "5")
    assert desk.committed() == {(desk.source, 0): RECORDS, (desk.source, 1): 5}
    desk.types("reset", "--topic", "other", "--to", "5")
    assert desk.code == 2
    desk.types("reset", "--partition", "7", "--to", "5")
    assert desk.code == 2


def test_requeue_is_reset_only_when_it_is_named(desk: Desk) -> None:
    """What waits there was taken from the sources already; to skip it would lose it."""
    producer = Producer({"bootstrap.servers": desk.service.bootstrap})
    producer.produce(desk.requeue, b"v", partition=0)
    assert producer.flush(30) == 0
    desk.rows("reset", "--to", "latest")
    assert desk.errors.startswith(
        f"kworker: the group has no committed positions in {desk.requeue}"
    )
    desk.rows("reset", "--to", "latest", "--topic", desk.requeue)
    assert desk.errors == ""
    assert desk.committed()[desk.requeue, 0] == 1


@pytest.mark.parametrize("to", ["yesterday", "-2", "", "1.5"])
def test_a_wrong_reset_target_is_told_with_the_right_forms(desk: Desk, to: str) -> None:
    """The exit code of what is to be typed differently."""
    desk.types("reset", "--to", to)
    assert desk.code == 2
    assert desk.errors.startswith(
        f'kworker: the value of --to is wrong: "{to}" is not a position; expected earliest, latest,'
    )
    assert desk.committed() == {}


def test_a_reset_is_refused_while_the_service_runs_here(desk: Desk) -> None:
    """Its next commit would undo it."""
    folder = StateFolder(toml_file.load(desk.service.config).state_dir)
    folder.make()
    lock = folder.lock()
    try:
        desk.types("reset", "--to", "latest")
        assert desk.code == 73
        assert f"is running as pid {os.getpid()}: stop it first" in desk.errors
        assert desk.rows("reset", "--to", "latest", "--dry-run")
    finally:
        os.close(lock)
    assert desk.committed() == {}


@pytest.fixture(params=["classic", "consumer"])
def member(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    """The group's member on another host."""
    own = {"group.id": desk.service.name, "client.id": "orders-elsewhere-0"}
    common = {"bootstrap.servers": desk.service.bootstrap, "group.protocol": request.param}
    consumer = Consumer({**own, **common})
    consumer.subscribe([desk.source])
    eventually(lambda: consumer.poll(0.1) is None and consumer.assignment(), what="it has joined")
    yield consumer
    consumer.close()


def test_a_reset_is_refused_while_the_group_has_members(desk: Desk, member: Consumer) -> None:
    """A lock tells of this host only."""
    desk.types("reset", "--to", "latest")
    assert desk.code == 73
    assert "has members: orders-elsewhere-0 (127.0.0.1); stop the service on" in desk.errors
    assert desk.committed() == {}


def test_a_group_without_positions_goes_on_after_a_reset(desk: Desk) -> None:
    """It ran before, so `start` decides nothing any more: a person does."""
    config = toml_file.load(desk.service.config)
    assert ensure_start_offsets(config) == []
    assert desk.committed() == both(desk, 0)
    group = desk.service.name
    desk.admin.delete_consumer_groups([group])[group].result(30)
    [lost] = ensure_start_offsets(config)
    assert "kworker offsets reset" in lost.next_step
    rows = desk.rows("reset", "--to", "6")
    assert {row["before"] for row in rows.values()} == {None}
    assert ensure_start_offsets(config) == []
    assert desk.committed() == both(desk, 6)


def test_missing_topics_are_one_line(desk: Desk) -> None:
    """With the command that creates them."""
    kafka.delete_topic(desk.service.bootstrap, desk.requeue)
    for verb in (["show"], ["reset", "--to", "latest"]):
        desk.types(*verb)
        assert desk.code == 78
        [line] = desk.errors.splitlines()
        assert line.startswith(
            f"kworker: topics missing on the brokers: {desk.requeue}; create with: "
        )
