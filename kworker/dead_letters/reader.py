"""Reads the dead letters of a service, and their resolutions, as they are now."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kworker.core.message import RawMessage
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterPosition
from kworker.dead_letters.resolutions import Resolutions
from kworker.dead_letters.selection import SeenNames, Selection, spans
from kworker.errors import UsageError


class RecordReader(Protocol):
    """The method of `TopicReader` that `DeadLetters` uses."""

    def records(self, topic: str, spans: Mapping[int, range]) -> Iterator[RawMessage]: ...


class DeadLetters:
    """Reads a service's dead letters, and their resolutions from the state topic.

    The dead-letter topic is read up to the end that it had when this object was created. The state
    topic is read up to the end that it has at the call of `resolutions`. Used by one thread, which
    finishes one iterator before it begins another.
    """

    def __init__(
        self,
        reader: RecordReader,
        bounds_of: Callable[[str], dict[int, range]],
        topic: str,
        state: str,
    ) -> None:
        """`bounds_of(topic)` returns, for each partition, the range of offsets that can be read."""
        self._reader = reader
        self._bounds_of = bounds_of
        self._state = state
        self.topic = topic
        self._bounds = bounds_of(topic)
        self.seen = SeenNames()

    def resolutions(self) -> Resolutions:
        """Reads all resolutions that are committed by now.

        Raises Unreachable if Kafka does not answer.
        """
        found = Resolutions(self.topic)
        for raw in self._reader.records(self._state, self._bounds_of(self._state)):
            found.add(raw.key(), raw.value())
        return found

    def spans(self, selection: Selection) -> dict[int, range]:
        """Returns the offsets to read for a selection.

        Raises UsageError if the selection names an offset that the topic does not hold.
        """
        if selection.sources or not selection.places:
            return self._bounds
        for place in sorted(selection.places):
            if not self.holds(place):
                raise UsageError(f"{self.topic} has no record {place}: {self._offsets_held(place)}")
        return spans(selection.places)

    def holds(self, place: DeadLetterPosition) -> bool:
        """Returns True if a position is within the offsets of the dead-letter topic.

        There may be no record at this position.
        """
        return place.offset in self._bounds.get(place.partition, ())

    def _offsets_held(self, place: DeadLetterPosition) -> str:
        held = self._bounds.get(place.partition)
        if held is None:
            return f"its partitions are 0 to {len(self._bounds) - 1}"
        if not held:
            return f"its partition {place.partition} is empty"
        return f"its partition {place.partition} holds {held.start} to {held.stop - 1}"

    def letters(self, spans: Mapping[int, range]) -> Iterator[DeadLetter]:
        """Yields the dead letters in `spans`, partition by partition.

        Raises Unreachable if Kafka does not answer.
        """
        return self.seen.record(map(DeadLetter.of, self._reader.records(self.topic, spans)))
