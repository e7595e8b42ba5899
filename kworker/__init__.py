"""kworker runs a Python function over Kafka topics as a supervised multi-process daemon."""

from kworker.core.batch import BatchFailed, batch
from kworker.core.outcome import Reject, Result, Retry, Snooze, Unavailable
from kworker.message import Message

__all__ = [
    "BatchFailed",
    "Message",
    "Reject",
    "Result",
    "Retry",
    "Snooze",
    "Unavailable",
    "batch",
]
