"""Commits: what is settled and owned, at most one under way."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.record import Partition

SettlingOffsets = Mapping[Partition, Collection[int]]
"""Offsets of records, by partition, that will be settled once what is sent is taken."""

_NOTHING: SettlingOffsets = {}


class Committing(Protocol):
    """What the committer needs of `KafkaConsumer` or its twin."""

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None: ...
    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """How often, or after how many records with an outcome."""

    interval_s: float
    records: int
    resting_s: float = 0.02  # with nothing in flight
    answer_s: float = 30.0  # without an answer for so long, another commit may go
    renew_s: float = 10.0  # after so long the group is told again what it was told


class Committer:
    """Which positions the group has, and when it is told the next.

    Owned by the poll thread. Positions are forgotten with the assignment: what another
    member may have committed since is not ours to know.
    """

    def __init__(self, consumer: Committing, policy: CommitPolicy) -> None:
        self._consumer = consumer
        self._policy = policy
        self._told: dict[PartitionId, Committed] = {}
        self._counts: dict[
            PartitionId, tuple[Committed, int]
        ] = {}  # sent last, and records settled in it
        self._told_counts: dict[PartitionId, int] = {}  # records settled in what the group took
        self._sent: dict[PartitionId, Committed] | None = None
        self._sent_at = 0.0
        self._last = 0.0
        self._renew_at = inf
        self.commits = 0
        self.problem: str | None = None

    def due(self, now: float, outcomes: int, *, resting: bool = False) -> bool:
        """Whether it is time to settle and commit, with `outcomes` since the last time.

        `resting`: nothing is in flight, so nothing is won by waiting for more.
        """
        return outcomes >= self._policy.records or now >= self.due_at(outcomes, resting=resting)

    def start_interval(self, now: float) -> None:
        """A settling began: the interval starts again."""
        self._last = now

    def due_at(self, outcomes: int, *, resting: bool = False) -> float:
        """When the present interval ends."""
        interval_s = self._policy.interval_s
        if resting and outcomes:
            interval_s = min(interval_s, self._policy.resting_s)
        return self._last + interval_s

    @property
    def under_way(self) -> bool:
        """Something that the group does not have yet; for the rest nobody waits."""
        return self._sent is not None and self._is_news(self._sent)

    def _is_news(self, positions: Mapping[PartitionId, Committed]) -> bool:
        return not positions.items() <= self._told.items()

    def know(self, at: PartitionId, held: Committed | None) -> None:
        """What the group holds when an assignment begins."""
        if held is None:
            self._told.pop(at, None)
        else:
            self._told[at] = held
            self._took(at, held)

    def forget(self, at: PartitionId) -> None:
        for held in (self._told, self._counts, self._told_counts):
            held.pop(at, None)

    def told(self, at: PartitionId) -> Committed | None:
        return self._told.get(at)

    def news(
        self,
        partitions: Iterable[Partition],
        settling: SettlingOffsets = _NOTHING,
    ) -> dict[PartitionId, Committed]:
        """Of open partitions, what the group does not have yet, once these are settled, too."""
        news: dict[PartitionId, Committed] = {}
        for partition in partitions:
            at = (partition.topic, partition.number)
            told = self._told.get(at)
            held = None
            if partition.open:
                offsets = settling.get(partition)
                held = partition.committed_after(offsets) if offsets else partition.committed()
            if held is not None and (told is None or _is_more(held, told)):
                news[at] = held
        return news

    def sending(
        self,
        sent: Mapping[PartitionId, Committed],
        partitions: Iterable[Partition],
        settling: SettlingOffsets = _NOTHING,
    ) -> None:
        """Counts the records that are settled once the group takes what is sent."""
        for partition in partitions:
            at = (partition.topic, partition.number)
            if at in sent:
                settled = partition.settled + len(settling.get(partition, ()))
                self._counts[at] = sent[at], settled

    def _took(self, at: PartitionId, held: Committed) -> None:
        if (counted := self._counts.get(at)) and counted[0] == held:
            self._told_counts[at] = counted[1]

    def uncommitted(self, partitions: Collection[Partition]) -> int:
        """Settled records of which the group could know, and does not."""
        behind = self.news(partitions).keys() | (self._sent or {}).keys()
        return sum(
            partition.settled - self._told_counts.get(at, 0)
            for partition in partitions
            if (at := (partition.topic, partition.number)) in behind
        )

    def commit(self, partitions: Collection[Partition], now: float) -> None:
        """Sends what is new, unless an answer is awaited; now and then the rest, too.

        For a request that the client gave up may come late, and the brokers take it: the
        position goes back, and of a partition that rests nothing new would mend that.
        """
        if self._sent is not None and now - self._sent_at < self._policy.answer_s:
            return
        renews = now >= self._renew_at
        sent = self.news(partitions)
        if renews:
            sent = self._told_of(partitions) | sent
        if not sent:
            return
        try:
            self._consumer.commit(sent)
        except KafkaRequestError as refused:
            if self._is_news(sent):
                self.problem = str(refused)
            return
        self._sent, self._sent_at = sent, now
        self.sending(sent, partitions)
        renew_at = now + self._policy.renew_s
        self._renew_at = renew_at if renews else min(self._renew_at, renew_at)

    def _told_of(self, partitions: Iterable[Partition]) -> dict[PartitionId, Committed]:
        ours = ((p.topic, p.number) for p in partitions if p.open)
        return {at: self._told[at] for at in ours if at in self._told}

    def commit_now(self, partitions: Collection[Partition]) -> None:
        """Before a partition is given up: waits for the answer, and does not fail."""
        if not (news := self.news(partitions)):
            return
        self.sending(news, partitions)
        try:
            self._consumer.commit_now(news)
        except KafkaRequestError as refused:
            # Uncommitted is delivered again, to whoever owns it next.
            self.problem = str(refused)
            return
        self.accept(news)

    def answered(self, error: str | None) -> None:
        """The answer to the commit under way. After an error the next interval tries again."""
        sent, self._sent = self._sent, None
        if error is None:
            if sent is not None:
                self.accept(sent)
        elif sent is None or self._is_news(sent):
            self.problem = error

    def accept(self, positions: Mapping[PartitionId, Committed]) -> None:
        """The group has them."""
        self.problem = None
        self.commits += 1
        for at, held in positions.items():
            told = self._told.get(at)
            if told is None or held.position >= told.position:
                self._told[at] = held
                self._took(at, held)


def _is_more(held: Committed, told: Committed) -> bool:
    """Another map at the same position counts."""
    if held.position != told.position:
        return held.position > told.position
    return held.metadata != told.metadata
