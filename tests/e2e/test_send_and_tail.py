"""`kworker send` and `kworker tail` on a real broker: records a person writes and reads."""

import base64
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.e2e.conftest import Kworker
from tests.support import kafka
from tests.support.waiting import eventually

HOSTILE = "\x1b[31mred\x07"
BYTES_MAX = 2_000


class Place(NamedTuple):
    """A service's file and its source topic."""

    file: Path
    topic: str
    bootstrap: str

    def records(self) -> list[Any]:
        return kafka.messages(self.bootstrap, self.topic)


@pytest.fixture
def place(tmp_path: Path, bootstrap: str) -> Place:
    name = f"send-{uuid.uuid4().hex[:8]}"
    topic = kafka.create_topic(bootstrap, name, 3, **{"max.message.bytes": str(BYTES_MAX)})
    file = tmp_path / "kworker.toml"
    file.write_text(
        f'name = "{name}-service"\nhandler = "m:f"\n[source]\ntopics = ["{topic}"]\n'
        f'[kafka]\n"bootstrap.servers" = "{bootstrap}"\n'
    )
    return Place(file, topic, bootstrap)


@pytest.fixture
def run(kworker: Kworker, place: Place) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: kworker(*arguments, "--config", place.file)


def test_a_sent_record_is_printed_where_it_landed(run: Callable[..., Any], place: Place) -> None:
    sent = run("send", '{"a": 1}', "--key", "k", "--header", "trace=t=1", "--partition", "2")
    assert (sent.returncode, sent.stdout) == (0, f"{place.topic}:2:0\n"), sent.stderr
    [record] = place.records()
    assert (record.key(), record.value()) == (b"k", b'{"a": 1}')
    assert record.headers() == [("trace", b"t=1")]
    shown = run("tail", "source").stdout.splitlines()
    assert shown[0].startswith(f"{place.topic}:2:0  ")
    assert shown[0].endswith("key k")
    assert shown[1:] == ["    trace: t=1", '  {"a": 1}']


def test_lines_of_a_file_are_values_with_keys_from_a_field(
    run: Callable[..., Any], place: Place, tmp_path: Path
) -> None:
    lines = [{"n": n, "order": {"id": f"o{n % 5}"}} for n in range(50)]
    file = tmp_path / "orders.jsonl"
    file.write_text("\r\n".join(map(json.dumps, lines)) + "\n\n")
    sent = run("send", "--file", file, "--key-field", "order.id", "--rate", "500/s", "--json")
    assert sent.returncode == 0, sent.stderr
    said = json.loads(sent.stdout)
    assert (said["sent"], said["not_sent"]) == (50, 0)
    assert sum(row["count"] for row in said["partitions"]) == 50
    found = {json.loads(record.value())["n"]: record.key() for record in place.records()}
    assert found == {n: f"o{n % 5}".encode() for n in range(50)}


