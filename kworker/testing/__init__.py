"""Tests of handlers without servers: `message` makes a handler's argument, `run` runs a service.

`run` runs records through the real worker and the real delay process, over Kafka and Redis in
memory, and over a clock on which an hour's delay passes at once.
"""

from kworker.testing.messages import message
from kworker.testing.report import DeadRecord, DelayedRun, PublishedResult, RunReport
from kworker.testing.runner import run

__all__ = ["DeadRecord", "DelayedRun", "PublishedResult", "RunReport", "message", "run"]
