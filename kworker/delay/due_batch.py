"""Records that are due, as one transaction takes them."""

from dataclasses import dataclass, field

from kworker.core.message import PartitionId
from kworker.core.outcome import Output
from kworker.delay.routes import DelayedRecord

RUN_RECORDS = 2_000  # in one transaction
RUN_BYTES = 8 << 20


@dataclass(slots=True)
class DueBatch:
    """What goes into one transaction: how many of each partition's first records."""

    counts: dict[PartitionId, int] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    forged: list[DelayedRecord] = field(default_factory=list)
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.outputs) >= RUN_RECORDS or self.bytes >= RUN_BYTES

    def add(self, at: PartitionId, waiting: DelayedRecord, output: Output) -> None:
        self.counts[at] = self.counts.get(at, 0) + 1
        self.outputs.append(output)
        self.bytes += waiting.size
        if waiting.envelope is None:
            self.forged.append(waiting)
