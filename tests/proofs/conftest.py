"""Brokers that refuse, one behind a proxy, and one with TLS and SASL."""

from tests.e2e.conftest import meanwhile
from tests.support.fault_brokers import proxied, proxied_broker, strict
from tests.support.secured import secured_kafka

__all__ = ["meanwhile", "proxied", "proxied_broker", "secured_kafka", "strict"]
