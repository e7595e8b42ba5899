"""`kworker lag` on a real broker: how far a group is behind, with no service or beside one."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kworker.cli.lag import commands
from kworker.cli.main import run
from kworker.clients.watch import KafkaWatch
from kworker.core.offset_map import encode, origin_of
from tests.support import kafka
from tests.support.service import Service, service, sticking
from tests.support.waiting import eventually

PARTITIONS = 2
RECORDS = 10  # in each partition
HOUR_MS = 3_600_000
TABLE = '\n[[spark.tables]]\nname = "sales"\npath = "data/sales"\n'


class LagDesk:
    """A service that has never run, and a person who asks how far it is behind."""

    def __init__(self, asked: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = asked
        self.bootstrap = asked.bootstrap
        self.source = asked.topics[0]
        self.producer = Producer({"bootstrap.servers": asked.bootstrap})
        self._capsys = capsys
        self.errors = ""

    def types(self, *arguments: str, code: int = 0) -> str:
        """What `kworker lag …` prints."""
        self._capsys.readouterr()
        got = run(["lag", *arguments, "--config", str(self.service.config)])
        out, self.errors = self._capsys.readouterr()
        assert got == code, self.errors
        return out

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.types("--json"))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The partitions of the source."""
        topics = {each["topic"]: each for each in self.document()["topics"]}
        return list(topics[self.source]["partitions"])

    def write(self, topic: str, partition: int, **record: Any) -> None:
        self.producer.produce(topic, b"v", partition=partition, **record)
        assert self.producer.flush(30) == 0

    def commits(self, *places: TopicPartition, group: str = "") -> None:
        kafka.commit(self.bootstrap, group or self.service.name, list(places))

    def mapped(self, position: int, beyond: list[tuple[int, int]]) -> TopicPartition:
        """A position in partition 0 of the source, with an offset map."""
        watch = KafkaWatch({"bootstrap.servers": self.bootstrap})
        identity = watch.identities([self.source], 10.0)[self.source]
        text = encode(origin_of(identity, (self.source, 0)), position, beyond)
        return TopicPartition(self.source, 0, position, metadata=text)