def test_what_tail_prints_as_json_can_be_sent_again(
    run: Callable[..., Any], place: Place, command: list[str]
) -> None:
    """Bytes that are no text, nulls and repeated headers come back as they were."""
    producer = Producer({"bootstrap.servers": place.bootstrap})
    headers = [("h", b"\xff"), ("h", None), ("", b"")]
    for key, value in ((b"\xff\x00", b"text"), (None, None), (b"", b""), (b"k", "é\n".encode())):
        producer.produce(place.topic, value, key, partition=1, headers=headers)
    assert producer.flush(30) == 0
    printed = run("tail", place.topic, "--from", "earliest", "--json").stdout
    again = [*command, "send", "--records", "-", "--partition", "0", "--config", str(place.file)]
    sent = subprocess.run(again, input=printed, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stderr
    found: dict[int, list[Any]] = {0: [], 1: []}
    for record in place.records():
        found[record.partition()].append((record.key(), record.value(), record.headers()))
    assert found[0] == found[1]
    assert len(found[1]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected one of VALUE..., --file, --records, --null"),
        (["a", "--null"], "expected one of"),
        (["a", "--key", "k", "--key-field", "f"], "exclude each other"),
        (["a", "--key-field", "f"], "value:1: the line is not JSON"),
        (['{"f": {}}', "--key-field", "f"], "expected text or a whole number"),
        (['{"f": 1}', "--key-field", "f.g"], "the value has no field f.g"),
        (["a", "--header", "nothing"], "expected NAME=VALUE"),
        (["a", "--header", "kworker-attempt=7"], "names with the prefix kworker-"),
        (["a", "--partition", "3"], "has the partitions 0 to 2"),
        (["a", "--rate", "fast"], "expected records a second"),
        (["--file", "/nowhere/at/all"], "No such file"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_sent(
    run: Callable[..., Any], place: Place, arguments: list[str], words: str
) -> None:
    refused = run("send", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert place.records() == []


@pytest.mark.parametrize("role", ["results", "requeue", "dead"])
def test_topics_that_kworker_writes_are_refused(
    run: Callable[..., Any], place: Place, role: str
) -> None:
    refused = run("send", "a", "--topic", f"{place.topic}-service.{role}")
    assert refused.returncode == 2
    assert "kworker itself writes" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "bad"),
    [
        (["--key-field", "k", "--file"], '{"value"'),
        (["--key-field", "k", "--file"], '{"k": null}'),
        (["--records"], '{"value"'),
        (["--records"], '{"k": 1}'),
        (["--records"], '{"key": "k"}'),  # no value: a tombstone has null
        (["--records"], '{"value": "v", "headers": [["a\\u0000b", "c"]]}'),
        (["--records"], '{"value": {"base64": "?"}}'),
    ],
)
def test_a_file_with_a_bad_line_is_not_sent_at_all(
    run: Callable[..., Any], place: Place, tmp_path: Path, arguments: list[str], bad: str
) -> None:
    file = tmp_path / "lines"
    good = '{"value": "a"}' if arguments == ["--records"] else '{"k": 1}'
    file.write_text(f"{good}\n\n{bad}\n")
    refused = run("send", *arguments, file)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{file}:3: " in refused.stderr
    assert place.records() == []


def test_arguments_are_sent_byte_for_byte(run: Callable[..., Any], place: Place) -> None:
    odd = os.fsdecode(b"\xff")
    sent = run("send", "", odd, "--key", odd, "--header", f"h={odd}", "--partition", "0")
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout == f"{place.topic}:0:0 to 1\n"
    assert [record.value() for record in place.records()] == [b"", b"\xff"]
    assert {record.key() for record in place.records()} == {b"\xff"}
    assert place.records()[0].headers() == [("h", b"\xff")]
    assert len(run("tail", "source", "--where", f"key={odd}").stdout.splitlines()) == 6


def test_a_record_over_the_topics_limit_takes_no_other_along(
    run: Callable[..., Any], place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    incompressible = os.urandom(BYTES_MAX).hex()
    file.write_text(f"first\n{incompressible}\nlast\n")
    sent = run("send", "--file", file, "--partition", "0")
    assert sent.returncode == 1
    assert "record 2: " in sent.stderr
    assert "1 records are not in" in sent.stderr
    assert [record.value() for record in place.records()] == [b"first", b"last"]


def test_tail_finds_the_last_records_that_meet_conditions(
    run: Callable[..., Any], place: Place
) -> None:
    """Transactions leave offsets without a record: it reads further back."""
    producer = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": place.topic})
    producer.init_transactions(30)
    for n in range(40):
        producer.begin_transaction()
        headers = [("colour", b"red" if n % 10 == 0 else b"blue")]
        producer.produce(place.topic, f"v{n}", f"k{n % 4}", partition=n % 2, headers=headers)
        if n == 39:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)

    def values(*arguments: str) -> list[str]:
        lines = run("tail", "source", "--json", *arguments).stdout.splitlines()
        return [json.loads(line)["value"] for line in lines]

    assert values("--last", "3") == ["v36", "v37", "v38"]
    assert values() == [f"v{n}" for n in range(29, 39)]
    assert values("--where", "colour=red", "-n", "2") == ["v20", "v30"]
    assert values("--where", "key=k1", "--where", "value=3", "-n", "2") == ["v33", "v37"]
    assert values("--partition", "1", "-n", "1") == ["v37"]
    assert values("--from", "latest") == []
    assert len(values("--from", "-1h")) == 39
    assert len(values("--from", "earliest")) == 39


def test_tail_escapes_controls_of_a_terminal(run: Callable[..., Any]) -> None:
    assert run("send", HOSTILE, "--key", HOSTILE, "--header", f"h={HOSTILE}").returncode == 0
    shown = run("tail", "source").stdout
    assert shown.count(HOSTILE.encode().hex()) == 3
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing-of-that-name"], "no such topic"),
        (["results"], "no such topic"),  # nobody has created it
        (["source", "--last", "3", "--from", "earliest"], "exclude each other"),
        (["source", "--from", "yesterday"], '--from: "yesterday" is not a position'),
        (["source", "--where", "key"], "expected key=TEXT"),
        (["source", "--partition", "3"], "has the partitions 0 to 2"),
    ],
)
def test_tail_names_what_it_cannot_read(
    run: Callable[..., Any], arguments: list[str], words: str
) -> None:
    refused = run("tail", *arguments)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_tail_follows_until_it_is_interrupted(
    run: Callable[..., Any], place: Place, command: list[str], tmp_path: Path
) -> None:
    assert run("send", "before").returncode == 0
    out = tmp_path / "out"
    follow = [*command, "tail", "source", "--follow", "--json", "--config", str(place.file)]
    with out.open("w") as file:
        process = subprocess.Popen(follow, stdout=file)
    try:
        eventually(lambda: "before" in out.read_text())
        assert run("send", "after").returncode == 0
        eventually(lambda: "after" in out.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    lines = out.read_text().splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["before", "after"]


def test_an_interrupted_send_says_what_is_in_the_topic(
    place: Place, command: list[str], tmp_path: Path
) -> None:
    """The records that were acknowledged are those that it counts."""
    file = tmp_path / "lines"
    file.write_text("".join(f"v{n}\n" for n in range(1000)))
    send = [*command, "send", "--file", str(file), "--rate", "50/s", "--json"]
    process = subprocess.Popen(
        [*send, "--config", str(place.file)], stdout=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: len(place.records()) > 20)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert json.loads(said)["sent"] == len(place.records()) < 1000


def test_binary_values_are_shown_as_hex(run: Callable[..., Any], place: Place) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap})
    producer.produce(place.topic, b"\xff\x00", b"k")
    assert producer.flush(30) == 0
    assert "  hex ff00" in run("tail", "source").stdout.splitlines()
    value = json.loads(run("tail", "source", "--json").stdout)["value"]
    assert base64.b64decode(value["base64"]) == b"\xff\x00"
