"""kworker runs a Python function over Kafka topics as a supervised multi-process daemon."""

from kworker.core.message import Message
from kworker.core.outcome import Reject, Result, Retry, Snooze, Unavailable

__all__ = ["Message", "Reject", "Result", "Retry", "Snooze", "Unavailable"]
