"""Kafka's own tool: what it is told, in a file that no disk holds, and what it tells."""

import json
from pathlib import Path

import pytest

from kworker.clients.hanging_transactions import (
    Tool,
    Transaction,
    java_properties,
    offsets_partition,
)
from kworker.config.client_properties import Properties
from kworker.errors import ConfigError, KworkerError
from kworker.jars import KAFKA, KAFKA_LOGGING, KAFKA_TOOLS

PASSWORD = 'canary "\\ü:= #!'
PLAIN: Properties = {
    "bootstrap.servers": "broker:9092",
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": PASSWORD,
}
JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.15" 2025-04-15' >&2; exit 0; fi
here=$(dirname "$0")
echo "$@" >> "$here/arguments"
while [ $# -gt 1 ]; do
  if [ "$1" = --command-config ]; then cp "$2" "$here/told"; readlink "$2" > "$here/place"; fi
  case "$1" in find-hanging|list|describe-producers|abort) verb=$1;; esac
  shift
done
[ -n "$verb" ] || verb=$1
cat "$here/$verb" || { echo 'SLF4J: nothing'; echo 'ClusterAuthorizationException: no'; exit 1; }
"""
HANGING = """Topic             	Partition	ProducerId	ProducerEpoch	CoordinatorEpoch	StartOffset	LastTimestamp	Duration(min)
__consumer_offsets	3        	7         	0            	-1              	12         	1795403020614	0
orders.results    	0        	8         	0            	-1              	90         	1795403020614	5
"""  # noqa: E501 - as it prints
LISTED = """TransactionalId	Coordinator	ProducerId	TransactionState
orders-here-0  	1          	7         	CompleteCommit
"""
PRODUCERS = """ProducerId	ProducerEpoch	LatestCoordinatorEpoch	LastSequence	LastTimestamp	CurrentTransactionStartOffset
7         	0            	-1                    	0           	1795403020614	12
9         	0            	-1                    	0           	1795403020614	None
"""  # noqa: E501 - as it prints


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Java that answers as the tool would; its archives are there."""
    folder = tmp_path / "java" / "bin"
    folder.mkdir(parents=True)
    (folder / "java").write_text(JAVA)
    (folder / "java").chmod(0o755)
    for verb, text in {"find-hanging": HANGING, "list": LISTED, "abort": ""}.items():
        (folder / verb).write_text(text)
    (folder / "describe-producers").write_text(PRODUCERS)
    for each in (KAFKA, KAFKA_LOGGING, KAFKA_TOOLS):
        archives = tmp_path / "cache" / "jars" / f"{each.artifact}-{each.version}"
        archives.mkdir(parents=True)
        (archives / "a.jar").touch()
        (archives / "manifest.json").write_text(json.dumps({"a.jar": 0}))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("KWORKER_CACHE", str(tmp_path / "cache"))
    return folder


def tool(properties: Properties = PLAIN) -> Tool:
    return Tool(properties, lambda _: None)


def test_a_hanging_transaction_is_told_with_its_producer(java: Path) -> None:
    """By a name where a coordinator still knows the producer."""
    assert tool().hanging(1, 0) == [
        Transaction("__consumer_offsets", 3, 12, 7, "orders-here-0", hangs=True),
        Transaction("orders.results", 0, 90, 8, "", hangs=True),
    ]
    assert "--broker-id 1 --max-transaction-timeout 0" in (java / "arguments").read_text()


@pytest.mark.parametrize(
    "name", ["ledger writer", "Source: Custom Source -> Map -> Sink: Unnamed-0"]
)
def test_a_producers_name_may_contain_spaces(java: Path, name: str) -> None:
    """Other programs of the cluster choose theirs; with a wrong one, the wrong one is stopped."""
    (java / "list").write_text(f"{LISTED}{name}\t7          \t8         \tOngoing         \t\n")
    producers = {each.producer: each.transactional_id for each in tool().hanging(1, 0)}
    assert producers == {7: "orders-here-0", 8: name}


def test_open_transactions_of_a_partition_are_told(java: Path) -> None:
    assert tool().open_in(3) == [
        Transaction("__consumer_offsets", 3, 12, 7, "orders-here-0", hangs=False)
    ]
    assert "--topic __consumer_offsets --partition 3" in (java / "arguments").read_text()


def test_an_abort_names_the_place(java: Path) -> None:
    tool().abort(Transaction("__consumer_offsets", 3, 12, 7, "", hangs=True))
    told = (java / "arguments").read_text()
    assert "abort --topic __consumer_offsets --partition 3 --start-offset 12" in told


def test_a_password_is_in_no_argument_and_on_no_disk(java: Path) -> None:
    """The arguments of a process are everybody's to read, and a kill leaves a file behind."""
    tool().open_in(0)
    assert (java / "place").read_text().startswith("/memfd:")
    told = (java / "told").read_text()
    assert 'username\\="ann"\\ password\\="canary\\ \\\\"' in told.replace("\\\\\\", "\\\\")
    assert "canary" not in (java / "arguments").read_text()


def test_a_tool_that_fails_is_quoted(java: Path) -> None:
    (java / "find-hanging").unlink()
    with pytest.raises(KworkerError) as failed:
        tool().hanging(1, 1)
    told = str(failed.value)
    assert told.startswith("kafka-transactions find-hanging failed:\n")
    assert "\n  ClusterAuthorizationException: no" in told
    assert "SLF4J" not in told


def test_security_is_told_in_the_names_of_java(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN\nCA-----\n")
    told = java_properties(
        {
            "bootstrap.servers": "broker:9093",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.endpoint.identification.algorithm": "none",
            "linger.ms": 5,
        }
    )
    assert {name: value for name, value in told.items() if "timeout" not in name} == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="ann" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN\nCA-----\n",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_security_that_cannot_be_told_is_refused_with_the_way_out() -> None:
    """Of a distribution's own tool, which a person may give what kworker cannot."""
    foreign: Properties = {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigError, match=r"^kafka\.sasl\.mechanism: .*: run kafka-tr"):
        java_properties(foreign)


@pytest.mark.parametrize(
    ("group", "count", "partition"),
    [("hello", 50, 22), ("g-m4-bf005d", 8, 3), ("", 50, 0), ("polygenelubricants", 50, 0)],
)
def test_a_groups_positions_lie_where_kafka_puts_them(
    group: str, count: int, partition: int
) -> None:
    """The last one's hash has no positive counterpart."""
    assert offsets_partition(group, count) == partition
