"""Outcomes that wait to be written."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NamedTuple

from kworker.clients.errors import KafkaRequestError, Oversized
from kworker.core.record import Partition, Record, pack
from kworker.worker.publish.refusals import Refusals, alone, outputs_of, without
from kworker.worker.topic_limits import TopicLimits

_OBJECT_BYTES = 600  # what an output and its record cost beside the payload


@dataclass(frozen=True, slots=True)
class OutboxPolicy:
    """Limits of what may wait, and the delays before a refused output is tried again."""

    bytes_max: int
    records_max: int
    retry_s: float = 1.0
    retry_letter_s: float = 10.0  # a dead letter that its topic refused for good


class Undeliverable(NamedTuple):
    """A record with an output that its topic never takes; `again`: it was held for that."""

    record: Record
    topic: str
    why: str
    again: bool = False


class Outbox:
    """The outputs of finished records, until they are in Kafka.

    Owned by the poll thread. A record that is pending is in exactly one place: in a container of
    the outbox, all of which `__iter__` knows; among the `undeliverable`, until the poll loop
    decides; in the batch that is being produced; or in a transaction in doubt. What a topic
    refused waits among the refusals, and holds up no other topic's.
    """

    def __init__(self, policy: OutboxPolicy, limits: TopicLimits | None = None) -> None:
        """Without `limits` a record is too large only when its topic has said so."""
        self.policy = policy
        self.pending = 0  # records handed over and not settled
        self.undeliverable: list[Undeliverable] = []  # still pending; for `let_go`, or for `hold`
        self.waiting: deque[Record] = deque()  # in the order in which they are written
        self.refusals = Refusals(policy.retry_s, limits := limits or TopicLimits([]))
        self._held: list[Undeliverable] = []
        self._large: list[Record] = []  # wait for the brokers to tell the limits
        self._large_since = 0  # the answers by then
        self._bytes = 0
        self._limits = limits
        self._measured = limits.version
        self._tried_again: frozenset[Record] = frozenset()  # of those held
        self._try_held_at = inf

    def __iter__(self) -> Iterator[Record]:
        """All records that wait here, in whatever container."""
        held = (letter.record for letter in self._held)
        return chain(self.waiting, self.refusals, held, self._large)

    def add(self, records: Collection[Record]) -> None:
        """Takes over records whose outcomes are `Publishable`."""
        total = 0
        plain = []
        for record in records:
            size = 0
            for output in outputs_of(record):
                size += _OBJECT_BYTES + output.size
                if type(output.own) is bytes:
                    plain.append(record)
            record.output_bytes = size
            # The record itself is kept, too, for what it became may be refused.
            total += size + record.memory_bytes
        pack(plain)
        self.waiting.extend(records)
        self.pending += len(records)
        self._bytes += total

    def add_large(self, records: list[Record]) -> None:
        """Takes over records with outputs over the limit of a topic, as far as that is known.

        They wait until the brokers have told the limit.
        """
        self.add(records)
        for record in records:
            self.waiting.remove(record)
        self._large += map(alone, records)
        self._large_since = self._limits.answers
        self._limits.stale = True

    @property
    def full(self) -> bool:
        """True if so much is pending that no more records should be taken."""
        return self._bytes >= self.policy.bytes_max or self.pending >= self.policy.records_max

    @property
    def problems(self) -> list[str]:
        """Reasons of topics for refusing outputs, a line each."""
        return [f"{topic}: {problem}" for topic, problem in self.refusals.problems.items()]

    @property
    def held(self) -> list[Undeliverable]:
        """Letters that their topic refused for good: they wait, and hold up no other."""
        return self._held

    def is_ready(self) -> bool:
        """True if something waits that may be written now."""
        return not all(map(self.refusals.blocks, self.waiting))

    def update(self, now: float) -> None:
        """Moves what may be written by now to the front of what waits."""
        if self._large and self._large_since != self._limits.answers:
            self.waiting.extend(self._large)
            self._large = []
            self._measure(now)
        elif self._measured != self._limits.version:
            self._measure(now)
        if now >= self._try_held_at:
            self._try_held_at = inf
            self._tried_again = frozenset(letter.record for letter in self._held)
            self.waiting.extendleft(self._tried_again)
            self._held = []
        self.waiting.extendleft(reversed(self.refusals.next(now)))

    def _measure(self, now: float) -> None:
        """Limits have changed: a record over one of them is not tried."""
        self._measured = self._limits.version
        for record in [*self.waiting, *self.refusals]:
            over = next((o for o in outputs_of(record) if not self._limits.fits(o)), None)
            if over is not None:
                most = self._limits.max_bytes(over.topic)
                why = f"it has up to {over.size} bytes, and {most} are the limit"
                self._condemn(record, over.topic, why)
        self._remove({each.record for each in self.undeliverable})
        if self._held:
            self._try_held_at = now

    # -- what Kafka refused -----------------------------------------------------------

    def block_first(self) -> None:
        """The first that waits is for a topic that backs off: it waits for that."""
        self.refusals.wait(self.waiting.popleft())

    def first_refused(
        self, topic: str, refused: KafkaRequestError, under_way: Collection[Record], now: float
    ) -> None:
        """The client knows already that the first that waits cannot be written.

        Records that the client took before that are `under_way`.
        """
        record = self.waiting.popleft()
        if isinstance(refused, Oversized):
            self._remove({record})
            self._condemn(record, topic, str(refused))
        else:
            moved = self.refusals.refused_at_once(record, topic, str(refused), under_way, now)
            self.waiting = deque(without(self.waiting, set(moved)))

    def returned(self, records: list[Record], now: float) -> None:
        """Takes back records that were under way, in this order, and are not in Kafka.

        Delivery reports may say why.
        """
        again, verdicts = self.refusals.sort_out(records, now)
        for verdict in verdicts:
            self._condemn(*verdict)
        gone = {*self.refusals, *(each.record for each in self.undeliverable)}
        self.waiting = deque(without(chain(again, self.waiting), gone))

    def put_back(self, records: list[Record]) -> None:
        """Takes back records that were under way, to be written before all others."""
        for record in records:
            record.failed_deliveries = ()
        self.waiting.extendleft(reversed(records))

    def isolate_topic(self, records: list[Record], why: str, now: float) -> None:
        """One of these records is for a topic that takes nothing, and it is not known which."""
        moved = self.refusals.isolate_topic(records, why, now)
        self.waiting = deque(without(self.waiting, set(moved)))

    def _condemn(self, record: Record, topic: str, why: str) -> None:
        self.undeliverable.append(Undeliverable(record, topic, why, record in self._tried_again))

    def write(self, record: Record) -> None:
        """Takes back an undeliverable record whose outputs are others now."""
        self.waiting.appendleft(record)

    def hold(self, letters: list[Undeliverable], now: float) -> None:
        """Keeps undeliverable letters, of which nothing else can be made, and tries them later."""
        self._held += letters
        self._try_held_at = now + self.policy.retry_letter_s

    # -- what waits no more -----------------------------------------------------------

    def withdraw(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Returns, of what waits among the refusals, what is not to be written."""
        found = [record for record in self.refusals if wanted(record)]
        self._remove(set(found))
        return found

    def drop(self, partition: Partition) -> list[Record]:
        """Returns what waits of a partition: it is another member's to publish."""
        if going := [record for record in self if record.partition is partition]:
            self._remove(set(going))
            self._large = [record for record in self._large if record.partition is not partition]
            self._held = [each for each in self._held if each.record.partition is not partition]
            self.let_go(going)
        return going

    def let_go(self, records: list[Record]) -> None:
        """Pends no longer: records of another member, or undeliverable ones."""
        self._count_out(records)
        for record in records:
            record.unpack()

    def settled(self, records: list[Record]) -> None:
        """Pends no longer: records that are in Kafka."""
        self._count_out(records)
        if records:
            self.refusals.settled(records)

    def _count_out(self, records: list[Record]) -> None:
        self.pending -= len(records)
        self._bytes -= sum([record.output_bytes + record.memory_bytes for record in records])
        if not self.pending:
            self.refusals.problems.clear()  # nothing waits for those topics any more
        self.refusals.forget(records)

    def _remove(self, records: Collection[Record]) -> None:
        """Takes records out of where they wait to be written; they are still pending."""
        if records:
            self.waiting = deque(without(self.waiting, records))
            self.refusals.remove(records)