@pytest.fixture
def desk(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> LagDesk:
    """Its records are an hour old, and each is a second younger than the one before."""
    asked = Service(tmp_path / "service", bootstrap, [topic("orders", partitions=PARTITIONS)])
    asked.create_topics()
    desk = LagDesk(asked, capsys)
    began = int(time.time() * 1000) - HOUR_MS
    for number in range(RECORDS * PARTITIONS):
        stamp = began + 1000 * (number // PARTITIONS)
        desk.producer.produce(desk.source, b"v", partition=number % PARTITIONS, timestamp=stamp)
    assert desk.producer.flush(30) == 0
    return desk


def test_a_group_that_never_committed_is_behind_by_all(desk: LagDesk) -> None:
    document = desk.document()
    assert document["lag"]["records"] == document["lag"]["unfinished"] == RECORDS * PARTITIONS
    assert 3_599 < document["lag"]["age_s"] < 3_700
    assert document["missing"] == []
    assert "2 partitions without a position, counted from the first offset" in desk.types()


def test_the_age_is_of_the_oldest_record_that_is_not_done(desk: LagDesk) -> None:
    """Of those that follow it, the offset map says which are."""
    desk.commits(desk.mapped(4, [(5, 7), (8, 9)]), TopicPartition(desk.source, 1, RECORDS))
    [first, second] = desk.rows()
    assert (first["committed"], first["end"]) == (4, RECORDS)
    assert (first["records"], first["unfinished"]) == (6, 3)
    assert 3_595 < first["age_s"] < 3_690
    assert (second["records"], second["unfinished"], second["age_s"]) == (0, 0, 0.0)
    shown = desk.types("--partitions")
    assert len(shown.splitlines()) == 2 + 2 * PARTITIONS


def test_a_position_at_expired_records_goes_on_at_the_first_there(desk: LagDesk) -> None:
    """A record that the map says is done has no age."""
    desk.commits(desk.mapped(2, [(6, 8)]), TopicPartition(desk.source, 1, RECORDS))
    place = TopicPartition(desk.source, 0, 6)
    admin = AdminClient({"bootstrap.servers": desk.bootstrap})
    admin.delete_records([place])[place].result(30)
    row = desk.rows()[0]
    assert (row["expired"], row["records"], row["unfinished"]) == (4, 4, 2)
    assert 3_591 < row["age_s"] < 3_690
    assert "4 expired before they were read" in desk.types("--partitions")


def test_an_open_transaction_hides_neither_positions_nor_ends(desk: LagDesk) -> None:
    """One that hangs lasts for days; the group does not read what is in it, either."""
    desk.commits(TopicPartition(desk.source, 0, 4), TopicPartition(desk.source, 1, 4))
    own = {"bootstrap.servers": desk.bootstrap, "transactional.id": f"hides-{desk.source}"}
    writer = Producer(own)
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(desk.source, b"not yet", partition=0)
    group = {"bootstrap.servers": desk.bootstrap, "group.id": desk.service.name}
    member = Consumer(group)
    try:
        places = [TopicPartition(desk.source, 0, 9)]
        writer.send_offsets_to_transaction(places, member.consumer_group_metadata(), 30)
        assert writer.flush(30) == 0
        began = time.monotonic()
        row = desk.rows()[0]
        assert (row["committed"], row["end"], row["records"]) == (4, RECORDS, 6)
        assert time.monotonic() - began < commands.TIMEOUT_S
    finally:
        writer.abort_transaction(30)
        member.close()


def test_markers_without_a_record_behind_them_have_no_age(desk: LagDesk) -> None:
    """An aborted transaction leaves offsets that nobody will ever read."""
    desk.commits(*(TopicPartition(desk.source, n, RECORDS) for n in range(PARTITIONS)))
    writer = Producer({"bootstrap.servers": desk.bootstrap, "transactional.id": desk.source})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(desk.source, b"never", partition=0)
    assert writer.flush(30) == 0
    writer.abort_transaction(30)
    eventually(lambda: desk.rows()[0]["records"] == 2, what="record and marker")
    row = desk.rows()[0]
    assert (row["unfinished"], row["age_s"]) == (2, 0.0)


def test_waiting_retries_are_counted_by_delay(desk: LagDesk) -> None:
    """With the time at which the first of all partitions may leave."""
    now = int(time.time() * 1000)
    topic = f"{desk.service.name}.retry.10s"
    source = ("kworker-source", f"{desk.source}/0/1/{now}".encode())
    for partition, ago_ms in ((0, 1_000), (1, 4_000), (1, 2_000)):
        headers = [source, ("kworker-due", b"%d" % (now + HOUR_MS))]
        desk.write(topic, partition, headers=headers, timestamp=now - ago_ms)
    found = {row["delay"]: row for row in desk.document()["delays"]}
    assert {delay: row["waiting"] for delay, row in found.items()} == {"1s": 0, "10s": 3, "1m": 0}
    assert found["10s"]["next_due_ms"] == now + 6_000
    assert "delay 10s: 3 waiting, the next is due in" in desk.types()
    desk.commits(TopicPartition(topic, 1, 2), group=f"{desk.service.name}.delay")
    found = {row["delay"]: row for row in desk.document()["delays"]}
    assert (found["10s"]["waiting"], found["10s"]["next_due_ms"]) == (1, now + 9_000)


def test_each_table_is_behind_by_its_own_group(desk: LagDesk) -> None:
    desk.service.config.write_text(desk.service.config.read_text() + TABLE)
    for _ in range(5):
        desk.write(desk.service.results, 0)
    group = f"{desk.service.name}.spark.sales"
    desk.commits(TopicPartition(desk.service.results, 0, 3), group=group)
    [table] = desk.document()["tables"]
    assert (table["table"], table["group"], table["records"]) == ("sales", group, 2)
    assert table["age_s"] > 0


def test_a_missing_topic_is_named_beside_the_lag_of_the_others(desk: LagDesk) -> None:
    kafka.delete_topic(desk.bootstrap, f"{desk.service.name}.requeue")
    document = desk.document()
    assert document["missing"] == [f"{desk.service.name}.requeue"]
    assert document["lag"]["records"] is None
    assert [each["records"] for each in document["topics"]] == [RECORDS * PARTITIONS, None]
    assert "create with: kworker topics create" in desk.types()


def test_256_partitions_take_no_longer_than_a_person_waits(
    desk: LagDesk, topic: Callable[..., str]
) -> None:
    """Each has an age."""
    wide = topic("wide", partitions=256)
    for partition in range(256):
        desk.producer.produce(wide, b"v" * 1000, partition=partition)
    assert desk.producer.flush(60) == 0
    text = desk.service.config.read_text().replace(f'["{desk.source}"]', f'["{wide}"]')
    desk.service.config.write_text(text)
    began = time.monotonic()
    [found, _requeue] = desk.document()["topics"]
    assert time.monotonic() - began < commands.TIMEOUT_S
    assert found["records"] == 256
    assert None not in {row["age_s"] for row in found["partitions"]}


def test_the_lag_of_a_running_service_is_what_its_status_says(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """One stuck record, behind which all others of its partition are done."""
    options = {"handlers": sticking("0"), "settings": {"workers": {"processes": 1}}}
    with service(tmp_path, bootstrap, [topic("orders", partitions=1)], **options) as running:
        writer = kafka.Writer(bootstrap, tmp_path / "written")
        writer.write(running.topics[0], kafka.numbered(50, keys=50))
        running.serve()

        def agree() -> bool:
            said = json.loads(running.command("lag", "--json").stdout)["lag"]
            told = running.status()["lag"]
            return (said["records"], said["unfinished"], told["unfinished"]) == (50, 1, 1)

        running.until(agree, "both tell of one unfinished record")
        age_s = json.loads(running.command("lag", "--json").stdout)["lag"]["age_s"]
        assert age_s > 0
        (running.folder / "released").touch()
        running.caught_up()
        after = json.loads(running.command("lag", "--json").stdout)["lag"]
        assert after == {"records": 0, "unfinished": 0, "age_s": 0.0}
        running.ends_well()


def test_without_a_broker_it_is_69_and_one_line(
    desk: LagDesk, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 1.0)
    text = desk.service.config.read_text()
    desk.service.config.write_text(text.replace(desk.bootstrap, f"127.0.0.1:{free_port()}"))
    desk.types(code=69)
    [line] = desk.errors.splitlines()
    assert line.startswith("kworker: no broker of 127.0.0.1:")
