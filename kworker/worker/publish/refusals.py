"""Topics that refused outputs and back off, and the records that wait for them."""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain
from math import inf
from typing import NamedTuple

from kworker.clients.delivery import DeliveryRefusal, Fault, refusal_of, unanswered
from kworker.core.record import Record
from kworker.worker.publish.refusal_search import RefusalSearch
from kworker.worker.publish.result_block import ResultBlock
from kworker.worker.publish.selection import alone, is_for, without
from kworker.worker.publish.silent_topics import NO_ANSWER, SilentTopics
from kworker.worker.topic_limits import TopicLimits


class Verdict(NamedTuple):
    """A record with an output that its topic refuses for good."""

    record: Record
    topic: str
    why: str


class Refusals:
    """The topics that refused outputs, and the records that wait for these topics.

    Owned by the outbox. A topic that refused an output backs off: nothing is written to it for a
    while, and its records wait here, in order. If a topic refused records as invalid or too large,
    a search tries ever fewer of them together, to find the records at fault. The records that the
    search is trying are in the outbox meanwhile.

    A record that is refused when it is tried alone is at fault, unless the topic itself seems to
    be. The topic seems to be at fault if it accepted records of the same kind (with or without a
    key) in the past, and has accepted nothing since the last record that was found at fault.
    """

    def __init__(self, retry_s: float, retry_silent_s: float, limits: TopicLimits) -> None:
        self.backing_off: dict[str, float] = {}  # topics, until when
        self.problems: dict[str, str] = {}  # by topic
        self._retry_s = retry_s
        self._silent = SilentTopics(retry_silent_s)
        self._limits = limits
        self._waiting: deque[Record] = deque()  # for topics that back off
        self._searches: dict[str, RefusalSearch] = {}  # by topic; one has a portion on trial
        self._portion: frozenset[Record] = frozenset()
        self._took: set[tuple[str, bool]] = set()  # topics; True if the key was null
        self._accused: set[str] = set()  # topics that took nothing since a verdict

    def __iter__(self) -> Iterator[Record]:
        """Iterates over all records that wait here, once each: two topics may search for one."""
        return iter(dict.fromkeys(chain(self._waiting, *self._searches.values())))

    def blocks(self, record: Record) -> bool:
        """Returns True if the record must wait, because one of its topics backs off.

        Returns False for a record that is being tried now, to find the records at fault.
        """
        if record in self._portion:
            return False
        return any(output.topic in self.backing_off for output in record.outputs)

    def next(self, now: float) -> list[Record]:
        """Removes and returns the records that may be written now, before all others.

        These are records whose topic's back-off is over, and the records to try next in the search
        for those at fault.
        """
        first: list[Record] = []
        if self._searches and not any(search.portion for search in self._searches.values()):
            first = self._next_portion(now)
        if due := {topic for topic, until in self.backing_off.items() if now >= until}:
            for topic in due:
                del self.backing_off[topic]
            first = [*self._waiting, *first]
            self._waiting.clear()
        return first

    def _next_portion(self, now: float) -> list[Record]:
        for topic, search in list(self._searches.items()):
            if search.over:
                del self._searches[topic]
                self.backing_off[topic] = now
                continue
            if search.wants_stranger:
                self._send_stranger(topic, search)
            if portion := search.begin(now):
                self._portion = frozenset(portion)
                self._leave_other_places(search)
                return portion
        return []

    def _leave_other_places(self, search: RefusalSearch) -> None:
        """Lets the records that `search` tries now be nowhere else here, so that each goes once.

        If another of their topics refuses them again, they come back to its search.
        """
        self._waiting = deque(without(self._waiting, self._portion))
        for other in self._searches.values():
            if other is not search:
                other.forget(self._portion)

    def _send_stranger(self, topic: str, search: RefusalSearch) -> None:
        stranger = next((r for r in self._waiting if is_for(r, topic)), None)
        if stranger is not None:
            self._waiting.remove(stranger)
            search.add([stranger])

    # -- what is refused --------------------------------------------------------------

    def wait(self, record: Record) -> None:
        """Keeps a record whose topic backs off, until `next` returns the record.

        Called for a record for which `blocks` returned True.
        """
        self._waiting.append(alone(record))

    def sort_out(self, records: list[Record], now: float) -> tuple[list[Record], list[Verdict]]:
        """Decides what to do with records that were sent, in this order, but are not in Kafka.

        Returns two lists. The first has candidates to write again. The second has the records that
        their topics refuse for good. The first list may name records that must not be written now:
        those of the second list, and those that wait in this object after the call. The caller must
        leave them out.
        """
        again: list[Record] = []
        later: list[Record] = []
        guilty: dict[str, dict[Record, DeliveryRefusal]] = {}
        for record in records:
            if not record.failed_deliveries:
                again.append(record)
                continue
            refusal = refusal_of(record.failed_deliveries)
            record.failed_deliveries = ()
            if refusal.fault is Fault.TOPIC:
                # Which of several it was is not looked for; they come together again.
                later += self._back_off(refusal.topic, refusal.text, now + self._retry_s)
                later.append(alone(record))
                continue
            if refusal.fault is Fault.RECORD:
                guilty.setdefault(refusal.topic, {})[record] = refusal
            again.append(record)
        verdicts: list[Verdict] = []
        for topic, refusals in guilty.items():
            verdicts += self._search(topic, refusals, again, now)
        # Once each: a record may have been in the search, too.
        self._waiting.extendleft(reversed(dict.fromkeys(later)))
        for record in chain.from_iterable(self._searches.values()):
            alone(record)
        return again, verdicts

    def refused_at_once(
        self, record: Record, topic: str, why: str, under_way: Collection[Record], now: float
    ) -> list[Record]:
        """Lets `topic` back off, and keeps `record`, which the client does not send to it.

        `under_way` are records that the client accepted before; their delivery reports will come.
        Returns all records that wait here because of this refusal.
        """
        ended = self._back_off(topic, why, now + self._retry_s)
        searched = without(ended, set(under_way))
        # The record may be in the portion of another topic, which would wait for it.
        self.remove({*searched, record})
        self._waiting.extendleft(reversed(searched))
        if record not in searched:
            self._waiting.append(alone(record))
        return [*searched, record]

    def isolate_topic(self, records: list[Record], why: str, now: float) -> list[Record]:
        """Stops writing to topics for a while, after a failure that one of them has caused.

        These are the topics of `records`. If there is only one topic, it is the cause, and backs
        off. If a search was looking for the records that this topic refuses, the search ends. Its
        records wait here from now on, and are returned, except those in `records`.

        If there are several topics, the cause is unknown. Then all topics but the first back off,
        so that the first is tried alone. The returned list is empty.
        """
        topics = list(dict.fromkeys(o.topic for record in records for o in record.outputs))
        searched: list[Record] = []
        if len(topics) == 1:
            searched = self._back_off(topics[0], why, now + self._retry_s)
            searched = self._keep(searched, set(records))
        for topic in topics[1:]:
            if topic not in self._searches:
                self.backing_off[topic] = now + self._retry_s
        return searched

    def silent(self, records: list[Record], now: float) -> None:
        """Stops writing to the topics that did not answer for outputs of these records.

        The client gave these outputs up before an answer came. If a search was looking for the
        records that such a topic refuses, the search ends. Its records wait here from now on,
        except those in `records`.
        """
        unheard = {r: topics for r in records if (topics := unanswered(r.failed_deliveries))}
        ended: list[Record] = []
        for topic in sorted(set[str]().union(*unheard.values())):
            ended += self._back_off(topic, NO_ANSWER, self._silent.noted(topic, now))
        self._keep(list(dict.fromkeys(ended)), set(records))
        # The search of another topic would write them at once, or wait for them.
        self.forget(unheard)
        self._portion = self._portion.difference(unheard)

    def _keep(self, ended: list[Record], under_way: Collection[Record]) -> list[Record]:
        """Lets records of an ended search wait here, except those `under_way`; returns them."""
        self.remove(set(ended))
        kept = without(ended, under_way)
        self._waiting.extendleft(reversed(kept))
        return kept

    def _back_off(self, topic: str, why: str, until: float) -> list[Record]:
        """Stops writing to a topic until the time `until`, because the topic is at fault.

        If a search was looking for the records that this topic refuses, ends the search, and
        returns its records.
        """
        self.problems[topic] = why
        self.backing_off[topic] = until
        if (search := self._searches.pop(topic, None)) is None:
            return []
        self._portion = self._portion.difference(search.portion)
        return [*search.portion, *search]

    def _search(
        self, topic: str, refusals: dict[Record, DeliveryRefusal], again: list[Record], now: float
    ) -> list[Verdict]:
        if any(refusal.sized for refusal in refusals.values()):
            self._limits.stale = True
        if topic not in self._searches:
            self._searches[topic] = RefusalSearch(r for r in again if is_for(r, topic))
            self.backing_off[topic] = inf
        search = self._searches[topic]
        if strangers := [record for record in refusals if record not in search.portion]:
            search.add(strangers)
        if (single := search.refused(refusals)) is None:
            return []
        return self._judge(single, search, topic, refusals[single], now)

    def _judge(
        self,
        record: Record,
        search: RefusalSearch,
        topic: str,
        refusal: DeliveryRefusal,
        now: float,
    ) -> list[Verdict]:
        """Decides whether a record that was tried alone and refused is at fault, or its topic.

        Returns a verdict if the record is at fault. If not, the search tries it again later.
        """
        null = any(output.key is None for output in record.outputs if output.topic == topic)
        usual = (topic, null) in self._took and not refusal.sized
        if usual and topic in self._accused and not search.took:
            search.doubt(record, now + self._retry_s)
            self.problems[topic] = f"{refusal.text}, though it took such records before"
            return []
        if usual:
            self._accused.add(topic)
        return [Verdict(record, topic, refusal.text)]

    # -- what waits no more -----------------------------------------------------------

    def remove(self, records: Collection[Record]) -> None:
        self._waiting = deque(without(self._waiting, records))
        self.forget(records)

    def forget(self, records: Collection[Record]) -> None:
        """Removes these records from all searches for records that topics refuse."""
        if self._searches:
            going = set(records)
            for search in self._searches.values():
                search.forget(going)

    def settled(self, records: list[Record]) -> None:
        """Notes that topics accept outputs, since all outputs of these records are in Kafka."""
        # One of many will do: it says what the topic takes.
        if last := next((record for record in reversed(records) if record.outcome), None):
            output = last.outputs[-1]
            self._took.add((output.topic, output.key is None))
        if self._doubts:
            for topic in {output.topic for record in records for output in record.outputs}:
                self.problems.pop(topic, None)
                self._accused.discard(topic)
                if search := self._searches.get(topic):
                    search.took = True

    def settled_block(self, block: ResultBlock) -> None:
        """Does what `settled` does, with the records of a block."""
        if self._doubts:
            self.settled(block.records())
        elif last := block.results.last():
            self._took.add((last.topic, last.key is None))

    @property
    def _doubts(self) -> bool:
        return bool(self.problems or self._accused or self._searches)
