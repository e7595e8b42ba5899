"""The coordinator of the in-memory Kafka: members, generations, range assignment, commits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from kworker.core.message import PartitionId
from kworker.core.offset_map import METADATA_MAX, Committed


@dataclass(frozen=True, slots=True)
class MemoryCommit:
    """One accepted commit of one position. Tests check the history of these commits."""

    group: str
    member: str
    generation: int
    at: PartitionId
    position: int
    metadata: str = ""


class MemoryMember:
    """One member of a group, as the coordinator knows it."""

    def __init__(self, name: str, topics: list[str]) -> None:
        self.name = name
        self.topics = topics
        self.generation = 0
        self.assignment: list[PartitionId] = []
        self.answered = True  # the consumer has fetched its assignment
        self.rejoined = False  # for the generation that comes next
        self.fenced = False  # another consumer has taken its static name
        self.expelled = False  # its session is over

    def fetch_assignment(self) -> list[PartitionId] | None:
        """Returns a new assignment at the first call after it was made; else None."""
        if self.answered:
            return None
        self.answered = True
        return list(self.assignment)


@dataclass(frozen=True, slots=True)
class MemoryGroupMetadata:
    """A group, a member and the member's generation: a transaction commits in their name."""

    group: "MemoryGroup"
    member: MemoryMember
    generation: int


class MemoryGroup:
    """One consumer group of the classic protocol: members give up all partitions, then rejoin.

    A rebalance ends when every member has rejoined. A member that does not rejoin delays the others
    until `expel` ends its session.
    """

    def __init__(self, name: str, partitions: Callable[[list[str]], list[PartitionId]]) -> None:
        self._name = name
        self._partitions = partitions  # those of the topics that exist
        self._members: dict[str, MemoryMember] = {}
        self._rebalancing = False
        self.generation = 0
        self.committed: dict[PartitionId, Committed] = {}
        self.pending: dict[
            str, Mapping[PartitionId, Committed]
        ] = {}  # of open transactions, by their ids
        self.history: list[MemoryCommit] = []

    def join(self, name: str, topics: list[str]) -> MemoryMember:
        """Adds a member. The new member replaces and fences a static member of the same name."""
        member, old = MemoryMember(name, topics), self._members.get(name)
        self._members[name] = member
        if old is not None:
            old.fenced = True
        if old is not None and not self._rebalancing and old.topics == topics:
            self._answer(member, old.assignment)
        else:
            self.rebalance()
            self.rejoin(member)
        return member

    def leave(self, member: MemoryMember) -> None:
        """Removes a member that has left, or whose session has ended."""
        if self._members.get(member.name) is member:
            del self._members[member.name]
            self.rebalance()
            self._complete()

    def expel(self, member: MemoryMember) -> None:
        """Ends a member's session. The member finds out at its next request."""
        member.expelled = True
        self.leave(member)

    def rebalance(self) -> None:
        """Begins a rebalance: every member has to rejoin."""
        if not self._rebalancing:
            self._rebalancing = True
            for member in self._members.values():
                member.rejoined, member.answered = False, True

    @property
    def steady(self) -> bool:
        """True if no rebalance is under way."""
        return not self._rebalancing

    def awaits(self, member: MemoryMember) -> bool:
        return self._rebalancing and not member.rejoined

    def rejoin(self, member: MemoryMember) -> None:
        """Notes that a member has given up its partitions and joined the group again."""
        member.rejoined = True
        self._complete()

    def reads(self, topic: str) -> bool:
        """Returns True if any member subscribes to the topic."""
        topics = [name for member in self._members.values() for name in member.topics]
        return any(at[0] == topic for at in self._partitions(topics))

    def commit(
        self, member: MemoryMember | None, positions: Mapping[PartitionId, Committed]
    ) -> KafkaError | None:
        """Commits positions, or returns an error. Like a broker, it lets a position go back."""
        if (error := self.refusal(member)) is not None:
            return error
        name, generation = ("", -1) if member is None else (member.name, member.generation)
        fitting = {at: held for at, held in positions.items() if fits(held)}
        self.accept(name, generation, fitting)
        return None if fitting == positions else KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)

    def accept(
        self, member: str, generation: int, positions: Mapping[PartitionId, Committed]
    ) -> None:
        """Commits positions without checks.

        A transaction's positions are committed even if its member has left the group meanwhile.
        """
        for at, held in positions.items():
            self.committed[at] = held
            self.history.append(MemoryCommit(self._name, member, generation, at, *held))

    def refusal(self, member: MemoryMember | None) -> KafkaError | None:
        """Returns the error with which the group refuses this member's commit; None if it accepts.

        A commit by a client that is no member (None) is accepted if the group has no members.
        """
        if member is None:
            return KafkaError(KafkaError.UNKNOWN_MEMBER_ID) if self._members else None
        if member.expelled:
            return KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
        if member.fenced:
            return KafkaError(KafkaError.FENCED_INSTANCE_ID)
        if member.generation != self.generation:
            return KafkaError(KafkaError.ILLEGAL_GENERATION)
        return None

    def _complete(self) -> None:
        members = self._members.values()
        if not self._rebalancing or not all(member.rejoined for member in members):
            return
        self._rebalancing = False
        self.generation += 1
        shares = _range(self._members, self._partitions)
        for member in members:
            self._answer(member, shares[member.name])

    def _answer(self, member: MemoryMember, assignment: list[PartitionId]) -> None:
        member.generation = self.generation
        member.assignment = assignment
        member.answered = False


def fits(held: Committed) -> bool:
    """Returns True if a broker would accept the length of the metadata of this commit."""
    return len(held.metadata.encode()) <= METADATA_MAX


def _range(
    members: Mapping[str, MemoryMember], partitions: Callable[[list[str]], list[PartitionId]]
) -> dict[str, list[PartitionId]]:
    """Returns the partitions of each member, by the member's name.

    Each topic is divided among the members that subscribe to it: the first name gets the first
    partitions, the second name the next ones.
    """
    shares: dict[str, list[PartitionId]] = {name: [] for name in members}
    readers: dict[str, list[str]] = {}
    for name in sorted(members):
        for topic in dict.fromkeys(at[0] for at in partitions(members[name].topics)):
            readers.setdefault(topic, []).append(name)
    for topic in sorted(readers):
        names = readers[topic]
        for name, run in zip(names, _runs(partitions([topic]), len(names)), strict=True):
            shares[name] += run
    return shares


def _runs(partitions: list[PartitionId], count: int) -> Iterable[list[PartitionId]]:
    length, longer = divmod(len(partitions), count)
    begin = 0
    for index in range(count):
        end = begin + length + (index < longer)
        yield partitions[begin:end]
        begin = end
