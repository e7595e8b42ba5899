"""Brokers that refuse, one behind a proxy, and one with TLS and SASL; when a proof hangs."""

import pytest

from tests.e2e.conftest import meanwhile
from tests.support.fault_brokers import proxied, proxied_broker, strict
from tests.support.secured import secured_kafka

__all__ = ["meanwhile", "proxied", "proxied_broker", "secured_kafka", "strict"]

HANGS_S = 1200  # beside other proofs, a start of Spark may take minutes


def pytest_itemcollected(item: pytest.Item) -> None:
    """A proof whose work grows with a setting says its own time."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(HANGS_S))
