"""Publishing at least once: a batch is settled when Kafka has acknowledged all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kworker.clients.delivery import Queued, Refused
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults
from kworker.core.record import Record
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.output_batch import FillResult, OutputBatch, Queue
from kworker.worker.publish.result_block import ResultBlock
from kworker.worker.publish.silent_topics import NO_ANSWER


class Producer(Protocol):
    """The methods of `KafkaProducer`, and of its in-memory twin, that the publisher uses."""

    @property
    def fatal(self) -> str | None: ...
    @property
    def unfinished(self) -> int: ...
    def produce(self, output: Output, refused: Refused) -> None: ...
    def produce_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued: ...
    def poll(self) -> None: ...
    def purge(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReportPolicy:
    """The interval for reading delivery reports, and the limits of batches that wait for them.

    A batch is closed with `close_at` records, so that they are settled and freed while the CPU's
    caches still have them: that is 1.1 times as fast as a batch for each commit interval. It gets
    more if more have waited for the batch before it.
    """

    close_at: int = 2_500
    every_s: float = 0.004
    patience_s: float = 5.0  # without reports: it is a problem
    give_up_s: float = 15.0  # though the brokers answer: another producer
    rest_s: float = 1.0  # before that other one writes


class Publisher:
    """Writes the outputs of finished records to Kafka, in batches.

    Owned by the poll thread. Outputs are produced into an open batch. After a batch is closed, no
    outputs are produced until each output of the batch has a delivery report. Then the records of
    the batch are settled, except those that Kafka refused. While a batch is open, no delivery
    reports are read, since the client releases the interpreter's lock and takes it again for each
    report.
    """

    def __init__(
        self,
        make: Callable[[], Producer],
        outbox: Outbox,
        hearing: ReportPolicy | None = None,
        outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        """`outdated` tells if a new producer would have other properties than the last one.

        `make` makes the producers.
        """
        self._make = make
        self._outdated = outdated
        self._outbox = outbox
        self._hearing = hearing or ReportPolicy()
        self._producer = make()
        self._batch = OutputBatch(outbox)
        self._closing = False
        self._closing_since = 0.0
        self._close_at = 0  # records of the open batch
        self._to_end = 0  # batches, until all of the last flush is settled
        self._given_up = False  # the batch has waited too long; the next turn ends it
        self._hear_at = 0.0
        self._not_before = 0.0
        self.problem = ""  # the reason why nothing is acknowledged

    @property
    def published(self) -> int:
        """The number of outputs produced since the worker began."""
        return self._batch.produced

    @property
    def closing(self) -> bool:
        """True while the batch waits for its acknowledgements."""
        return self._closing

    @property
    def flushing(self) -> bool:
        """True until all that waited at the last `flush` is settled, or goes back to the outbox."""
        return self._to_end > 0

    def unacknowledged(self) -> list[Record]:
        """Returns the records of the batch. It is unknown whether their outputs are in Kafka."""
        return self._batch.begun

    def flush(self, now: float) -> None:
        """Closes the batch, which then only waits for its acknowledgements.

        If it is closed already, closes the next one, too, as soon as that has what waits now.
        """
        if self._closing:
            self._to_end = 2 if self._outbox.number_waiting else 1
        else:
            self._close_batch(now)
            self._to_end = int(self._closing)

    def _close_batch(self, now: float) -> None:
        if len(self._batch) and not self._closing:
            self._closing, self._closing_since = True, now

    def turn(self, now: float) -> list[Record]:
        """Produces waiting outputs, and reads delivery reports. Never waits.

        Returns the records all of whose outputs are in Kafka.
        """
        if not self._closing and now >= self._not_before:
            self._produce(now)
        if now < self._hear_at or (len(self._batch) and not self._closing):
            return []
        self._hear_at = now + self._hearing.every_s
        self._producer.poll()
        if self._producer.fatal:
            return self._replace(now, self._producer.fatal)
        if self._closing and not self._producer.unfinished:
            return self._finish(now)
        if self._given_up:
            return self._replace(now, NO_ANSWER, silence=True)
        if self._closing and now - self._closing_since > self._hearing.patience_s:
            self.problem = f"no acknowledgement for {now - self._closing_since:.0f} s"
        return []

    def brokers_answered(self, now: float, since: float) -> None:
        """Lets the next turn end the batch if acknowledgements have been missing for too long.

        Called when the brokers answer other clients, as they have done since the time `since`. Only
        the wait after `since` counts, as the brokers may have been away before. The wait has one of
        two causes. A partition may have no leader or too few replicas: so its topic backs off. Or
        librdkafka does not find the leader, which can last for ever after the restart of a broker:
        so the producer is replaced, too.
        """
        if self._closing and now - max(self._closing_since, since) > self._hearing.give_up_s:
            self._given_up = True

    def _produce(self, now: float) -> None:
        outdated = self._outdated()
        if outdated and not self._batch.torn:
            self._close_batch(now)
            if self._closing:
                return
            self._producer, outdated = self._make(), False
        if not len(self._batch):
            # What has waited long, since acknowledgements take long, is not split up.
            self._close_at = max(self._hearing.close_at, self._outbox.number_waiting)
        queue = Queue(self._producer.produce, self._producer.produce_plain)
        filled = self._batch.fill(queue, now, only_torn=outdated)
        large = len(self._batch) >= self._close_at
        if large or filled is not FillResult.ALL or self._to_end:
            self._close_batch(now)
        if not self._closing:
            self._to_end = 0

    def take_blocks(self) -> list[ResultBlock]:
        """Returns the blocks all of whose outputs are in Kafka, since the last call."""
        return self._batch.take_blocks()

    def _finish(self, now: float) -> list[Record]:
        self._closing = self._given_up = False
        self._to_end = max(0, self._to_end - 1)
        self.problem = ""
        return self._batch.finish(now)

    def _replace(self, now: float, why: str, *, silence: bool = False) -> list[Record]:
        """Replaces a producer that cannot go on, and ends the batch.

        Returns the records that are in Kafka. The others are written again; outputs that were in
        flight may then be in Kafka twice. The purge of the producer yields the missing delivery
        reports, so a record without a failed delivery is in Kafka. But librdkafka does not purge a
        partition that is changing its leader. If any report is missing for that reason, all records
        are written again, and none is returned.
        """
        self._producer.purge()
        self._producer.poll()
        settled: list[Record] = []
        if self._producer.unfinished:
            self._batch.give_up(now, silence=silence)
        else:
            settled = self._batch.finish(now, silence=silence)
        self._closing = self._given_up = False
        self._to_end = 0
        self.problem = f"producer replaced: {why}"
        self._not_before = now + self._hearing.rest_s
        self._producer = self._make()
        return settled
