"""The dead letters of a service, and what was done about them, read as they are now."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kworker.core.message import RawMessage
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterPosition
from kworker.dead_letters.resolutions import Resolutions
from kworker.dead_letters.selection import Met, Selection, spans
from kworker.errors import UsageError


class Reader(Protocol):
    """What is needed of `TopicReader`."""

    def records(self, topic: str, spans: Mapping[int, range]) -> Iterator[RawMessage]: ...


class DeadLetters:
    """The dead-letter topic as it was when this was made, and the state topic as it is.

    Used by one thread, for one reading at a time.
    """

    def __init__(
        self, reader: Reader, bounds_of: Callable[[str], dict[int, range]], topic: str, state: str
    ) -> None:
        """`bounds_of` a topic: the offsets that each partition holds, as read_committed."""
        self._reader = reader
        self._bounds_of = bounds_of
        self._state = state
        self.topic = topic
        self._bounds = bounds_of(topic)
        self.met = Met()

    def resolutions(self) -> Resolutions:
        """All that were committed until now. Raises Unreachable."""
        found = Resolutions(self.topic)
        for raw in self._reader.records(self._state, self._bounds_of(self._state)):
            found.add(raw.key(), raw.value())
        return found

    def spans(self, selection: Selection) -> dict[int, range]:
        """Where to look for what is selected. Raises UsageError for places outside the topic."""
        if selection.sources or not selection.places:
            return self._bounds
        for place in sorted(selection.places):
            if not self.holds(place):
                raise UsageError(f"{self.topic} has no {place}: {self._advice(place)}")
        return spans(selection.places)

    def holds(self, place: DeadLetterPosition) -> bool:
        """Whether a place is within the topic, though there may be no record in it."""
        return place.offset in self._bounds.get(place.partition, ())

    def _advice(self, place: DeadLetterPosition) -> str:
        held = self._bounds.get(place.partition)
        if held is None:
            return f"its partitions are 0 to {len(self._bounds) - 1}"
        if not held:
            return f"its partition {place.partition} is empty"
        return f"its partition {place.partition} holds {held.start} to {held.stop - 1}"

    def letters(self, spans: Mapping[int, range]) -> Iterator[DeadLetter]:
        """One partition after the other. Raises Unreachable."""
        return self.met.of(map(DeadLetter.of, self._reader.records(self.topic, spans)))
