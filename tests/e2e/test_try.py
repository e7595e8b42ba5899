"""`kworker try`: one run of the handler by hand, on records of a real broker and of files."""

import json
import re
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from kworker.core.headers import FOREIGN_EXCEPTION, FOREIGN_TOPIC
from tests.e2e.conftest import Kworker
from tests.support import kafka

HANDLER = """
from kworker import Reject, Result, Retry, Snooze, Unavailable

ERRORS = {
    "error": ValueError("no \\x1b[31m"),
    "retry": Retry("busy", after="30s"),
    "snooze": Snooze("5s"),
    "unavailable": Unavailable("billing"),
    "reject": Reject("bad"),
}


def handle(message):
    order = message.json()
    if order in ERRORS:
        raise ERRORS[order]
    if order == "several":
        return [Result({"n": 1}, key="own", headers={"h": "x"}, table="t"), None, {"n": 2}]
    if order == "headers":
        return {"headers": [name for name, _ in message.headers], "attempt": message.attempt}
    if order == "nan":
        return {"total": float("nan")}
    return None if order is None else {"seen": order, "attempt": message.attempt}


async def handle_async(message):
    return handle(message)
"""


class Place(NamedTuple):
    """A service's file, and its source topic."""

    file: Path
    topic: str
    bootstrap: str


@pytest.fixture
def place(tmp_path: Path, bootstrap: str) -> Place:
    topic = kafka.create_topic(bootstrap, f"try-{uuid.uuid4().hex[:8]}", 2)
    file = tmp_path / "kworker.toml"
    file.write_text(
        f'name = "{topic}-service"\nhandler = "handlers:handle"\n'
        f'[source]\ntopics = ["{topic}"]\n[kafka]\n"bootstrap.servers" = "{bootstrap}"\n'
        '[retry]\ndelays = ["10s", "1m"]\n'
    )
    (tmp_path / "handlers.py").write_text(HANDLER)
    return Place(file, topic, bootstrap)


@pytest.fixture
def run(kworker: Kworker, place: Place) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: kworker("try", *arguments, "--config", place.file)


@pytest.fixture
def value(tmp_path: Path) -> Callable[[object], Path]:
    """Writes a value to a file."""

    def write(content: object) -> Path:
        file = tmp_path / "value.json"
        file.write_text(json.dumps(content))
        return file

    return write


def test_a_run_of_a_file_shows_all_that_would_be_published(
    run: Callable[..., Any], place: Place, value: Callable[[object], Path]
) -> None:
    shown = run(value("several"), "--key", "k", "--json")
    assert shown.returncode == 0, shown.stderr
    trial = json.loads(shown.stdout)
    assert (trial["attempt"], trial["attempts"], trial["failure"]) == (1, 3, None)
    first, second = trial["outputs"]
    assert (first["key"], second["key"]) == ("own", "k")
    assert (first["value"], second["value"]) == ('{"n":1}', '{"n":2}')
    assert ["kworker-table", "t"] in first["headers"]
    assert ["h", "x"] in first["headers"]
    assert ["kworker-index", "1"] in second["headers"]
    text = run(value("several")).stdout.splitlines()
    assert text[0] == f"{place.topic}:0:0, attempt 1 of 3"
    assert "2 results; nothing was written" in text[-1]


@pytest.mark.parametrize(
    ("order", "attempt", "following"),
    [
        ("error", 1, "waits 10s in {name}.retry.10s, then attempt 2 of 3"),
        ("error", 2, "waits 1m in {name}.retry.1m, then attempt 3 of 3"),
        ("error", 3, "a dead letter in {name}.dead, reason exhausted"),
        ("retry", 1, "waits 30s in {name}.retry.10s, then attempt 2 of 3"),
        ("snooze", 2, "waits 5s in {name}.retry.10s, then attempt 2 of 3"),
        ("unavailable", 1, "all records wait until billing is available"),
        ("reject", 1, "a dead letter in {name}.dead, reason rejected"),
        ("nan", 1, "a dead letter in {name}.dead, reason unpublishable"),
    ],
)
def test_a_raising_handler_is_shown_with_what_follows(
    run: Callable[..., Any],
    place: Place,
    value: Callable[[object], Path],
    order: str,
    attempt: int,
    following: str,
) -> None:
    shown = run(value(order), "--attempt", attempt)
    assert shown.returncode == 1
    assert following.format(name=f"{place.topic}-service") in shown.stdout.splitlines()[-1]
    assert "\x1b" not in shown.stdout
    # The stack begins in the user's code.
    assert shown.stdout.count("File ") == shown.stdout.count('handlers.py", line')


