"""The limits of the topics that a worker writes: largest record, number of partitions."""

from collections.abc import Mapping, Sequence

from kworker.core.outcome import Output


class TopicLimits:
    """The limits as the brokers last reported them. Written by one thread, read by all."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self._limits: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self.version = 0  # changes whenever a limit does
        self.answers = 0  # of the brokers, in all
        self.stale = False  # they may have changed: to be requested at once

    def update(self, limits: Mapping[str, int], partitions: Mapping[str, int]) -> None:
        """Updates bytes and numbers of partitions by topic; what they lack stays as it is."""
        self.answers += bool(limits)
        self.version += any(self._limits.get(topic) != most for topic, most in limits.items())
        self._limits = {**self._limits, **limits}
        self._partitions = {**self._partitions, **partitions}

    def fits(self, output: Output) -> bool:
        """Returns True if a record is within its topic's limit, as far as that is known."""
        most = self._limits.get(output.topic)
        return most is None or output.size <= most

    @property
    def missing(self) -> str:
        """The topics whose limits are not known yet, as text."""
        known = self._limits.keys() & self._partitions.keys()
        return ", ".join(topic for topic in self.topics if topic not in known)

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def largest(self) -> int:
        """Size of the largest record that any topic takes. Raises ValueError before it is known."""
        return max(self._limits.values())

    @property
    def smallest(self) -> int:
        """Size of the largest record that all topics take. Raises ValueError before it is known."""
        return min(self._limits.values())

    def max_bytes(self, topic: str) -> int:
        """Returns the size of the largest record. Raises KeyError for a topic not in `topics`."""
        return self._limits[topic]

    def partition_for(self, topic: str, source_partition: int) -> int:
        """Returns the partition for outputs of a source partition, always the same one."""
        return source_partition % self._partitions[topic]
