"""Publishing: outcomes in batches, each settled when Kafka has acknowledged all of it."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from kworker.clients.kafka import QueueFull, Refused
from kworker.core.outcome import Output
from kworker.core.record import SPENT, Record

_OBJECT_BYTES = 600  # what an output and its record cost beside the payload
PRODUCE_MOST = 5_000  # records a turn, so that polling goes on


class Producer(Protocol):
    """What the publisher needs of `KafkaProducer` or its twin."""

    @property
    def fatal(self) -> str | None: ...
    @property
    def unfinished(self) -> int: ...
    def produce(self, output: Output, refused: Callable[[object, object], None]) -> None: ...
    def poll(self) -> None: ...
    def purge(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """How much may be under way, and how soon a refusal is tried again."""

    backlog_bytes_max: int
    backlog_records_max: int
    retry_s: float = 1.0
    hear_every_s: float = 0.004
    give_up_s: float = 15.0  # without one, though the brokers answer: another producer
    patience_s: float = 5.0  # without an acknowledgement: say so


class Publisher:
    """The outputs of finished records, on their way to Kafka.

    Owned by the poll thread. A batch is open while outputs are produced into it;
    closing, it takes nothing more until every delivery report is there; then its
    records are settled, but for those that Kafka refused. A topic that refused one is
    left alone for a while, and what is for it waits, in order; other topics' go on.
    Reports are heard only then, and not at every turn: for each of them the client gives
    the interpreter's lock away and asks for it back.
    """

    def __init__(self, make: Callable[[], Producer], policy: PublishPolicy) -> None:
        self._make = make
        self._policy = policy
        self._producer = make()
        self._waiting: deque[Record] = deque()
        self._begun: Record | None = None  # which the queue had room for in part
        self._sent = 0  # so many of its outputs are out
        self._batch: list[Record] = []
        self._closing = False
        self._closing_since = 0.0
        self._hear_at = 0.0
        self._shunned: dict[str, float] = {}  # topics that refused, until when
        self._refused: deque[Record] = deque()  # what is for them
        self._not_before = 0.0
        self._backlog_bytes = 0
        self._silence = ""
        self._troubles: dict[str, str] = {}
        self.published = 0

    def add(self, records: Collection[Record]) -> None:
        """Takes over records whose outcomes are lists of outputs."""
        total = 0
        for record in records:
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            size = _OBJECT_BYTES * len(outputs)
            for output in outputs:
                size += output.size
            # What it was is not needed any more; what it became is what it weighs.
            record.raw = SPENT
            record.size = size
            total += size
        self._waiting.extend(records)
        self._backlog_bytes += total

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._waiting and not self._batch and not self._refused

    @property
    def pending(self) -> int:
        """Records handed over and not settled."""
        return len(self._waiting) + len(self._batch) + len(self._refused)

    @property
    def troubles(self) -> list[str]:
        """Why something waits, a line each."""
        told = [f"{topic}: {trouble}" for topic, trouble in self._troubles.items()]
        return [*told, *filter(None, [self._silence])]

    @property
    def full(self) -> bool:
        """So much is pending that no more records should be taken."""
        return (
            self._backlog_bytes >= self._policy.backlog_bytes_max
            or self.pending >= self._policy.backlog_records_max
        )

    @property
    def closing(self) -> bool:
        """The batch waits for its acknowledgements."""
        return self._closing

    def close_batch(self, now: float) -> None:
        """From now on the batch only waits for its acknowledgements."""
        if self._batch and not self._closing:
            self._closing, self._closing_since = True, now

    def turn(self, now: float) -> list[Record]:
        """Produces what it may, hears what was acknowledged. Never waits.

        Returns the records all of whose outputs are in Kafka.
        """
        if not self._closing and now >= self._not_before:
            self._produce(now)
        if now < self._hear_at or (self._batch and not self._closing):
            return []
        self._hear_at = now + self._policy.hear_every_s
        self._producer.poll()
        if self._producer.fatal:
            self._replace(now, self._producer.fatal)
        elif self._closing and not self._producer.unfinished:
            return self._finish(now)
        elif self._closing and now - self._closing_since > self._policy.patience_s:
            self._silence = f"no acknowledgement for {now - self._closing_since:.0f} s"
        return []

    def brokers_answer(self, now: float) -> None:
        """Others hear from the brokers; a producer that does not will not any more.

        Its library can lose a partition's leader over a broker's restart, for good.
        """
        if self._closing and now - self._closing_since > self._policy.give_up_s:
            self._replace(now, "no acknowledgement, though the brokers answer")

    def _produce(self, now: float) -> None:
        if self._shunned:
            self._try_again(now)
        waiting, batch, produce = self._waiting, self._batch, self._producer.produce
        for _ in range(min(PRODUCE_MOST, len(waiting))):
            record = waiting[0]
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            if self._shunned and any(output.topic in self._shunned for output in outputs):
                self._refused.append(waiting.popleft())
                continue
            # One that another got ahead of begins anew.
            sent = self._sent if record is self._begun else 0
            try:
                for output in outputs[sent:] if sent else outputs:
                    produce(output, record)
                    sent += 1
            except QueueFull:
                self._begun, self._sent = record, sent
                self.close_batch(now)
                return
            except Refused as refused:
                self._shun(outputs[sent].topic, str(refused), now)
                self._refused.append(waiting.popleft())
                self.close_batch(now)
                continue
            batch.append(waiting.popleft())
            self.published += sent
        self._begun = None

    def _shun(self, topic: str, why: str, now: float) -> None:
        self._troubles[topic] = why
        self._shunned[topic] = now + self._policy.retry_s

    def _try_again(self, now: float) -> None:
        """What a topic refused, when it has been left alone for long enough."""
        if due := {topic for topic, until in self._shunned.items() if now >= until}:
            for topic in due:
                del self._shunned[topic]
            self._waiting.extendleft(reversed(self._refused))
            self._refused.clear()

    def _finish(self, now: float) -> list[Record]:
        settled = [record for record in self._batch if record.refusal is None]
        refused = [record for record in self._batch if record.refusal is not None]
        self._batch = []
        self._closing = False
        self._silence = ""
        if self._troubles:
            self._forget_troubles(settled)
        for record in refused:
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            # Which of several it was, the report does not tell; they come together again.
            self._shun(outputs[0].topic, str(record.refusal), now)
            record.refusal = None
        self._refused.extendleft(reversed(refused))
        self._backlog_bytes -= sum([record.size for record in settled])
        return settled

    def _forget_troubles(self, settled: list[Record]) -> None:
        for record in settled:
            outputs: list[Output] = record.outcome  # type: ignore[assignment]
            for output in outputs:
                self._troubles.pop(output.topic, None)

    def _replace(self, now: float, why: str) -> None:
        """A producer that can write no more: all that it had is written again by another."""
        self._silence = f"producer replaced: {why}"
        self._not_before = now + self._policy.retry_s
        self._producer.purge()
        self._producer.poll()
        self._waiting.extendleft(reversed(self._batch))
        for record in self._batch:
            record.refusal = None
        self._batch = []
        self._begun = None
        self._closing = False
        self._producer = self._make()