def test_an_async_handler_runs_and_raises_like_another(
    run: Callable[..., Any], place: Place, value: Callable[[object], Path]
) -> None:
    place.file.write_text(
        place.file.read_text().replace("handlers:handle", "handlers:handle_async")
    )
    assert json.loads(run(value("seen"), "--json").stdout)["outputs"][0]["value"] == (
        '{"seen":"seen","attempt":1}'
    )
    raised = run(value("reject"))
    assert raised.returncode == 1
    assert "reason rejected" in raised.stdout.splitlines()[-1]
    assert raised.stdout.count("File ") == raised.stdout.count('handlers.py", line')


def test_a_record_of_kafka_runs_with_its_own_position(
    run: Callable[..., Any], place: Place
) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap})
    for number in range(3):
        producer.produce(place.topic, json.dumps(number), "k", partition=1)
    assert producer.flush(30) == 0
    before = kafka.ends(place.bootstrap, place.topic)
    trial = json.loads(run(f"{place.topic}:1:2", "--json").stdout)
    [output] = trial["outputs"]
    assert json.loads(output["value"]) == {"seen": 2, "attempt": 1}
    assert output["headers"][0][1].startswith(f"{place.topic}/1/2/")
    assert kafka.ends(place.bootstrap, place.topic) == before
    assert kafka.committed(place.bootstrap, f"{place.topic}-service") == {}


def test_a_dead_letter_runs_as_the_record_that_it_was(
    run: Callable[..., Any], place: Place
) -> None:
    dead = kafka.create_topic(place.bootstrap, f"{place.topic}-service.dead", 1)
    producer = Producer({"bootstrap.servers": place.bootstrap})
    headers = [
        ("kworker-source", f"{place.topic}/1/41/1700000000000"),
        ("kworker-attempt", "3"),
        ("kworker-reason", "exhausted"),
        ("own", "o"),
        (FOREIGN_TOPIC, place.topic),  # kworker adds these two for other tools
        (FOREIGN_EXCEPTION, "ValueError"),
    ]
    producer.produce(dead, b'"headers"', "k", headers=headers)
    producer.produce(dead, b'"foreign"', "k")
    assert producer.flush(30) == 0
    trial = json.loads(run(f"{dead}:0:0", "--json").stdout)
    assert trial["source"] == f"{place.topic}/1/41/1700000000000"
    assert json.loads(trial["outputs"][0]["value"]) == {"headers": ["own"], "attempt": 3}
    foreign = run(f"{dead}:0:1")
    assert foreign.returncode == 1
    assert "kworker-source" in foreign.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{topic}:0:7"], "no record at this offset"),
        (["{topic}:9:0"], "no such topic or partition"),
        (["nothing:0:0"], "no such topic or partition"),
        (["{topic}:0:0", "--key", "k"], "go with a value from a file or stdin"),
        (["no-file"], "expected TOPIC:PARTITION:OFFSET or a file"),
    ],
)
def test_what_cannot_be_tried_is_named(
    run: Callable[..., Any], place: Place, arguments: list[str], words: str
) -> None:
    refused = run(*(each.format(topic=place.topic) for each in arguments))
    assert refused.returncode == 2
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


CLASSES = """
import sys


class Broken:
    def __init__(self):
        raise OSError("the database is down")

    def __call__(self, message):
        return None


class Loud:
    def __call__(self, message):
        print("hello")
        sys.exit(3)

    def close(self):
        raise ValueError("not open")
"""


def test_a_class_that_cannot_be_made_is_shown_with_its_stack(
    kworker: Kworker, place: Place, value: Callable[[object], Path]
) -> None:
    (place.file.parent / "handlers.py").write_text(CLASSES)
    place.file.write_text(re.sub('handlers:.*"', 'handlers:Broken"', place.file.read_text()))
    shown = kworker("try", value(1), "--config", place.file)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("kworker: the handler's class cannot be created:")
    assert "OSError: the database is down" in shown.stderr
    assert shown.stderr.count("File ") == 1


def test_a_handler_that_prints_and_exits_leaves_the_json_whole(
    kworker: Kworker, place: Place, value: Callable[[object], Path]
) -> None:
    (place.file.parent / "handlers.py").write_text(CLASSES)
    place.file.write_text(re.sub('handlers:.*"', 'handlers:Loud"', place.file.read_text()))
    shown = kworker("try", value(1), "--json", "--config", place.file)
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["failure"]["exception"] == "SystemExit"
    assert "hello" in shown.stderr
    assert "close() raised ValueError: not open" in shown.stderr


def test_the_debugger_opens_where_the_handler_raised(
    place: Place, command: list[str], value: Callable[[object], Path]
) -> None:
    argv = [*command, "try", str(value("error")), "--pdb", "--config", str(place.file)]
    shown = subprocess.run(
        argv, input="p order\nq\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert shown.returncode == 1
    assert "'error'" in shown.stdout
