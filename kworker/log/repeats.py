"""Limits repeated lines of libraries, which write the same ones while a server does not answer."""

import logging
import re
import time
from collections.abc import Callable

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_KINDS_MAX = 500


class Repeats(logging.Filter):
    """Drops a line of a library's loggers if the same line has passed within `every_s` seconds.

    Lines that differ only in numbers count as the same. The next one that passes has the
    number of dropped lines in its field `withheld`. While no broker answers, each Kafka client
    writes twenty lines a second.
    """

    def __init__(
        self, library: str, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._library = library
        self._every_s = every_s
        self._clock = clock
        # By kind of line: the time when it may pass again, and the number withheld until then.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != self._library:
            return True
        now, kind = self._clock(), _NUMBERS.sub("#", record.getMessage())
        again_at, withheld = self._seen.get(kind, (0.0, 0))
        if now < again_at:
            self._seen[kind] = again_at, withheld + 1
            return False
        if len(self._seen) >= _KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = now + self._every_s, 0
        if withheld:
            record.withheld = withheld
        return True
