"""Commits the positions of owned partitions; at most one commit is under way."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.record import Partition

SettlingOffsets = Mapping[Partition, Collection[int]]
"""Offsets of records, by partition, that are settled once Kafka takes what is sent."""

_NOTHING: SettlingOffsets = {}


class Committing(Protocol):
    """The methods of `KafkaConsumer`, and of its in-memory twin, that the committer uses."""

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None: ...
    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """The settings of commits.

    A commit interval ends after `interval_s` seconds, or earlier, after `records` outcomes.
    """

    interval_s: float
    records: int
    resting_s: float = 0.02  # with nothing in flight
    answer_s: float = 30.0  # without an answer for so long, another commit may go
    renew_s: float = 10.0  # after so long unchanged positions are sent again


class Committer:
    """Commits positions, and remembers those that the group holds.

    Owned by the poll thread. When the assignment of a partition ends, its position is forgotten,
    since another member may commit a new one.
    """

    def __init__(self, consumer: Committing, policy: CommitPolicy) -> None:
        self._consumer = consumer
        self._policy = policy
        self._known: dict[PartitionId, Committed] = {}
        # What was sent last, and records settled in it.
        self._counts: dict[PartitionId, tuple[Committed, int]] = {}
        self._known_counts: dict[PartitionId, int] = {}  # records settled in what the group holds
        self._sent: dict[PartitionId, Committed] | None = None
        self._sent_at = 0.0
        self._last = 0.0
        self._renew_at = inf
        self._missed = False  # `commit` was called while a commit was under way
        self.commits = 0
        self.problem: str | None = None

    def due(self, now: float, outcomes: int, *, resting: bool = False) -> bool:
        """Returns True if it is time to commit.

        `outcomes` is the number of outcomes since the present commit interval began. `resting` is
        True if no record is in flight, so that no more outcomes are to be expected.
        """
        return outcomes >= self._policy.records or now >= self.due_at(outcomes, resting=resting)

    def start_interval(self, now: float) -> None:
        """Begins a new commit interval."""
        self._last = now

    def due_at(self, outcomes: int, *, resting: bool = False) -> float:
        """Returns the monotonic time at which the present commit interval ends."""
        interval_s = self._policy.interval_s
        if resting and outcomes:
            interval_s = min(interval_s, self._policy.resting_s)
        return self._last + interval_s

    @property
    def under_way(self) -> bool:
        """True if a commit that changes the group's positions was sent and is not answered yet."""
        return self._sent is not None and self._would_change(self._sent)

    @property
    def missed(self) -> bool:
        """True if `commit` was called while a commit was under way, which is answered now."""
        return self._missed and self._sent is None

    def _would_change(self, positions: Mapping[PartitionId, Committed]) -> bool:
        return not positions.items() <= self._known.items()

    def learn(self, at: PartitionId, held: Committed | None) -> None:
        """Notes the position that the group holds for a partition.

        `held` is None if the group holds no position for the partition.
        """
        if held is None:
            self._known.pop(at, None)
        else:
            self._known[at] = held
            self._took(at, held)

    def forget(self, at: PartitionId) -> None:
        for held in (self._known, self._counts, self._known_counts):
            held.pop(at, None)

    def known(self, at: PartitionId) -> Committed | None:
        return self._known.get(at)

    def to_commit(
        self,
        partitions: Iterable[Partition],
        settling: SettlingOffsets = _NOTHING,
    ) -> dict[PartitionId, Committed]:
        """Returns the position to commit for each open partition that has a new one.

        The records of `settling` count as settled already.
        """
        found: dict[PartitionId, Committed] = {}
        for partition in partitions:
            at = (partition.topic, partition.number)
            known = self._known.get(at)
            held = None
            if partition.open:
                offsets = settling.get(partition)
                held = partition.committed_after(offsets) if offsets else partition.committed()
            if held is not None and (known is None or _is_more(held, known)):
                found[at] = held
        return found

    def note_sent(
        self,
        sent: Mapping[PartitionId, Committed],
        partitions: Iterable[Partition],
        settling: SettlingOffsets = _NOTHING,
    ) -> None:
        """Notes how many settled records each position in `sent` covers.

        Once the group has accepted the positions, `uncommitted` uses these numbers.
        """
        for partition in partitions:
            at = (partition.topic, partition.number)
            if at in sent:
                settled = partition.settled + len(settling.get(partition, ()))
                self._counts[at] = sent[at], settled

    def _took(self, at: PartitionId, held: Committed) -> None:
        if (counted := self._counts.get(at)) and counted[0] == held:
            self._known_counts[at] = counted[1]

    def uncommitted(self, partitions: Collection[Partition]) -> int:
        """Returns the number of settled records that could be committed and are not."""
        behind = self.to_commit(partitions).keys() | (self._sent or {}).keys()
        return sum(
            partition.settled - self._known_counts.get(at, 0)
            for partition in partitions
            if (at := (partition.topic, partition.number)) in behind
        )

    def commit(self, partitions: Collection[Partition], now: float) -> None:
        """Sends changed positions, and unchanged ones every `CommitPolicy.renew_s` seconds.

        Sends nothing while the last commit has no answer, for `CommitPolicy.answer_s` at most.
        A commit that timed out in the client can still reach the broker and move a position back.
        For an idle partition, only a repeated commit corrects that. Unchanged positions wait up to
        a commit interval for changed ones, to go with them.
        """
        self._missed = self._sent is not None and now - self._sent_at < self._policy.answer_s
        if self._missed:
            return
        sent = self.to_commit(partitions)
        renews = now >= self._renew_at + (0.0 if sent else self._policy.interval_s)
        if renews:
            sent = self._known_of(partitions) | sent
        if not sent:
            return
        try:
            self._consumer.commit(sent)
        except KafkaRequestError as refused:
            if self._would_change(sent):
                self.problem = str(refused)
            return
        self._sent, self._sent_at = sent, now
        self.note_sent(sent, partitions)
        renew_at = now + self._policy.renew_s
        self._renew_at = renew_at if renews else min(self._renew_at, renew_at)

    def _known_of(self, partitions: Iterable[Partition]) -> dict[PartitionId, Committed]:
        ours = ((p.topic, p.number) for p in partitions if p.open)
        return {at: self._known[at] for at in ours if at in self._known}

    def commit_now(self, partitions: Collection[Partition]) -> None:
        """Commits the positions of partitions that will be given up, and waits for the answer.

        If the commit fails, sets `problem` and does not raise.
        """
        if not (sent := self.to_commit(partitions)):
            return
        self.note_sent(sent, partitions)
        try:
            self._consumer.commit_now(sent)
        except KafkaRequestError as refused:
            # Uncommitted is delivered again, to whoever owns it next.
            self.problem = str(refused)
            return
        self.accept(sent)

    def answered(self, error: str | None) -> None:
        """Ends the commit under way: notes its positions as held by the group, or the error.

        `error` is None if the commit succeeded. After an error, a later commit tries again.
        """
        sent, self._sent = self._sent, None
        if error is None:
            if sent is not None:
                self.accept(sent)
        elif sent is None or self._would_change(sent):
            self.problem = error

    def accept(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Notes that the group holds these positions."""
        self.problem = None
        self.commits += 1
        for at, held in positions.items():
            known = self._known.get(at)
            if known is None or held.position >= known.position:
                self._known[at] = held
                self._took(at, held)


def _is_more(held: Committed, known: Committed) -> bool:
    """Returns True if `held` has a higher position, or the same one with another offset map."""
    if held.position != known.position:
        return held.position > known.position
    return held.metadata != known.metadata
