"""`kworker dead` on a real broker: what a person repairs is repaired once."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kworker.cli.main import run
from kworker.clients.transactions import KafkaTransactor
from kworker.core import headers as names
from kworker.core.headers import Envelope
from kworker.core.outcome import Output
from kworker.dead_letters.dead_letter import DeadLetterIdentity
from kworker.dead_letters.resolutions import Resolution, resolution_record
from tests.support.dead import NOW, DeadWriter
from tests.support.kafka import delete_topic, messages
from tests.support.service import COMMAND, ROOT, Service
from tests.support.waiting import eventually

PARTITIONS = 2
README = (ROOT / "README.md").read_text()
CORPUS: Sequence[tuple[bytes | None, bytes | None]] = [
    (None, None),
    (b"", b""),
    (b"\xff\xfe", b"\x80\x81\xc3\x28"),
    ("schlüssel".encode(), b"[" * 5_000),
    (b"nan", b'{"a": NaN, "b": 1e999, "c": ' + b"9" * 5_000 + b"}"),
    (b"line\nbreak\r\n", "\u2028\u2029\ufeff\x00\x1b[2J".encode()),
]
HEADERS = [
    ("plain", b"1"),
    ("plain", b"2"),
    ("null", None),
    ("binary", b"\xff\x00"),
    ("kworker-source", b"mine/0/0/0"),
    ("kworker-in-mine", b"too"),
    (names.FOREIGN_TOPIC, b"the producer's own"),
]


class Desk:
    """A service with dead letters, and the commands of the person who repairs it."""

    def __init__(
        self, service: Service, writer: DeadWriter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.service = service
        self.writer = writer
        self._capsys = capsys
        self.code = 0
        self.errors = ""

    @property
    def dead(self) -> str:
        return f"{self.service.name}.dead"

    @property
    def requeue(self) -> str:
        return f"{self.service.name}.requeue"

    def write(self, count: int = 1, first: int = 0, **fields: Any) -> None:
        """Dead letters of the source offsets `first`, `first` + 1 …, over the partitions."""
        for number in range(first, first + count):
            partition = fields.get("partition", number % PARTITIONS)
            self.writer.write(number, **{**fields, "partition": partition})
        self.writer.flush()

    def types(self, *arguments: object) -> str:
        """What `kworker dead …` says on stdout; its exit code and stderr are kept."""
        self._capsys.readouterr()
        words = [*map(str, arguments), "--config", str(self.service.config)]
        self.code = run(["dead", *words])
        out, self.errors = self._capsys.readouterr()
        return out

    def does(self, *arguments: object) -> Any:
        """The same for one that succeeds, with `--json`."""
        said = self.types(*arguments, "--json")
        assert self.code == 0, self.errors
        return json.loads(said)

    def requeued(self) -> list[Any]:
        """What a reader of committed records finds in requeue, as the client gives it."""
        return messages(self.service.bootstrap, self.requeue)

    def numbers(self) -> list[int]:
        """The source offsets of those."""
        return [Envelope.open(each.headers()).source.offset for each in self.requeued()]

    def unresolved(self) -> int:
        return int(self.does("list")["count"])

    def begins(self, *arguments: object, config: Path | None = None) -> "subprocess.Popen[str]":
        """A command in a process of its own."""
        words = [*map(str, arguments), "--config", str(config or self.service.config)]
        return subprocess.Popen(
            [*COMMAND, "dead", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


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
    return Desk(service, DeadWriter(bootstrap, f"{service.name}.dead"), capsys)


@pytest.fixture
def ending() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are put here end with the test."""
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for process in begun:
        process.kill()
        process.communicate()


# What is typed.


