"""The size settings of a worker's producer, which follow the size limits of its topics."""

from kworker.config.client_properties import Properties, record_sizes
from kworker.worker.topic_limits import TopicLimits


class SizedProperties:
    """Adapts the properties of a worker's producer to the size limits of the topics."""

    def __init__(self, properties: Properties, facts: TopicLimits) -> None:
        self._given = properties
        self._facts = facts
        self._made: Properties = {}
        self._version = -1  # of the facts, when they were last looked at
        self._outdated = False

    def properties(self) -> Properties:
        """Returns the properties for the next producer."""
        self._made, self._outdated = self._sizes(), False
        return {**self._given, **self._made}

    def outdated(self) -> bool:
        """Returns True if changed topic limits call for a producer with other properties."""
        if self._version != self._facts.version:
            self._version = self._facts.version
            self._outdated = self._made != self._sizes()
        return self._outdated

    def _sizes(self) -> Properties:
        facts = self._facts
        return record_sizes(self._given, largest=facts.largest, smallest=facts.smallest)
