"""The limits of outputs that wait to be written, and when a refused one is tried again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxPolicy:
    """The limits of waiting outputs, and the delays before a refused output is tried again."""

    bytes_max: int
    records_max: int
    retry_s: float = 1.0
    retry_silent_s: float = 5.0  # if the topic did not answer; doubles while that goes on
    retry_letter_s: float = 10.0  # a dead letter that its topic refused for good
