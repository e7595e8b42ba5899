"""Transactions whose end is not known, and fencings by other processes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kworker.clients.errors import Fenced, KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, Settled
from kworker.core.record import Partition, Record


class FencedByTwin(Fenced):
    """Another process has too often taken over the transactional id that this one uses."""


@dataclass(frozen=True, slots=True)
class InDoubtTransaction:
    """A transaction of which it is unknown whether it was committed.

    `records` are the records whose outputs are in the transaction. `sent` has the positions that
    were sent in the transaction. `begun_at` is None if its begin has failed; then `sent` has the
    positions of the previous transaction. With `silence`, this worker gave the transaction up
    because some outputs were not acknowledged, although the brokers answered other clients.
    """

    records: Sequence[Record]
    sent: Mapping[PartitionId, Committed]
    begun_at: float | None
    silence: bool = False

    @property
    def partitions(self) -> set[PartitionId]:
        """The partitions whose positions must be read to learn if the transaction was committed."""
        return {*self.sent, *map(_at, self.records)}

    @property
    def may_be_committed(self) -> bool:
        """False if no positions were sent, so that no commit was requested."""
        return bool(self.sent)

    def was_committed(self, held: Mapping[PartitionId, Committed | None]) -> bool:
        """Returns True if the present positions of the group, `held`, show that it was committed.

        May return False for a committed transaction, if other members have since committed new
        positions for all of its partitions.
        """
        return any(held.get(at) == positions for at, positions in self.sent.items())

    def resolved(
        self, held: Mapping[PartitionId, Committed | None]
    ) -> tuple[list[Record], list[Record]]:
        """Returns two lists: the records that were committed, and those that were not.

        `held` has the group's present position for each partition. A record was committed if the
        present position of its partition is the one that the transaction sent. A record was
        also committed if the present position, or its offset map, covers the record: the
        partition's next owner may have committed a later position since.
        """
        there = {at for at, positions in self.sent.items() if held.get(at) == positions}
        done = {each: _settled(held, each) for each in {r.partition for r in self.records}}
        settled = [
            record
            for record in self.records
            if _at(record) in there or done[record.partition].has(record.offset)
        ]
        gone = set(settled)
        return settled, [record for record in self.records if record not in gone]


@dataclass(frozen=True, slots=True)
class FencePolicy:
    """The settings by which a process ends itself after too many fencings by other processes.

    The fencings of the last `within_s` seconds are counted. The process ends at `newborn_most` of
    them while its service is new. This number grows to `most` until the service is `grown_s` old.
    A fencing is not counted if the transaction was open for `limit_s`, or if a request failed
    with a temporary error in the last `excuse_s`. The process takes its transactional id back after
    `rest_s`.
    """

    limit_s: float  # transaction.timeout.ms: the coordinator fences one that is open for longer
    excuse_s: float = 60.0  # after a passing refusal, a fence may be by our own past
    within_s: float = 60.0  # so far back fences count
    most: int = 10  # a stranger's init_transactions is one fence, a second copy's fight is many
    # Two that fence each other are fenced in turn, so the one with less patience ends. It
    # grows with age, for the one that was there first keeps its place.
    newborn_most: int = 2
    grown_s: float = 60.0
    rest_s: float = 1.0  # until the id is taken back

    def patience(self, age_s: float) -> int:
        """Returns the number of fencings at which a service of this age gives up."""
        grown = min(1.0, age_s / self.grown_s)
        return self.newborn_most + int(grown * (self.most - self.newborn_most))


@dataclass(frozen=True, slots=True)
class ForeignFence:
    """A fencing of this process by another process.

    It is number `nth` of the recent fencings. This process ends when the number reaches `most`.
    Until then, it takes its transactional id back `rest_s` seconds after each fencing.
    """

    nth: int
    most: int
    rest_s: float


class FencingJudge:
    """Decides whether another process has fenced this worker, and counts how often.

    Owned by the thread that uses transactions. Kafka may also fence a worker because of its own
    earlier transaction or request; this does not count. `began` is the time at which the service
    began, not this process: the older the service, the more fencings it tolerates.
    """

    def __init__(self, name: str, policy: FencePolicy, began: float) -> None:
        self.name = name  # the transactional id
        self._policy = policy
        self._began = began
        self._excused_until = float("-inf")
        self._foreign: deque[float] = deque()  # when, within `within_s`

    def judge(
        self, refused: KafkaRequestError, begun_at: float | None, now: float
    ) -> ForeignFence | None:
        """Counts and returns a fencing by another process; None if the refusal does not show one.

        Called for each refusal that leaves it unknown how a transaction ended. `begun_at` is the
        time at which that transaction began. Returns None, too, if the worker itself may have
        caused the fencing. One such cause is a transaction that was open for too long. Another is a
        request that failed with a temporary error a short time ago: Kafka may carry it out late.
        Raises FencedByTwin if other processes have fenced this worker too often.
        """
        policy = self._policy
        if refused.retriable:
            self._excused_until = now + policy.excuse_s
            return None
        expired = begun_at is not None and now - begun_at >= policy.limit_s
        excused, self._excused_until = now < self._excused_until, float("-inf")
        return None if expired or excused else self._count(now)

    def _count(self, now: float) -> ForeignFence:
        policy, foreign = self._policy, self._foreign
        foreign.append(now)
        while now - foreign[0] > policy.within_s:
            foreign.popleft()
        # By its age at the first of these fences: a fight must not make it more patient.
        most = policy.patience(foreign[0] - self._began)
        if len(foreign) >= most:
            age_s = now - self._began
            young = age_s < policy.within_s
            when = f"in the first {age_s:.0f} s" if young else f"within {policy.within_s:g} s"
            raise FencedByTwin(
                f"another process took the transactional id {self.name} {len(foreign)} times"
                f" {when}: end that process, or give each copy of the service its own"
                " `instance`, then start again; Kafka lets only one process use an id"
            )
        return ForeignFence(len(foreign), most, policy.rest_s)


def _settled(held: Mapping[PartitionId, Committed | None], partition: Partition) -> Settled:
    committed = held.get((partition.topic, partition.number))
    return Settled(0) if committed is None else Settled.of_log(committed, partition.origin)


def _at(record: Record) -> PartitionId:
    return record.partition.topic, record.partition.number
