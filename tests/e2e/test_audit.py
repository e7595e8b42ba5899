"""`kworker audit` as a person types it, over topics on a real broker."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from kworker.cli.main import run
from tests.support import kafka
from tests.support.service import Service

STAMP = int(time.time() * 1000) - 3_600_000
MINUTE_MS = 60_000


class Desk:
    """A service that does not run, its topics, and the command."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        [self.source] = service.topics
        self._capsys = capsys
        self._producer = Producer({"bootstrap.servers": service.bootstrap})

    def orders(self, count: int) -> None:
        """A minute apart; all are settled."""
        for number in range(count):
            self._producer.produce(
                self.source, b"{}", partition=0, timestamp=STAMP + number * MINUTE_MS
            )
        self._flush()
        kafka.commit(
            self.service.bootstrap, self.service.name, [TopicPartition(self.source, 0, count)]
        )

    def write(self, ending: str, offset: int, **headers: str) -> None:
        self._producer.produce(
            f"{self.service.name}.{ending}", b"{}", headers=self.headers(offset, **headers)
        )
        self._flush()

    def headers(self, offset: int, **more: str) -> list[tuple[str, bytes]]:
        source = f"{self.source}/0/{offset}/{STAMP + offset * MINUTE_MS}"
        further = [(f"kworker-{name}", text.encode()) for name, text in more.items()]
        return [("kworker-source", source.encode()), *further]

    def _flush(self) -> None:
        assert self._producer.flush(30) == 0

    def types(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, and what it says on stdout and stderr."""
        self._capsys.readouterr()
        code = run(["audit", *arguments, "--config", str(self.service.config)])
        return code, *self._capsys.readouterr()


@pytest.fixture
def desk(
    tmp_path: Path,
    bootstrap: str,
    topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    service = Service(tmp_path / "service", bootstrap, [topic("orders")])
    service.create_topics()
    return Desk(service, capsys)


def test_a_person_reads_what_became_of_each_record(desk: Desk) -> None:
    desk.orders(6)
    desk.write("results", 0)
    desk.write("results", 1)
    desk.write("dead", 2, attempt="3", reason="rejected")
    desk.write("retry.1s", 3, attempt="2", due="1")
    code, out, _ = desk.types()
    assert code == 0
    assert [line.strip() for line in out.splitlines()[1:]] == [
        "2  with a result (2 results)",
        "1  dead letters, open: kworker dead list",
        "0  dead letters, discarded",
        "0  dead letters, redriven to another topic",
        "1  waiting for a retry",
        "2  settled without a result",
        "0  not settled: in hand, or not taken yet",
        "no doubles and no holes: every record is accounted for",
    ]
    assert out.startswith(f"{desk.service.name}: 6 records of {desk.source}, as of ")


def test_doubles_and_holes_are_listed_and_the_exit_code_is_1(desk: Desk) -> None:
    desk.orders(3)
    for offset in (0, 1, 1):
        desk.write("results", offset)
    code, out, _ = desk.types("--expect-results")
    assert code == 1
    *_, double, hole, last = out.splitlines()
    assert double.startswith(f"double  {desk.source}:0:1  2 results: {desk.service.results}:")
    assert hole == f"hole    {desk.source}:0:2  settled without a result"
    assert last == "doubles: 1, holes: 1"
    code, out, _ = desk.types("--expect-results", "--limit", "1")
    assert "… and 1 more: --limit 2" in out


def test_a_range_of_time_is_audited(desk: Desk) -> None:
    desk.orders(6)
    for offset in range(6):
        desk.write("results", offset)
    first, last = STAMP + 2 * MINUTE_MS, STAMP + 4 * MINUTE_MS
    code, out, _ = desk.types("--from", str(first), "--to", str(last), "--json")
    report = json.loads(out)
    assert (code, report["records"], report["results"]) == (0, 2, 2)
    assert (report["from_ms"], report["to_ms"], report["topics"]) == (first, last, [desk.source])


def test_a_transaction_before_a_result_is_awaited(desk: Desk) -> None:
    """The result lies behind a record that no reader may see yet: it is not missing."""
    desk.orders(1)
    producer = Producer(
        {"bootstrap.servers": desk.service.bootstrap, "transactional.id": desk.service.name}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(desk.service.results, b"aborted", partition=0)
    assert producer.flush(30) == 0
    plain = Producer({"bootstrap.servers": desk.service.bootstrap})
    plain.produce(desk.service.results, b"{}", partition=0, headers=desk.headers(0))
    assert plain.flush(30) == 0
    with ThreadPoolExecutor() as pool:
        audited = pool.submit(
            desk.service.command, "audit", "--json", "--expect-results", "--no-tables"
        )
        with pytest.raises(TimeoutError):
            audited.result(5)
        producer.abort_transaction(30)
        report = json.loads(audited.result(60).stdout)
    assert (report["results"], report["holes"]) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--from", "yesterday"), 2, "the value of --from is wrong"),
        (("--from", "-1h", "--to", "-2h"), 2, "--to -2h must be later than --from -1h"),
    ],
)
def test_a_wrong_time_is_told_in_a_line(
    desk: Desk, arguments: tuple[str, ...], code: int, told: str
) -> None:
    found, _, error = desk.types(*arguments)
    assert (found, error.count("\n")) == (code, 1)
    assert told in error


def test_a_missing_topic_is_told_with_the_command(desk: Desk) -> None:
    kafka.delete_topic(desk.service.bootstrap, f"{desk.service.name}.requeue")
    code, _, error = desk.types()
    assert code == 78
    assert f"{desk.service.name}.requeue; create with: kworker topics create" in error
