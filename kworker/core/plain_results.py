"""The plain results of adjacent records, as columns: one for each record, or none.

A result is plain if it is the only one of its record's first run, is for the results topic, and has
a value.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

from kworker.core.headers import SOURCE
from kworker.core.message import HeaderList, RawMessage
from kworker.core.outcome import (
    NO_RESULTS,
    Output,
    Results,
    Succeeded,
    outputs_of,
    plain_result,
    size_of_headers,
)
from kworker.core.record import Partition


class Addressed(NamedTuple):
    """The value of a result with a key of its own, or with headers beside the source header."""

    value: bytes
    key: bytes | None
    headers: HeaderList


PlainValue = bytes | Addressed
"""What a plain result has beside what its record tells."""


class PlainResults:
    """The plain results of several records of one partition.

    Each column has an entry for each record. The value of one without a result is None. `headers`
    are those beside the source header; None if no result has any. `record_keys` are the keys of the
    records, which those of results may differ from. `frame_size` is that of the partition.
    """

    __slots__ = ("_frame_size", "headers", "keys", "record_keys", "sources", "topic", "values")

    def __init__(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        sources: Sequence[bytes],
        frame_size: int,
        headers: Sequence[HeaderList] | None = None,
        record_keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """Without `record_keys`, they are `keys`."""
        self.topic = topic
        self.keys = keys
        self.values = values
        self.sources = sources  # of the header
        self.headers = headers
        self.record_keys = keys if record_keys is None else record_keys
        self._frame_size = frame_size

    @classmethod
    def of(
        cls,
        topic: str,
        partition: Partition,
        offsets: Sequence[int],
        raws: Sequence[RawMessage],
        values: Sequence[PlainValue | None],
    ) -> "PlainResults":
        """Makes the columns. There may be fewer values than records: the last have no results."""
        prefix = partition.prefix
        both = zip(offsets, raws, strict=True)
        sources = [b"%b%d/%d" % (prefix, offset, raw.timestamp()[1]) for offset, raw in both]
        keys = [raw.key() for raw in raws]
        entries = [*values, *[None] * (len(raws) - len(values))]
        if Addressed not in map(type, values):
            bare = cast("list[bytes | None]", entries)
            return cls(topic, keys, bare, sources, partition.frame_size)
        own = [entry if isinstance(entry, Addressed) else None for entry in entries]
        return cls(
            topic,
            [entry.key if entry else key for entry, key in zip(own, keys, strict=True)],
            [entry.value if isinstance(entry, Addressed) else entry for entry in entries],
            sources,
            partition.frame_size,
            [entry.headers if entry else [] for entry in own],
            keys,
        )

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
        return sizes + number * self._frame_size + sum(map(size_of_headers, self.headers or ()))

    def outcome(self, nth: int) -> Succeeded:
        """Returns the outcome of the record with this index."""
        key, value = self.keys[nth], self.values[nth]
        if value is None:
            return NO_RESULTS
        headers = self.headers[nth] if self.headers else []
        size = self._frame_size + len(value) + (len(key) if key else 0) + size_of_headers(headers)
        source = self.sources[nth]
        if headers or key != self.record_keys[nth]:
            own = [(SOURCE, source), *headers]
            return Results((Output(self.topic, key, value, own, size),))
        return plain_result(self.topic, key, value, source, size)

    def last(self) -> Output | None:
        """Returns the last result; None if there is none."""
        found = (outputs_of(self.outcome(nth)) for nth in reversed(range(len(self))))
        return next((outputs[0] for outputs in found if outputs), None)

    def part(self, begin: int, end: int) -> "PlainResults":
        """Returns those of the records from the index `begin` to before `end`."""
        return PlainResults(
            self.topic,
            self.keys[begin:end],
            self.values[begin:end],
            self.sources[begin:end],
            self._frame_size,
            self.headers and self.headers[begin:end],
            None if self.record_keys is self.keys else self.record_keys[begin:end],
        )
