"""The plain results of adjacent records, as columns: one for each record, or none."""

from collections.abc import Sequence

from kworker.core.message import RawMessage
from kworker.core.outcome import PlainResult, plain_result
from kworker.core.record import Partition


class PlainResults:
    """The contents of the `PlainResult`s of several records of one partition.

    Each column has an entry for each record. The value of one without a result is None.
    `frame_size` is that of the partition.
    """

    __slots__ = ("_frame_size", "keys", "sources", "topic", "values")

    def __init__(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        sources: Sequence[bytes],
        frame_size: int,
    ) -> None:
        self.topic = topic
        self.keys = keys
        self.values = values
        self.sources = sources  # of the header
        self._frame_size = frame_size

    @classmethod
    def of(
        cls,
        topic: str,
        partition: Partition,
        offsets: Sequence[int],
        raws: Sequence[RawMessage],
        values: Sequence[bytes | None],
    ) -> "PlainResults":
        """Makes the columns. There may be fewer values than records: the last have no results."""
        prefix = partition.prefix
        both = zip(offsets, raws, strict=True)
        sources = [b"%b%d/%d" % (prefix, offset, raw.timestamp()[1]) for offset, raw in both]
        keys = [raw.key() for raw in raws]
        values = [*values, *[None] * (len(raws) - len(values))]
        return cls(topic, keys, values, sources, partition.frame_size)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.values)

    @property
    def number(self) -> int:
        """The number of results."""
        return len(self.values) - self.values.count(None)

    @property
    def size(self) -> int:
        """An upper bound of the results' bytes in a batch."""
        values, keys = self.values, self.keys
        if (number := self.number) < len(values):
            keys = [key for key, value in zip(keys, values, strict=True) if value is not None]
        sizes = sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
        return sizes + number * self._frame_size

    def output(self, nth: int) -> PlainResult | None:
        """Returns the result of the record with this index."""
        key, value = self.keys[nth], self.values[nth]
        if value is None:
            return None
        size = self._frame_size + len(value) + (len(key) if key else 0)
        return plain_result(self.topic, key, value, self.sources[nth], size)

    def last(self) -> PlainResult | None:
        """Returns the last result; None if there is none."""
        found = (self.output(nth) for nth in reversed(range(len(self))))
        return next(filter(None, found), None)

    def part(self, begin: int, end: int) -> "PlainResults":
        """Returns those of the records from the index `begin` to before `end`."""
        return PlainResults(
            self.topic,
            self.keys[begin:end],
            self.values[begin:end],
            self.sources[begin:end],
            self._frame_size,
        )
