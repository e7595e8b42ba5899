"""The wall clock, in the milliseconds that Kafka's timestamps count."""

import time


def now_ms() -> int:
    """Returns the wall-clock time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
