"""Blocks: the plain results of a chunk's records, on their way to Kafka."""

from collections.abc import Sequence

from kworker.core.chunk import ChunkPart
from kworker.core.message import Fields, HeaderList
from kworker.core.outcome import outputs_of
from kworker.core.plain_results import PlainResults
from kworker.core.record import Partition, Record, Values, records_of

OBJECT_BYTES = 600  # what an output and its record cost beside the payload


class ResultBlock:
    """Ended records of one partition with their plain results, as columns.

    Of the messages, the values are kept, joined (see `Values`), and any headers. Owned by the poll
    thread.
    `output_bytes` and `memory_bytes` are the sums of those of the records.
    """

    __slots__ = (
        "_headers",
        "_lanes",
        "_nth",
        "_records",
        "_taken_ns",
        "_values",
        "memory_bytes",
        "offsets",
        "output_bytes",
        "partition",
        "results",
    )

    def __init__(
        self,
        partition: Partition,
        offsets: Sequence[int],
        lanes: Sequence[object],
        taken_ns: int,
        headers: Sequence[HeaderList | None] | None,
        results: PlainResults,
        values: Values,
        memory_bytes: int,
        nth: int = 0,
    ) -> None:
        """`values` has those of the messages, from the index `nth` on."""
        self.partition = partition
        self.offsets = offsets
        self.results = results
        self.memory_bytes = memory_bytes
        self.output_bytes = results.number * OBJECT_BYTES + results.size
        self._lanes = lanes
        self._taken_ns = taken_ns
        self._headers = headers
        self._values = values
        self._nth = nth
        self._records: list[Record] | None = None

    @classmethod
    def of(cls, part: ChunkPart) -> "ResultBlock":
        """Makes a block of a part of a chunk."""
        columns = part.columns
        values = Values([raw.value() for raw in columns.raws])
        own = part.partition, columns.offsets, columns.lanes, columns.taken_ns, columns.headers
        return cls(*own, part.results(), values, part.memory_bytes)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        """The approximate memory of the records and their outputs."""
        return self.output_bytes + self.memory_bytes

    def split(self, at: int) -> tuple["ResultBlock", "ResultBlock"]:
        """Returns blocks of the records before the index `at`, and of the others."""
        first_bytes = self.memory_bytes * at // len(self)
        first = self._part(0, at, first_bytes)
        return first, self._part(at, len(self), self.memory_bytes - first_bytes)

    def _part(self, begin: int, end: int, memory_bytes: int) -> "ResultBlock":
        return ResultBlock(
            self.partition,
            self.offsets[begin:end],
            self._lanes[begin:end],
            self._taken_ns,
            None if self._headers is None else self._headers[begin:end],
            self.results.part(begin, end),
            self._values,
            memory_bytes,
            self._nth + begin,
        )

    def records(self) -> list[Record]:
        """Makes a `Record` of each, once, with its outcome."""
        if self._records is None:
            self._records = self._made()
        return self._records

    def _made(self) -> list[Record]:
        """The sizes of the records are not known any more: each gets the same."""
        partition, results = self.partition, self.results
        headers = self._headers or [None] * len(self)
        each, rest = divmod(self.memory_bytes, len(self))
        sizes = [each + rest, *[each] * (len(self) - 1)]
        raws = [
            Fields(
                (partition.topic, partition.number, offset),
                int(source.rpartition(b"/")[2]),
                key,
                self._values[self._nth + i],
                tuple(headers[i] or ()),
            )
            for i, (offset, source, key) in enumerate(
                zip(self.offsets, results.sources, results.record_keys, strict=True)
            )
        ]
        lanes, taken_ns = self._lanes, self._taken_ns
        records = records_of(partition, self.offsets, lanes, sizes, raws, taken_ns)
        for i, record in enumerate(records):
            record.outcome = outcome = results.outcome(i)
            record.output_bytes = sum(OBJECT_BYTES + each.size for each in outputs_of(outcome))
        return records
