"""Records with an output that its topic refuses for good."""

from typing import NamedTuple

from kworker.core.outcome import DeadLettered
from kworker.core.record import Record


class Undeliverable(NamedTuple):
    """A record with an output that its topic refuses for good.

    `again` is True if that output was refused before, and then tried once more.
    """

    record: Record
    topic: str
    why: str
    again: bool = False

    def describe(self) -> str:
        """Says that a retry or dead letter waits, as it is refused."""
        source = self.record.source
        what = "dead letter" if isinstance(self.record.outcome, DeadLettered) else "retry"
        return (
            f"{self.topic} refuses the {what} of {source.topic}:{source.partition}"
            f":{source.offset} ({self.why}): it waits and is tried again every 10 s, all others"
            " go on"
        )
