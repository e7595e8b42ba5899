"""A steady load: records that are written for as long as a test waits for something."""

from collections.abc import Callable

from tests.support.kafka import Writer, numbered
from tests.support.waiting import eventually

KEYS = 500
PORTION = 100  # of each topic, each tenth of a second


class Feeding:
    """Writes the same numbers to each topic."""

    def __init__(self, writer: Writer, *topics: str, portion: int = PORTION) -> None:
        self._writer = writer
        self._topics = topics
        self._portion = portion
        self._fed = 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def fed() -> bool:
            for topic in self._topics:
                portion = numbered(self._portion, keys=KEYS, first=self._fed)
                self._writer.begin(topic, portion)
            self._fed += self._portion
            return condition()

        eventually(fed, timeout_s=60, every_s=0.1, what=what)
