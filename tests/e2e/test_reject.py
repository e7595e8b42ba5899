"""`kworker reject` on a real broker: only what is there and has not ended can be rejected."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kworker.cli.main import run
from kworker.clients.watch import KafkaWatch
from kworker.core.offset_map import encode, origin_of
from kworker.errors import ExitCode
from tests.support import kafka
from tests.support.service import Service

RECORDS = 10
POSITION = 4  # below which the service has settled all of partition 0; and of the rest:
DONE = [(6, 7)]
LOW = 1  # what lies below has expired


class Desk:
    """A service that stands still in the middle of its source, and a person."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        self.source = service.topics[0]
        self._capsys = capsys

    def types(self, *words: object) -> tuple[int, str]:
        """The exit code of `kworker reject …`, and what it says."""
        self._capsys.readouterr()
        code = run(["reject", *map(str, words), "--config", str(self.service.config)])
        out, errors = self._capsys.readouterr()
        return code, (out + errors).replace(self.source, "orders")

    def armed(self) -> list[str]:
        code, said = self.types("--list", "--json")
        assert code == 0, said
        return [row["record"] for row in json.loads(said)]


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Callable[..., str]
) -> Service:
    source = topic("orders", partitions=2)
    service = Service(tmp_path_factory.mktemp("reject"), bootstrap, [source])
    service.create_topics()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(source, b"%d" % number, partition=0)
    # Retries of what the source has settled: one waits still, the other has been read.
    for topic, offset in ((f"{service.name}.retry.10s", 2), (f"{service.name}.requeue", 3)):
        for source_offset in (offset, offset + 100):
            header = ("kworker-source", f"{source}/0/{source_offset}/1700000000000".encode())
            producer.produce(topic, b"again", partition=0, headers=[header])
    assert producer.flush(30) == 0
    [identity] = KafkaWatch({"bootstrap.servers": bootstrap}).identities([source], 10.0).values()
    told = encode(origin_of(identity, (source, 0)), POSITION, DONE)
    kafka.commit(bootstrap, service.name, [TopicPartition(source, 0, POSITION, metadata=told)])
    kafka.commit(bootstrap, service.name, [TopicPartition(f"{service.name}.requeue", 0, 1)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    at = TopicPartition(source, 0, LOW)
    admin.delete_records([at])[at].result(30)
    return service


@pytest.fixture
def desk(service: Service, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(service, capsys)


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        (
            "0:10",
            ExitCode.FAILURE,
            "orders:0:10 does not exist: the next record of orders:0 gets offset 10",
        ),
        ("0:0", ExitCode.FAILURE, "orders:0:0 does not exist: orders:0 begins at 1"),
        ("2:0", ExitCode.USAGE, "orders has no partition 2; its last is 1"),
        ("0:1", ExitCode.FAILURE, "orders:0:1 is done already, and no retry of it waits"),
        ("0:3", ExitCode.FAILURE, "orders:0:3 is done already"),  # its retry has been read
        ("0:6", ExitCode.FAILURE, "orders:0:6 is done already"),  # beyond the position
    ],
)
def test_a_record_missing_or_ended_cannot_be_rejected(
    desk: Desk, place: str, code: int, said: str
) -> None:
    """It would stay armed for ever, and kill the record that comes to lie there."""
    found, words = desk.types(f"{desk.source}:{place}")
    assert (found, said in words) == (code, True), words
    assert desk.armed() == []


def test_a_topic_that_the_service_does_not_read_is_refused(desk: Desk) -> None:
    code, said = desk.types(f"{desk.service.results}:0:0")
    assert code == ExitCode.USAGE
    assert f"no source topic of {desk.service.name}; its source topics are: orders" in said


@pytest.mark.parametrize("place", ["0:4", "0:9", "0:2"])
def test_an_unfinished_record_is_rejected_listed_and_undone(desk: Desk, place: str) -> None:
    """The last is settled in its source, and its retry waits in a delay topic."""
    record = f"{desk.source}:{place}"
    code, said = desk.types(record)
    assert (code, f"reject --undo orders:{place}" in said) == (0, True), said
    assert desk.armed() == [f"orders:{place}"]
    assert f"orders:{place}" in desk.types("--list")[1]
    assert desk.types("--undo", record) == (
        0,
        f"the rejection of orders:{place} is withdrawn; it runs as others do\n",
    )
    assert desk.armed() == []
    assert desk.types("--undo", record)[0] == ExitCode.FAILURE


def test_without_brokers_nothing_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether the record is there."""
    monkeypatch.setattr("kworker.cli.dead.access.TIMEOUT_S", 1.0)
    desk = Desk(Service(tmp_path, "127.0.0.1:1", ["orders"]), capsys)
    code, said = desk.types("orders:0:1")
    assert code == ExitCode.UNREACHABLE
    assert "no broker of 127.0.0.1:1 answers" in said
    assert desk.armed() == []
