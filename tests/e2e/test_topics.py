"""`kworker topics` on a real broker."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.conftest import Kworker

Configured = Callable[..., Path]


@pytest.fixture
def configured(tmp_path: Path, bootstrap: str) -> Configured:
    """Writes a service's file: `configured(["a"])`; its name is unique."""
    return lambda topics, extra="": written(tmp_path, topics, bootstrap, extra)


def written(folder: Path, topics: list[str], servers: str, extra: str = "") -> Path:
    file = folder / "kworker.toml"
    file.write_text(
        f'name = "cfg-{uuid.uuid4().hex[:8]}"\nhandler = "handlers:handle"\n'
        f"[source]\ntopics = {json.dumps(topics)}\n"
        f'[kafka]\nbootstrap.servers = "{servers}"\n{extra}\n'
    )
    (folder / "handlers.py").write_text("def handle(message):\n    return None\n")
    return file


def name_of(file: Path) -> str:
    return file.read_text().split('"')[1]


def test_topics_are_created_after_the_source_and_once(
    kworker: Kworker, configured: Configured, topic: Callable[..., str]
) -> None:
    """Partitions, and room for headers, as the contract says; a second run finds all there."""
    source = topic("cfg-source", partitions=3, max_message_bytes="5000")
    file = configured([source], '[retry]\ndelays = ["500ms", "60s"]')
    name = name_of(file)
    first = kworker("topics", "create", "--config", file, "--json")
    assert first.returncode == 0, first.stderr
    created = [f"{name}.{suffix}" for suffix in ("results", "retry.500ms", "retry.1m")]
    created += [f"{name}.{suffix}" for suffix in ("requeue", "dead", "dead.state")]
    assert json.loads(first.stdout)["created"] == created
    again = json.loads(kworker("topics", "create", "--config", file, "--json").stdout)
    assert again == {"created": [], "existing": created, "different": {}, "failed": {}}
    shown = kworker("topics", "show", "--config", file, "--json")
    rows = {row["topic"]: row for row in json.loads(shown.stdout)}
    assert {row["partitions"] for row in rows.values()} == {3}
    assert rows[source]["role"] == "source"
    assert rows[f"{name}.dead"]["config"]["max.message.bytes"] == str(5000 + 65536)
    assert rows[f"{name}.retry.1m"]["config"]["retention.ms"] == "-1"
    assert rows[f"{name}.dead.state"]["config"]["cleanup.policy"] == "compact"
    assert not any(row["differs"] for row in rows.values())


def test_a_difference_is_told_and_left(
    kworker: Kworker, configured: Configured, topic: Callable[..., str], bootstrap: str
) -> None:
    """Somebody may have meant it."""
    file = configured([topic("cfg-source", partitions=3)])
    results = f"{name_of(file)}.results"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(results, 1, 1)])[results].result(30)
    created = kworker("topics", "create", "--config", file)
    assert created.returncode == 0, created.stderr
    assert f"exists   {results}\n" in created.stdout
    assert "differs, not changed: partitions 1, planned 3" in created.stdout
    shown = kworker("topics", "show", "--config", file)
    assert shown.returncode == 0
    assert results in shown.stdout


def test_a_missing_source_is_created_only_on_request(
    kworker: Kworker, configured: Configured
) -> None:
    """Its shape decides that of all the others, so it is nobody's default."""
    source = f"cfg-source-{uuid.uuid4().hex[:8]}"
    file = configured([source])
    refused = kworker("topics", "create", "--config", file)
    assert refused.returncode == 78
    assert refused.stderr == (
        f"kworker: source.topics: missing on the brokers: {source}; create them, or add"
        " --partitions N --replication M to create them now\n"
    )
    sized = ("--partitions", 2, "--replication", 1)
    made = kworker("topics", "create", "--config", file, *sized)
    assert made.returncode == 0, made.stderr
    rows = json.loads(kworker("topics", "show", "--config", file, "--json").stdout)
    assert {row["partitions"] for row in rows} == {2}
    assert rows[0]["topic"] == source


def test_a_broker_refusal_of_a_topic_is_told(kworker: Kworker, configured: Configured) -> None:
    """One broker cannot hold three replicas."""
    source = f"cfg-source-{uuid.uuid4().hex[:8]}"
    sized = ("--partitions", 1, "--replication", 3)
    failed = kworker("topics", "create", "--config", configured([source]), *sized)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"kworker: {source}: ")
    assert "Traceback" not in failed.stderr