def test_the_readmes_export_and_import_work_as_they_are_written(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`export letters.jsonl` was taken for a position."""
    monkeypatch.chdir(tmp_path)
    desk.write(2)
    [line] = [each for each in README.splitlines() if each.startswith("kworker dead export")]
    commands = [part.split("#")[0].split()[2:] for part in line.split("then: ")]
    for command in commands:
        desk.types(*command)
        assert desk.code == 0, (command, desk.errors)
    assert [command[0] for command in commands] == ["export", "import"]
    assert sorted(desk.numbers()) == [0, 1]


@pytest.mark.parametrize(
    "verb", [["list"], ["redrive"], ["redrive", "--dry-run"], ["discard"], ["export"]]
)
def test_a_selected_name_that_no_dead_letter_has_is_told(desk: Desk, verb: list[str]) -> None:
    """A slip looked as if there were none; to find none of what there was is no failure."""
    desk.write(1, reason="exhausted", exception="a.Timeout")
    desk.types(*verb, "--select", "reason=exausted,exception=Timeot")
    assert desk.code == 0
    assert desk.errors.splitlines() == [
        'kworker: --select: no dead letter has the reason "exausted"; there are: exhausted',
        'kworker: --select: no dead letter has the exception "Timeot"; there are: a.Timeout',
    ]
    desk.types(*verb, "--select", "reason=exhausted,exception=Timeout,key=nobody")
    assert (desk.code, desk.errors) == (0, "")


# What there is.


def test_a_list_groups_dead_letters_the_largest_first(desk: Desk) -> None:
    """Who comes to repair wants to know what to repair first, and how long it has been so."""
    desk.write(3, reason="exhausted", exception="a.Timeout", failed_at=NOW)
    desk.write(2, first=10, reason="rejected", exception="b.Reject", failed_at=NOW - 5_000)
    desk.write(1, first=20, reason="rejected", exception="b.Reject", failed_at=NOW, message="last")
    desk.write(1, first=30, reason="rejected", exception="c.Reject")
    told = desk.does("list")
    groups = [(each["count"], each["reason"], each["exception"]) for each in told["groups"]]
    assert groups == [
        (3, "exhausted", "a.Timeout"),
        (3, "rejected", "b.Reject"),
        (1, "rejected", "c.Reject"),
    ]
    second = told["groups"][1]
    assert (second["oldest_ms"], second["newest_ms"]) == (NOW - 5_000, NOW)
    assert second["message"] == "last"
    shown = desk.types("list")
    assert "a.Timeout" in shown
    assert shown.endswith(f"7 dead letters in {desk.dead}\n")


def test_resolved_dead_letters_are_hidden_except_with_all(desk: Desk) -> None:
    """Else the next person would repair it again."""
    desk.write(4)
    assert desk.does("discard", "0:0")["done"] == 1
    assert desk.does("list")["count"] == 3
    assert desk.does("list")["hidden"] == 1
    [group] = desk.does("list", "--all")["groups"]
    assert (group["count"], group["resolved"]) == (4, 1)
    resolution = desk.does("show", "0:0")["resolved"]
    assert resolution["how"] == "discarded"
    assert "@" in resolution["by"]
    assert "discarded by" in desk.types("show", "0:0")


def test_a_shown_dead_letter_is_safe_for_a_terminal(desk: Desk) -> None:
    """A person reads it, and a terminal must survive it."""
    own = [("trace", b"abc"), ("raw", b"\xff\x00"), ("none", None)]
    desk.write(
        key=b"\x00\xff",
        value=b'{"order": 17}',
        own=own,
        stack="Traceback:\n  \x1b[2Jboom",
        redriven=2,
    )
    shown = desk.types("show", "0:0")
    assert desk.code == 0
    for line in (
        "source      orders:0:0, written 2023-11-14 22:13:20Z",
        "resolved    no",
        "attempt     4",
        "reason      exhausted",
        "exception   requests.exceptions.Timeout",
        "message     no answer",
        "redriven    2",
        "key         hex 00ff",
        "  trace: abc",
        "  raw: hex ff00",
        "  none: null",
        '  "order": 17',
        r"  \x1b[2Jboom",
    ):
        assert line in shown.splitlines()
    assert "\x1b" not in shown


def test_the_last_dead_letter_of_a_source_position_is_found(desk: Desk) -> None:
    """A log line names the source; the same record may have come here more than once."""
    desk.write(1, first=7, partition=1, failed_at=NOW)
    desk.write(1, first=7, partition=1, failed_at=NOW + 1, redriven=1)
    shown = desk.does("show", "orders:1:7")
    assert shown["redriven"] == 1
    assert shown["others"] == ["1:0"]
    desk.types("show", "orders:1:8")
    assert desk.code == 1
    assert (
        desk.errors
        == f"kworker: {desk.dead}: no dead letter at orders:1:8; see kworker dead list\n"
    )


def test_a_foreign_record_is_left_and_may_be_discarded(desk: Desk) -> None:
    """Somebody may write into any topic."""
    desk.write(1)
    desk.writer.write_raw([("kworker-source", b"nonsense")])
    desk.writer.flush()
    assert {group["reason"] for group in desk.does("list")["groups"]} == {"exhausted", "foreign"}
    assert "hex" not in desk.types("show", "0:1")
    desk.types("redrive")
    assert desk.code == 1
    assert "1 left: not written by kworker" in desk.errors
    assert desk.numbers() == [0]
    assert desk.does("discard", "0:1")["done"] == 1
    assert desk.unresolved() == 0


# Redrive.


def test_a_redriven_record_is_a_first_attempt_of_its_source(desk: Desk) -> None:
    """Same bytes, same source, beside the partition of its source, and counted."""
    desk.write(1, first=8, partition=1, source="orders/3/8/1700000000000", own=HEADERS, redriven=1)
    assert desk.does("redrive")["done"] == 1
    [record] = desk.requeued()
    assert record.partition() == 3 % PARTITIONS
    assert (record.key(), record.value()) == (b"k", b"v")
    envelope = Envelope.open(record.headers())
    assert str(envelope.source) == "orders/3/8/1700000000000"
    assert (envelope.attempt, envelope.redriven, envelope.due_ms) == (1, 2, 0)
    assert envelope.restored == HEADERS
    assert names.REASON not in dict(record.headers())


def test_a_repeated_redrive_changes_nothing(desk: Desk) -> None:
    """Whoever is not sure whether it worked types it again."""
    desk.write(50)
    assert desk.does("redrive", "--select", "reason=exhausted")["done"] == 50
    again = desk.does("redrive")
    assert (again["done"], again["before"]) == (0, 50)
    assert desk.does("discard", "--everything")["done"] == 0
    assert sorted(desk.numbers()) == list(range(50))
    assert desk.does("list")["count"] == 0


def test_only_what_is_selected_is_redriven(desk: Desk) -> None:
    """All conditions hold; an exception goes by its bare name, too."""
    desk.write(1, first=0, exception="http.Timeout", key=b"alice", failed_at=NOW)
    desk.write(1, first=1, exception="http.Timeout", key=b"bob", failed_at=NOW)
    desk.write(1, first=2, exception="http.Timeout", key=b"alice", failed_at=NOW - 1)
    desk.write(1, first=3, exception="other.Error", key=b"alice", failed_at=NOW)
    conditions = f"reason=exhausted,exception=Timeout,since={NOW},key=alice"
    assert desk.does("redrive", "--select", conditions)["done"] == 1
    assert desk.numbers() == [0]
    assert desk.does("redrive", "1:0", "orders:0:2")["done"] == 2
    assert sorted(desk.numbers()) == [0, 1, 2]


def test_a_dry_run_writes_nothing_and_a_limit_is_kept(desk: Desk) -> None:
    """The first step of a careful person, and the second."""
    desk.write(20)
    would = desk.does("redrive", "--dry-run", "--limit", 5)
    assert (would["done"], would["groups"][0]["count"]) == (5, 5)
    assert "20 would be redriven to " in desk.types("redrive", "--dry-run")
    assert desk.does("discard", "--everything", "--dry-run")["done"] == 20
    assert desk.requeued() == []
    assert desk.unresolved() == 20
    assert desk.does("redrive", "--limit", 5)["done"] == 5
    assert desk.unresolved() == 15


@pytest.mark.parametrize("where", ["requeue", "elsewhere", "edited"])
def test_every_record_goes_on_byte_for_byte(
    desk: Desk, topic: Callable[..., str], where: str, tmp_path: Path
) -> None:
    """Also what no text or JSON can hold, and more headers than anybody has."""
    many = [(f"h{number % 7}", b"%d" % number) for number in range(5_000)]
    for number, (key, value) in enumerate(CORPUS):
        own = many if number == 0 else HEADERS
        desk.write(1, first=number, partition=0, key=key, value=value, own=own)
    target = topic("elsewhere") if where == "elsewhere" else desk.requeue
    if where == "edited":
        desk.types("export", "--output", tmp_path / "lines")
        assert desk.does("import", tmp_path / "lines")["done"] == len(CORPUS)
    else:
        options = ["--to", target] if where == "elsewhere" else []
        assert desk.does("redrive", *options)["done"] == len(CORPUS)
    found = messages(desk.service.bootstrap, target)
    assert sorted((each.key(), each.value()) for each in found if each.key()) == sorted(
        (key, value) for key, value in CORPUS if key
    )
    for each in found:
        own = many if each.key() is None else HEADERS
        headers = each.headers()
        restored = headers if where == "elsewhere" else Envelope.open(headers).restored
        assert restored == own


def test_elsewhere_is_a_topic_that_is_there_and_not_kworkers_own(desk: Desk) -> None:
    """In its own a record without its headers would be forged."""
    desk.types("redrive", "--to", "nowhere-at-all")
    assert desk.code == 2
    assert "no such topic" in desk.errors
    for own in (desk.dead, desk.requeue):
        desk.types("redrive", "--to", own)
        assert desk.code == 2
        assert "kworker writes this topic itself" in desk.errors


def test_a_record_too_large_for_its_target_is_left_and_told(
    desk: Desk, topic: Callable[..., str]
) -> None:
    """One such record would fail the transaction of all that go with it."""
    small = topic("small", max_message_bytes="5000")
    desk.write(3)
    desk.write(1, first=100, value=b"x" * 6_000)
    desk.types("redrive", "--to", small)
    assert desk.code == 1
    assert "kworker: 1 left: too large for the topic\n" in desk.errors
    assert len(messages(desk.service.bootstrap, small)) == 3
    assert desk.unresolved() == 1


def test_a_record_of_the_full_size_fits_into_requeue(desk: Desk) -> None:
    """As a dead letter it had more headers."""
    desk.write(1, value=b"x" * 1_048_000, stack="s" * 8_000)
    assert desk.does("redrive")["done"] == 1


FIXED_LATER = """
from pathlib import Path

def handle(message):
    if not Path("fixed").exists():
        raise ValueError("not yet")
    return {"headers": [name for name, _ in message.headers], "attempt": message.attempt}
"""


def test_a_running_service_processes_redriven_records(desk: Desk) -> None:
    """The whole way: it fails, is redriven too early, dies again, and is done after the fix."""
    service = desk.service
    service.write_handlers(FIXED_LATER)
    with service.config.open("a") as config:
        config.write("\n[retry]\ndelays = []\n[workers]\nprocesses = 1\n")
    writer = Producer({"bootstrap.servers": service.bootstrap})
    writer.produce(service.topics[0], b"v", b"k", 1, headers=HEADERS)
    assert writer.flush(30) == 0
    service.serve()
    try:
        eventually(lambda: desk.does("list")["count"] == 1, timeout_s=60, what="it is dead")
        assert desk.does("redrive")["done"] == 1
        again = {"count": 1, "hidden": 1}
        eventually(lambda: again.items() <= desk.does("list").items(), what="it is dead again")
        assert desk.does("show", f"{service.topics[0]}:1:0")["redriven"] == 1
        (service.folder / "fixed").touch()
        assert desk.does("redrive")["done"] == 1
        [result] = eventually(lambda: messages(service.bootstrap, service.results), what="a result")
    finally:
        service.end()
    own = [name for name, _ in HEADERS]
    assert json.loads(result.value()) == {"headers": own, "attempt": 1}
    assert desk.unresolved() == 0


# Ended in the middle.


def test_a_killed_redrive_requeues_each_record_once(
    desk: Desk, ending: list["subprocess.Popen[str]"]
) -> None:
    """Whatever the moment: the next one knows, by the state topic, what was requeued."""
    desk.write(400)
    for goal in (1, 41, 81):
        process = desk.begins("redrive", "--rate", "40/s")
        ending.append(process)
        eventually(lambda goal=goal: len(desk.requeued()) >= goal, what="it is under way")
        process.kill()
        process.wait()
    before = len(desk.requeued())
    assert 0 < before < 400
    assert desk.does("redrive")["done"] == 400 - before
    assert sorted(desk.numbers()) == list(range(400))


def test_a_redrive_killed_in_a_transaction_shows_nothing_of_it(
    desk: Desk,
) -> None:
    """The next one aborts what was left open, instead of waiting for its time-out."""
    desk.write(2)
    name = desk.service.name
    dead_one = KafkaTransactor(
        {"bootstrap.servers": desk.service.bootstrap}, f"{name}.redrive", timeout_s=30
    )
    dead_one.open()
    dead_one.begin()
    [letter] = [
        each for each in messages(desk.service.bootstrap, desk.dead) if not each.partition()
    ]
    identity = (0, letter.offset(), letter.timestamp()[1])
    dead_one.produce(Output(desk.requeue, None, b"never", []))

    note = Resolution("redriven", "somebody@gone", NOW)
    dead_one.produce(
        resolution_record(f"{name}.dead.state", desk.dead, DeadLetterIdentity(*identity), note)
    )
    dead_one._producer.flush(30)
    assert desk.does("redrive")["done"] == 2
    assert sorted(desk.numbers()) == [0, 1]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_redrive_says_how_to_go_on(
    desk: Desk, ending: list["subprocess.Popen[str]"], signum: signal.Signals
) -> None:
    """What it says it has done is what was done."""
    desk.write(200)
    process = desk.begins("redrive", "--rate", "10/s")
    ending.append(process)
    eventually(desk.requeued, what="it is under way")
    process.send_signal(signum)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "kworker: interrupted; run the same command again to continue\n"
    assert out == f"{len(desk.requeued())} redriven to {desk.requeue}\n"
    assert desk.does("redrive")["done"] > 0
    assert sorted(desk.numbers()) == list(range(200))


def test_a_redrive_keeps_its_rate(desk: Desk, ending: list["subprocess.Popen[str]"]) -> None:
    """What failed for overload must not come back at once."""
    desk.write(30)
    assert desk.does("redrive", "--rate", "10/s")["done"] == 30
    stamps = sorted(each.timestamp()[1] for each in desk.requeued())
    assert stamps[-1] - stamps[0] >= 1_500  # 3 batches of a second's worth


def test_a_second_redrive_on_the_host_is_refused(
    desk: Desk, ending: list["subprocess.Popen[str]"]
) -> None:
    """Otherwise the two would fence each other."""
    desk.write(150)
    first = desk.begins("redrive", "--rate", "5/s")
    ending.append(first)
    eventually(desk.requeued, what="it is under way")
    for verb in (["redrive"], ["discard", "--everything"]):
        desk.types(*verb)
        assert desk.code == 73
        assert desk.errors.startswith("kworker: another command for the dead letters of ")
    assert desk.does("list")["count"] > 0  # reading is always possible


def test_a_second_redrive_elsewhere_fences_the_first(
    desk: Desk, ending: list["subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """A lock does not reach to other hosts; the fence does, and nothing is done twice."""
    desk.write(150)
    first = desk.begins("redrive", "--rate", "5/s")
    ending.append(first)
    eventually(desk.requeued, what="it is under way")
    copy = shutil.copy(desk.service.config, tmp_path / "elsewhere.toml")
    second = desk.begins("redrive", config=Path(copy))
    ending.append(second)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 73
    assert errors.startswith(
        f"kworker: another command has taken over the dead letters of {desk.dead}"
    )
    assert sorted(desk.numbers()) == list(range(150))


# Discard, export, import.


def test_a_discard_resolves_only_its_selection(desk: Desk) -> None:
    """It is the one verb that gives up records."""
    desk.write(6)
    desk.write(2, first=10, reason="rejected")
    desk.types("discard")
    assert desk.code == 2
    assert desk.does("discard", "--select", "reason=rejected")["done"] == 2
    assert desk.does("discard", "--everything")["done"] == 6
    assert desk.requeued() == []
    assert desk.unresolved() == 0
    assert len(messages(desk.service.bootstrap, desk.dead)) == 8


def exported(desk: Desk, file: Path, *arguments: object) -> list[Any]:
    desk.types("export", "-o", file, *arguments)
    assert desk.code == 0, desk.errors
    return [json.loads(line) for line in file.read_text().splitlines()]


def save(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_edited_record_runs_and_resolves_its_dead_letter(desk: Desk, tmp_path: Path) -> None:
    """Some records are themselves what is to be fixed."""
    file = tmp_path / "lines"
    desk.write(3, own=HEADERS)
    rows = exported(desk, file)
    assert file.stat().st_mode & 0o077 == 0
    assert rows == [json.loads(line) for line in desk.types("export").splitlines()]
    rows[0] |= {"key": None, "value": {"base64": "/w=="}, "headers": [["kworker-due", "mine"]]}
    save(file, rows[:2])
    assert desk.does("import", file, "--dry-run")["done"] == 2
    assert desk.unresolved() == 3
    assert desk.does("import", file)["done"] == 2
    found = {Envelope.open(each.headers()).source.offset: each for each in desk.requeued()}
    edited = found[rows[0]["source"]["offset"]]
    assert (edited.key(), edited.value()) == (None, b"\xff")
    assert Envelope.open(edited.headers()).restored == [("kworker-due", b"mine")]
    assert Envelope.open(edited.headers()).redriven == 1
    assert desk.does("import", file)["before"] == 2
    assert desk.unresolved() == 1
    assert exported(desk, file) == rows[2:]
    assert len(exported(desk, file, "--all")) == 3


def test_a_file_with_mistakes_is_told_by_line_and_writes_nothing(
    desk: Desk, tmp_path: Path
) -> None:
    """Half an import would be hard to find again."""
    file = tmp_path / "lines"
    desk.write(5, partition=0)
    rows = exported(desk, file)
    rows[1]["value"] = 17
    rows[2]["position"]["timestamp"] += 1
    rows[3] = rows[0]
    rows[4]["value"] = "x" * 2_000_000
    save(file, rows)
    desk.types("import", file)
    assert desk.code == 1
    told = desk.errors.splitlines()
    assert [line.split(": ")[1].rsplit(":", 1)[1] for line in told[:4]] == ["2", "3", "4", "5"]
    assert "value: expected text" in told[0]
    assert "leave them as exported" in told[1]
    assert "the same dead letter as line 1" in told[2]
    assert "too large" in told[3]
    assert told[4].startswith("kworker: nothing was written")
    assert desk.unresolved() == 5
    desk.types("import", tmp_path / "none")
    assert desk.code == 2
    assert "No such file" in desk.errors


# What is not there.


def test_a_topic_made_again_does_not_inherit_resolutions(desk: Desk) -> None:
    """Its records have the positions of others that were resolved."""
    desk.write(2)
    assert desk.does("redrive")["done"] == 2
    delete_topic(desk.service.bootstrap, desk.dead)
    desk.types("list")
    assert desk.code == 78
    assert desk.errors == (
        f"kworker: topics missing on the brokers: {desk.dead}; create with: kworker topics create"
        f" --config {desk.service.config}\n"
    )
    desk.service.create_topics()
    desk.write(2)
    assert desk.unresolved() == 2


def test_a_position_outside_of_the_topic_is_told(desk: Desk) -> None:
    """A typing mistake, and nothing of the rest is done either."""
    desk.write(2)
    desk.types("redrive", "0:0", "0:7")
    assert desk.code == 2
    assert desk.errors == f"kworker: {desk.dead} has no record 0:7: its partition 0 holds 0 to 0\n"
    assert desk.requeued() == []
