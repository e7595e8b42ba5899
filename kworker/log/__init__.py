"""Log lines are events with fields: readable on a terminal, JSON everywhere else."""

from kworker.log.console_format import console_line
from kworker.log.setup import capture_prints, configure, identify

__all__ = ["capture_prints", "configure", "console_line", "identify"]
