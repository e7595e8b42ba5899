"""The due records that one transaction forwards."""

from dataclasses import dataclass, field

from kworker.core.message import PartitionId
from kworker.core.outcome import Output
from kworker.delay.routes import DelayedRecord

BATCH_RECORDS = 2_000  # in one transaction
BATCH_BYTES = 8 << 20


@dataclass(slots=True)
class DueBatch:
    """The due records that one transaction forwards.

    `counts` has the number of records from each partition; these are the partition's first ones.
    `outputs` are the records to write. `forged` are the records without valid kworker headers,
    which become dead letters.
    """

    counts: dict[PartitionId, int] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    forged: list[DelayedRecord] = field(default_factory=list)
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.outputs) >= BATCH_RECORDS or self.bytes >= BATCH_BYTES

    def add(self, at: PartitionId, waiting: DelayedRecord, output: Output) -> None:
        self.counts[at] = self.counts.get(at, 0) + 1
        self.outputs.append(output)
        self.bytes += waiting.size
        if waiting.envelope is None:
            self.forged.append(waiting)
