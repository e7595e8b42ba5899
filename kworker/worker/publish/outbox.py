"""Outcomes that wait to be written."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any

from kworker.clients.errors import KafkaRequestError, Oversized
from kworker.core.chunk import ChunkPart
from kworker.core.outcome import PlainResult
from kworker.core.record import Partition, Record, pack
from kworker.worker.publish.outbox_policy import OutboxPolicy
from kworker.worker.publish.refusals import Refusals
from kworker.worker.publish.result_block import OBJECT_BYTES, ResultBlock
from kworker.worker.publish.selection import alone, without
from kworker.worker.publish.undeliverable import Undeliverable
from kworker.worker.topic_limits import TopicLimits


class Outbox:
    """The outputs of finished records, until they are in Kafka.

    Owned by the poll thread. A record is pending from `add` until its outputs are in Kafka, or
    `let_go` gives it up. A pending record is in exactly one place: in one of the containers that
    `__iter__` covers; in `undeliverable`, until the poll loop decides about the record; in the
    batch that is being produced; or in a transaction of which it is unknown whether it was
    committed. One of the containers is `refusals`, with the records that have an output which its
    topic refused for now. They do not delay records whose outputs go to other topics.

    Records may wait in blocks, behind all in `waiting`. What has to look at single records first
    calls `break_up`.
    """

    def __init__(self, policy: OutboxPolicy, limits: TopicLimits | None = None) -> None:
        """Without `limits`, no output counts as too large until its topic has refused it."""
        self.policy = policy
        self.pending = 0  # records handed over and not settled
        self.undeliverable: list[Undeliverable] = []  # still pending; for `let_go`, or for `hold`
        self.waiting: deque[Record] = deque()  # in the order in which they are written
        self.blocks: deque[ResultBlock] = deque()  # after these
        limits = limits or TopicLimits([])
        self.refusals = Refusals(policy.retry_s, policy.retry_silent_s, limits)
        # Told of records that do not go to Kafka in their order.
        self.overtaken: Callable[[Iterable[Record]], None] = lambda _: None
        self._held: list[Undeliverable] = []
        self._large: list[Record] = []  # wait for the brokers to tell the limits
        self._large_since = 0  # the answers by then
        self._bytes = 0
        self._limits = limits
        self._measured = limits.version
        self._tried_again: frozenset[Record] = frozenset()  # of those held
        self._try_held_at = inf

    def __iter__(self) -> Iterator[Record]:
        """Iterates over the records in `waiting`, `refusals` and `held`, and the too large ones.

        Once each: one that is tried for one topic may be in the search of another.
        """
        self.break_up()
        held = (letter.record for letter in self._held)
        return iter(dict.fromkeys(chain(self.waiting, self.refusals, held, self._large)))

    def unsent(self) -> list[Record]:
        """Returns the pending records that are in no batch and in no transaction."""
        return [*self, *(each.record for each in self.undeliverable)]

    def add(self, records: Collection[Record]) -> None:
        """Takes over records whose outcomes are `Publishable`."""
        self.break_up()  # these come after them
        total = 0
        plain = []
        for record in records:
            outcome: Any = record.outcome
            if type(outcome) is PlainResult:
                size = OBJECT_BYTES + outcome.size
                if not record.raw.headers():  # they would be lost
                    plain.append(record)
            else:
                size = sum([OBJECT_BYTES + output.size for output in outcome])
            record.output_bytes = size
            # The record itself is kept, too, for what it became may be refused.
            total += size + record.memory_bytes
        pack(plain)
        self.waiting.extend(records)
        self.pending += len(records)
        self._bytes += total

    def add_parts(self, parts: Iterable[ChunkPart]) -> None:
        """Takes over records of parts of chunks, in blocks."""
        for block in map(ResultBlock.of, parts):
            self.blocks.append(block)
            self.pending += len(block)
            self._bytes += block.bytes

    def break_up(self) -> None:
        """Turns the blocks that wait into records in `waiting`."""
        while self.blocks:
            self.waiting.extend(self.blocks.popleft().records())

    @property
    def number_waiting(self) -> int:
        """The number of records in `waiting` and in blocks."""
        return len(self.waiting) + sum(map(len, self.blocks))

    def add_large(self, records: list[Record]) -> None:
        """Takes over records with outputs that exceed the last known limit of their topic.

        They wait until the brokers have told the limits again.
        """
        self.add(records)
        for record in records:
            self.waiting.remove(record)
        self.overtaken(records)
        self._large += map(alone, records)
        self._large_since = self._limits.answers
        self._limits.stale = True

    @property
    def full(self) -> bool:
        """True if so much is pending that no more records should be taken from Kafka."""
        return self._bytes >= self.policy.bytes_max or self.pending >= self.policy.records_max

    @property
    def problems(self) -> list[str]:
        """One line for each topic that refuses outputs, with its reason."""
        return [f"{topic}: {problem}" for topic, problem in self.refusals.problems.items()]

    @property
    def held(self) -> list[Undeliverable]:
        """The retries and dead letters that topics refuse for good. They delay no other records."""
        return self._held

    def is_ready(self) -> bool:
        """Returns True if the outputs of any waiting record may be written now."""
        if self.refusals.backing_off:
            self.break_up()
        return bool(self.blocks) or not all(map(self.refusals.blocks, self.waiting))

    def update(self, now: float) -> None:
        """Moves records back to `waiting` if they may be tried again now.

        A record may be tried again when the back-off after its refusal is over. A record that was
        too large may be tried again when the brokers have told the size limits again.
        """
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
        if first := dict.fromkeys(self.refusals.next(now)):  # some may wait for another topic, too
            self.waiting = deque([*first, *without(self.waiting, first)])

    def _measure(self, now: float) -> None:
        """Moves records to `undeliverable` if an output exceeds the present limit of its topic.

        These outputs would be refused, so they are not sent.
        """
        self._measured = self._limits.version
        self.break_up()
        for record in dict.fromkeys(chain(self.waiting, self.refusals)):
            over = next((o for o in record.outputs if not self._limits.fits(o)), None)
            if over is not None:
                most = self._limits.max_bytes(over.topic)
                why = f"it has up to {over.size} bytes, and {most} are the limit"
                self._condemn(record, over.topic, why)
        self._remove({each.record for each in self.undeliverable})
        if self._held:
            self._try_held_at = now

    # -- what Kafka refused -----------------------------------------------------------

    def block_first(self) -> None:
        """Moves the first record of `waiting` to `refusals`, because its topic backs off."""
        record = self.waiting.popleft()
        self.overtaken([record])
        self.refusals.wait(record)

    def first_refused(
        self, topic: str, refused: KafkaRequestError, under_way: Collection[Record], now: float
    ) -> None:
        """Removes the first record from `waiting`, because the client refused to send it.

        If its output is too large, the record becomes undeliverable. If not, `topic` backs off, and
        the record waits in `refusals`. `under_way` are records that the client accepted before.
        """
        record = self.waiting.popleft()
        if isinstance(refused, Oversized):
            self._remove({record})
            self._condemn(record, topic, str(refused))
        else:
            moved = self.refusals.refused_at_once(record, topic, str(refused), under_way, now)
            self.overtaken(moved)
            self.waiting = deque(without(self.waiting, set(moved)))

    def returned(self, records: list[Record], now: float, *, silence: bool = False) -> None:
        """Takes back records that were sent, in the order of sending, to be written before others.

        They are not in Kafka, or it is unknown whether they are. If a record has failed delivery
        reports, these tell why it is not in Kafka. With `silence`, the client gave up outputs that
        were not acknowledged, although the brokers answered other clients. Then the topics of these
        outputs back off.
        """
        self.overtaken(records)
        if silence:
            self.refusals.silent(records, now)
        again, verdicts = self.refusals.sort_out(records, now)
        for verdict in verdicts:
            self._condemn(*verdict)
        gone = {*self.refusals, *(each.record for each in self.undeliverable)}
        self.waiting = deque(without(chain(again, self.waiting), gone))

    def isolate_topic(self, records: list[Record], why: str, now: float) -> None:
        """Stops writing to topics for a while, after a failure that one of them has caused.

        These are the topics of `records`. If there is only one topic, it is the cause, and backs
        off. If there are several topics, the cause is unknown. Then all topics but the first back
        off, so that the first is tried alone.
        """
        moved = self.refusals.isolate_topic(records, why, now)
        self.waiting = deque(without(self.waiting, set(moved)))

    def _condemn(self, record: Record, topic: str, why: str) -> None:
        self.overtaken([record])
        self.undeliverable.append(Undeliverable(record, topic, why, record in self._tried_again))

    def write(self, record: Record) -> None:
        """Takes back a record whose refused retry or dead letter was shortened.

        The record is to be written before all others.
        """
        self.waiting.appendleft(record)

    def hold(self, letters: list[Undeliverable], now: float) -> None:
        """Keeps retries and dead letters that their topics refuse, and tries them again later."""
        self._held += letters
        self._try_held_at = now + self.policy.retry_letter_s

    # -- what waits no more -----------------------------------------------------------

    def withdraw(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Removes and returns those records in `refusals` for which `wanted` returns True."""
        found = [record for record in self.refusals if wanted(record)]
        self._remove(set(found))
        return found

    def drop(self, partition: Partition) -> list[Record]:
        """Removes and returns the waiting records of a partition that is owned no more."""
        if going := [record for record in self if record.partition is partition]:
            self._remove(set(going))
            self._large = [record for record in self._large if record.partition is not partition]
            self._held = [each for each in self._held if each.record.partition is not partition]
            self.let_go(going)
        return going

    def let_go(self, records: list[Record]) -> None:
        """Counts records as no longer pending, though their outputs are not in Kafka.

        Either a topic refuses their outputs, or another member owns their partitions now.
        """
        self._count_out(records)
        for record in records:
            record.unpack()

    def settled(self, records: list[Record]) -> None:
        """Counts records as no longer pending, since all their outputs are in Kafka."""
        self._count_out(records)
        if records:
            self.refusals.settled(records)

    def settled_blocks(self, blocks: Iterable[ResultBlock]) -> None:
        """Does what `settled` does, with the records of blocks."""
        for block in blocks:
            self._subtract(len(block), block.bytes)
            self.refusals.settled_block(block)

    def _count_out(self, records: list[Record]) -> None:
        of_all = sum([record.output_bytes + record.memory_bytes for record in records])
        self._subtract(len(records), of_all)
        self.refusals.forget(records)

    def _subtract(self, number: int, of_all: int) -> None:
        self.pending -= number
        self._bytes -= of_all
        if not self.pending:
            self.refusals.problems.clear()  # nothing waits for those topics any more

    def _remove(self, records: Collection[Record]) -> None:
        """Removes records from `waiting` and `refusals`, but still counts them in `pending`."""
        if records:
            self.waiting = deque(without(self.waiting, records))
            self.refusals.remove(records)
