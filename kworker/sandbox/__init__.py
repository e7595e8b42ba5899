"""A real Kafka and a real Redis on loopback, for development and tests."""

from kworker.sandbox.plan import Options, Status
from kworker.sandbox.sandbox import Sandbox

__all__ = ["Options", "Sandbox", "Status"]
