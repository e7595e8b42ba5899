"""The sizes of a worker's producer, which follow the limits of the topics that it writes."""

from kworker.config.client_properties import Properties
from kworker.worker.topic_limits import TopicLimits

# The library's own defaults.
_BATCH_BYTES = 1_000_000
_QUEUE_KBYTES = 1_048_576


class SizedProperties:
    """Adapts the properties of a worker's producer to the size limits of the topics.

    Kafka refuses a whole batch that exceeds the limit of its topic. So a batch is at most as large
    as the smallest limit. The producer refuses a record that exceeds its own size limit or its
    queue. So this limit and the queue are at least as large as the largest limit of a topic.
    """

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
        facts, given = self._facts, self._given
        queue = int(given.get("queue.buffering.max.kbytes", _QUEUE_KBYTES))
        return {
            "message.max.bytes": facts.largest,
            "batch.size": min(int(given.get("batch.size", _BATCH_BYTES)), facts.smallest),
            "queue.buffering.max.kbytes": max(queue, facts.largest // 1024 + 1),
        }
