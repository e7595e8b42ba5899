"""Outcomes that wait to be written, and what Kafka refused of them."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NamedTuple

from kworker.clients.delivery import DeliveryRefusal, Fault, refusal_of
from kworker.clients.errors import KafkaRequestError, Oversized
from kworker.core.outcome import Output, Publishable
from kworker.core.record import Partition, Record, pack
from kworker.worker.publish.refusal_search import RefusalSearch
from kworker.worker.topic_limits import TopicLimits

_OBJECT_BYTES = 600  # what an output and its record cost beside the payload


@dataclass(frozen=True, slots=True)
class OutboxPolicy:
    """How much may wait, and how soon a refusal is tried again."""

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

    Owned by the poll thread. A topic that refused one is left alone for a while, and what
    is for it waits, in order; other topics' go on. Of records that were refused as invalid or
    too large, those at fault are looked for and `condemned`, and the others go on. It is the
    topic's fault if it took such records before, and took none since one was condemned.
    """

    def __init__(self, policy: OutboxPolicy, facts: TopicLimits | None = None) -> None:
        """Without `facts` a record is too large only when its topic has said so."""
        self.policy = policy
        self.undeliverable: list[Undeliverable] = []  # still pending; for `let_go`, or for `hold`
        self.waiting: deque[Record] = deque()
        self.pending = 0  # records handed over and not settled
        self._refused: deque[Record] = deque()  # for topics that are left alone
        self.shunned: dict[str, float] = {}  # those topics, until when
        self._problems: dict[str, str] = {}
        self._bytes = 0
        self._facts = facts or TopicLimits([])
        self._measured = self._facts.version
        self._sieves: dict[str, RefusalSearch] = {}  # by topic; one of them has a portion under way
        self._portion: frozenset[Record] = frozenset()
        self._took: set[tuple[str, bool]] = set()  # topics; whether the key was null
        self._accused: set[str] = set()  # topics that took nothing since one was condemned
        self._held: list[Undeliverable] = []
        self._large: list[Record] = []  # wait for the brokers to tell the limits
        self._large_since = 0  # the answers by then
        self._tried_again: frozenset[Record] = frozenset()  # of those
        self._try_held_at = inf

    def add_large(self, records: list[Record]) -> None:
        """Records with outputs over a topic's limit: if that holds, they are condemned."""
        self.add(records)
        for record in records:
            self.waiting.remove(record)
        self._large += map(_alone, records)
        self._large_since = self._facts.answers
        self._facts.stale = True

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

    @property
    def full(self) -> bool:
        """So much is pending that no more records should be taken."""
        return self._bytes >= self.policy.bytes_max or self.pending >= self.policy.records_max

    @property
    def problems(self) -> list[str]:
        """What topics refuse, a line each."""
        return [f"{topic}: {trouble}" for topic, trouble in self._problems.items()]

    @property
    def held(self) -> list[Undeliverable]:
        """Letters that their topic refused for good: they wait, and hold up no other."""
        return self._held

    def shun(self, topic: str, why: str, now: float) -> None:
        """The topic is left alone for a while."""
        self._problems[topic] = why
        self.shunned[topic] = now + self.policy.retry_s

    def put_aside(self) -> None:
        """The first that waits is for a topic that is left alone."""
        self._refused.append(_alone(self.waiting.popleft()))

    def shun_but_one(self, records: list[Record], why: str, now: float) -> None:
        """One of these is for a topic that takes nothing, and nobody tells which.

        So all but one topic are left alone: it is that one if it happens again.
        """
        topics = list(dict.fromkeys(o.topic for record in records for o in outputs_of(record)))
        if len(topics) == 1:
            sifted = self._shunned_by(topics[0], why, now)
            self._remove(sifted)
            self._refused.extendleft(reversed([r for r in sifted if r not in records]))
        for topic in topics[1:]:
            if topic not in self._sieves:
                self.shunned[topic] = now + self.policy.retry_s

    def ready(self, now: float) -> bool:
        """Whether something waits that may be written now."""
        self.look(now)
        return not all(map(self.shuns, self.waiting))

    def shuns(self, record: Record) -> bool:
        """Whether it is for a topic that is left alone, and not just being sifted."""
        if record in self._portion:
            return False
        return any(output.topic in self.shunned for output in outputs_of(record))

    def look(self, now: float) -> None:
        """What a topic refused goes first, when it has been left alone for long enough."""
        if self._large and self._large_since != self._facts.answers:
            self.waiting.extend(self._large)
            self._large = []
            self._measure(now)
        elif self._measured != self._facts.version:
            self._measure(now)
        if now >= self._try_held_at:
            self._try_held_at = inf
            self._tried_again = frozenset(letter.record for letter in self._held)
            self.waiting.extendleft(self._tried_again)
            self._held = []
        if self._sieves and not any(sieve.portion for sieve in self._sieves.values()):
            self._sift(now)
        if due := {topic for topic, until in self.shunned.items() if now >= until}:
            for topic in due:
                del self.shunned[topic]
            self.waiting.extendleft(reversed(self._refused))
            self._refused.clear()

    # -- what Kafka refused -----------------------------------------------------------

    def returned(self, records: list[Record], now: float) -> None:
        """They were under way, in this order, and are not in Kafka: reports may say why."""
        again: list[Record] = []
        later: list[Record] = []
        guilty: dict[str, dict[Record, DeliveryRefusal]] = {}
        for record in records:
            if not record.refusals:
                again.append(record)
                continue
            refusal = refusal_of(record.refusals)
            record.refusals = ()
            if refusal.fault is Fault.TOPIC:
                # Which of several it was is not looked for; they come together again.
                later += self._shunned_by(refusal.topic, refusal.text, now)
                later.append(_alone(record))
                continue
            if refusal.fault is Fault.RECORD:
                guilty.setdefault(refusal.topic, {})[record] = refusal
            again.append(record)
        for topic, refusals in guilty.items():
            self._refused_by(topic, refusals, again, now)
        gone = {*later, *(each.record for each in self.undeliverable)}
        gone.update(map(_alone, chain.from_iterable(self._sieves.values())))
        self.waiting = deque(r for r in chain(again, self.waiting) if r not in gone)
        # Once each: it was found by its sieve, too.
        self._refused.extendleft(reversed(dict.fromkeys(later)))

    def _shunned_by(self, topic: str, why: str, now: float) -> list[Record]:
        """It is the topic's fault: what was sifted of it waits as well."""
        sieve = self._sieves.pop(topic, None)
        self.shun(topic, why, now)
        return [] if sieve is None else [*sieve.portion, *sieve]

    def _refused_by(
        self, topic: str, refusals: dict[Record, DeliveryRefusal], again: list[Record], now: float
    ) -> None:
        if any(refusal.sized for refusal in refusals.values()):
            self._facts.stale = True
        if topic not in self._sieves:
            self._sieves[topic] = RefusalSearch(r for r in again if _is_for(r, topic))
            self.shunned[topic] = inf
        sieve = self._sieves[topic]
        if strangers := [record for record in refusals if record not in sieve.portion]:
            sieve.add(strangers)
        if (alone := sieve.refused(refusals)) is not None:
            self._judge(alone, sieve, topic, refusals[alone], now)

    def _judge(
        self, record: Record, sieve: RefusalSearch, topic: str, refusal: DeliveryRefusal, now: float
    ) -> None:
        """It was refused alone."""
        null = any(output.key is None for output in outputs_of(record) if output.topic == topic)
        usual = (topic, null) in self._took and not refusal.sized
        if usual and topic in self._accused and not sieve.took:
            sieve.doubt(record, now + self.policy.retry_s)
            self._problems[topic] = f"{refusal.text}, though it took such records before"
            return
        if usual:
            self._accused.add(topic)
        self._condemn(record, topic, refusal.text)

    def _condemn(self, record: Record, topic: str, why: str) -> None:
        self.undeliverable.append(Undeliverable(record, topic, why, record in self._tried_again))

    def _sift(self, now: float) -> None:
        """The next portion of what a topic refused."""
        for topic, sieve in list(self._sieves.items()):
            if sieve.over:
                del self._sieves[topic]
                self.shunned[topic] = now
                continue
            if sieve.wants_stranger:
                self._send_stranger(topic, sieve)
            if portion := sieve.begin(now):
                self.waiting.extendleft(reversed(portion))
                self._portion = frozenset(portion)
                return

    def _send_stranger(self, topic: str, sieve: RefusalSearch) -> None:
        stranger = next((r for r in self._refused if _is_for(r, topic)), None)
        if stranger is not None:
            self._refused.remove(stranger)
            sieve.add([stranger])

    def _measure(self, now: float) -> None:
        """Limits are others now: what is over them need not be tried."""
        self._measured = self._facts.version
        aside = chain(self._refused, *self._sieves.values())
        for record in [*self.waiting, *aside]:
            over = next((o for o in outputs_of(record) if not self._facts.fits(o)), None)
            if over is not None:
                most = self._facts.max_bytes(over.topic)
                why = f"it has up to {over.size} bytes, and {most} are the limit"
                self._condemn(record, over.topic, why)
        self._remove({each.record for each in self.undeliverable})
        if self._held:
            self._try_held_at = now

    def first_refused(
        self, topic: str, refused: KafkaRequestError, under_way: Collection[Record], now: float
    ) -> None:
        """The client knows already that the first that waits cannot be written.

        What it took before that is `under_way`, and stays so: its reports will come.
        """
        record = self.waiting.popleft()
        if isinstance(refused, Oversized):
            self._remove({record})
            self._condemn(record, topic, str(refused))
        else:
            sifted = _without(self._shunned_by(topic, str(refused), now), set(under_way))
            # It may be in the portion of another topic, which would wait for it.
            self._remove({*sifted, record})
            self._refused.extendleft(reversed(sifted))
            if record not in sifted:
                self._refused.append(_alone(record))

    def write(self, record: Record) -> None:
        """It was condemned, and its outputs are others now."""
        self.waiting.appendleft(record)

    def hold(self, letters: list[Undeliverable], now: float) -> None:
        """Of these condemned nothing else can be made: they wait, and are tried now and then."""
        self._held += letters
        self._try_held_at = now + self.policy.retry_letter_s

    def withdraw(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Of what is left alone for now, or sifted: it is not to be written."""
        aside = chain(self._refused, *self._sieves.values())
        found = [record for record in aside if wanted(record)]
        self._remove(set(found))
        return found

    def _remove(self, records: Collection[Record]) -> None:
        """From wherever they wait; they are still pending."""
        if records:
            self.waiting = _without(self.waiting, records)
            self._refused = _without(self._refused, records)
            for sieve in self._sieves.values():
                sieve.forget(records)

    def put_back(self, records: list[Record]) -> None:
        """They were under way, and come again, before all others."""
        for record in records:
            record.refusals = ()
        self.waiting.extendleft(reversed(records))

    # -- what waits no more -----------------------------------------------------------

    def drop(self, partition: Partition) -> list[Record]:
        """What waits of a partition is another's to publish: those records."""
        aside = chain(self._refused, *self._sieves.values())
        held = (letter.record for letter in self._held)
        every = chain(self.waiting, aside, held, self._large)
        if going := [record for record in every if record.partition is partition]:
            self._remove(set(going))
            self._large = [record for record in self._large if record.partition is not partition]
            self._held = [each for each in self._held if each.record.partition is not partition]
            self.let_go(going)
        return going

    def let_go(self, records: list[Record]) -> None:
        """They were under way, and are another's to publish; or they were condemned."""
        self._count_out(records)
        for record in records:
            record.unpack()

    def _count_out(self, records: list[Record]) -> None:
        self.pending -= len(records)
        self._bytes -= sum([record.output_bytes + record.memory_bytes for record in records])
        if not self.pending:
            self._problems.clear()  # nothing waits for those topics any more
        for sieve in self._sieves.values():
            sieve.forget(set(records))

    def settled(self, records: list[Record]) -> None:
        """They are in Kafka."""
        self._count_out(records)
        if not records:
            return
        # One of many will do: it tells what the topic takes.
        last = outputs_of(records[-1])[-1]
        self._took.add((last.topic, last.key is None))
        if self._problems or self._accused or self._sieves:
            for topic in {output.topic for record in records for output in outputs_of(record)}:
                self._problems.pop(topic, None)
                self._accused.discard(topic)
                if sieve := self._sieves.get(topic):
                    sieve.took = True


def _without(records: Iterable[Record], going: Collection[Record]) -> deque[Record]:
    return deque(record for record in records if record not in going)


def _alone(record: Record) -> Record:
    """It may wait for long, and must not keep the values of those that came with it."""
    record.unpack()
    return record


def _is_for(record: Record, topic: str) -> bool:
    return any(output.topic == topic for output in outputs_of(record))


def outputs_of(record: Record) -> Sequence[Output]:
    assert isinstance(record.outcome, Publishable)
    return record.outcome.outputs
