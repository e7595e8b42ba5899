"""What a worker must know of the topics that it writes: how large a record, how many partitions."""

from collections.abc import Mapping, Sequence

from kworker.core.outcome import Output


class TopicLimits:
    """As the brokers told lately. Written by one thread, read by all."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self._limits: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self.version = 0  # another one whenever a limit is
        self.answers = 0  # of the brokers, ever
        self.stale = False  # they may have changed: to be asked for at once

    def update(self, limits: Mapping[str, int], partitions: Mapping[str, int]) -> None:
        """Bytes and numbers by topic; what they do not tell stays."""
        self.answers += bool(limits)
        self.version += any(self._limits.get(topic) != most for topic, most in limits.items())
        self._limits = {**self._limits, **limits}
        self._partitions = {**self._partitions, **partitions}

    def fits(self, output: Output) -> bool:
        """Whether a record is within its topic's limit, as far as that is known."""
        most = self._limits.get(output.topic)
        return most is None or output.size <= most

    @property
    def missing(self) -> str:
        """The topics of which not everything is known."""
        known = self._limits.keys() & self._partitions.keys()
        return ", ".join(topic for topic in self.topics if topic not in known)

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def largest(self) -> int:
        """Bytes of the largest record that any of them takes; ValueError before it is known."""
        return max(self._limits.values())

    @property
    def smallest(self) -> int:
        """Bytes of the largest record that each of them takes; ValueError before it is known."""
        return min(self._limits.values())

    def max_bytes(self, topic: str) -> int:
        """Bytes of the largest record; KeyError for a topic that is not among `topics`."""
        return self._limits[topic]

    def partition_for(self, topic: str, source_partition: int) -> int:
        """Where what comes of a source partition goes, so that it meets its own again."""
        return source_partition % self._partitions[topic]
