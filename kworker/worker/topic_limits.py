"""The limits of the topics that a worker writes: largest record, number of partitions."""

from collections.abc import Mapping, Sequence

from kworker.core.outcome import Output


class TopicLimits:
    """The limits on the size of a record, and the partition counts, of the topics for outputs.

    Written by one thread, read by all.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self._limits: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self.version = 0  # changes whenever a limit does
        self.answers = 0  # of the brokers, in all
        self.stale = False  # they may have changed: to be requested at once

    def update(self, limits: Mapping[str, int], partitions: Mapping[str, int]) -> None:
        """Updates the size limits in bytes and the partition counts of the topics given.

        All other topics keep their values.
        """
        self.answers += bool(limits)
        self.version += any(self._limits.get(topic) != most for topic, most in limits.items())
        self._limits = {**self._limits, **limits}
        self._partitions = {**self._partitions, **partitions}

    def fits(self, output: Output) -> bool:
        """Returns True if an output is within its topic's size limit, or the limit is not known."""
        most = self._limits.get(output.topic)
        return most is None or output.size <= most

    @property
    def missing(self) -> str:
        """The topics whose limits are not known yet, separated by commas."""
        known = self._limits.keys() & self._partitions.keys()
        return ", ".join(topic for topic in self.topics if topic not in known)

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def largest(self) -> int:
        """The highest size limit among the topics, in bytes. Raises ValueError if none is known."""
        return max(self._limits.values())

    @property
    def smallest(self) -> int:
        """The lowest size limit among the topics, in bytes. Raises ValueError if none is known."""
        return min(self._limits.values())

    def max_bytes(self, topic: str) -> int:
        """Returns the size of the largest record that a topic takes, in bytes.

        Raises KeyError if the limit of this topic is not known.
        """
        return self._limits[topic]

    def partition_for(self, topic: str, source_partition: int) -> int:
        """Returns the partition of `topic` that gets all outputs of one source partition."""
        return source_partition % self._partitions[topic]
