"""Brokers that turn a running service away: the status names the key, and not an outage."""

from collections.abc import Callable
from pathlib import Path

from kworker.clients.watch import KafkaWatch
from tests.support.certificates import Authority
from tests.support.secured import TlsFront
from tests.support.waiting import eventually


def test_a_certificate_that_is_not_trusted_is_told_at_its_key(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    """As after a change of certificates on the side of the brokers."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    port = free_port()
    front = TlsFront(port, 1, theirs.issue_pem(tmp_path / "broker.pem"))
    properties = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(ours.path),
        "log_level": 0,
    }
    try:
        watch = KafkaWatch(properties)
        watch.ask_ids(["orders"])
        eventually(lambda: watch.ids() == {}, what="the request is given up")
        assert watch.rejection.startswith("kafka.ssl.ca.location: the brokers at 127.0.0.1:")
    finally:
        front.close()


def test_an_outage_is_no_rejection() -> None:
    watch = KafkaWatch({"bootstrap.servers": "127.0.0.1:1"})
    watch.ask_ids(["orders"])
    eventually(lambda: watch.ids() == {}, what="the request is given up")
    assert watch.rejection == ""
