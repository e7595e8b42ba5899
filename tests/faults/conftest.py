"""Brokers that refuse, and one behind a proxy."""

from tests.support.fault_brokers import proxied, proxied_broker, strict

__all__ = ["proxied", "proxied_broker", "strict"]
