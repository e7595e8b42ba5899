"""The consumer of Kafka in memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from kworker.clients.consumer import Listener
from kworker.clients.errors import KafkaRequestError
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.event import Event
from kworker.clients.memory.group import MemoryGroupMetadata, MemoryMember
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed


class _Fetch:
    def __init__(self, position: int) -> None:
        self.position = position
        self.paused = True
        self.stopped = False  # for good, at a gap
        self.reported_end = -1


class MemoryConsumer:
    """One member of a group of `MemoryKafka`; the twin of `KafkaConsumer` for tests."""

    def __init__(
        self, kafka: MemoryKafka, properties: Mapping[str, Any], listener: Listener
    ) -> None:
        self._kafka = kafka
        self._listener = listener
        self._group = kafka.group(str(properties["group.id"]))
        self._static = str(properties.get("group.instance.id", ""))
        self._reports_eof = bool(properties.get("enable.partition.eof", False))
        self._member: MemoryMember | None = None
        self._is_new = False  # made by `recreate`, and has not joined yet
        self._topics: list[str] = []
        self._owned: list[PartitionId] = []
        self._fetches: dict[PartitionId, _Fetch] = {}
        self._sent: list[dict[PartitionId, Committed]] = []  # commits that the broker has not seen
        self._answers: list[KafkaError | None] = []
        self._events: list[RawMessage] = []
        self._reported_missing: set[str] = set()

    def subscribe(self, topics: list[str]) -> None:
        self._topics = list(topics)
        self._join()

    def unsubscribe(self) -> None:
        """Makes the next `poll` revoke all partitions and leave the group.

        A static member leaves the group, too.
        """
        self._topics = []

    @property
    def joined(self) -> bool:
        """True while this consumer is a member of the group."""
        return self._member is not None

    @property
    def absence(self) -> Absence | None:
        """The reason why this consumer takes no part in its group; None if it takes part."""
        member, kafka = self._member, self._kafka
        if not (kafka.up and kafka.coordinated):
            return Absence.COORDINATOR
        if member is None or member.expelled or not self._topics:
            return Absence.JOINING
        return None if member.answered and self._group.steady else Absence.REBALANCE

    def recreate(self) -> None:
        """Replaces this client by a new one with the same subscription."""
        self._fetches, self._owned, self._sent = {}, [], []
        self._is_new = True

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:  # noqa: ARG002 - never waits
        """Returns up to `most` records and events, and calls the listener. Never waits."""
        if not self._kafka.up:
            return []
        if self._kafka.coordinated:
            self._deliver_answers()
            self._follow_group()
        self._report_missing_topics()
        events, self._events = self._events[:most], self._events[most:]
        return events + self._fetch(most - len(events))

    def positions(
        self,
        partitions: Iterable[PartitionId],
        timeout_s: float,  # noqa: ARG002
    ) -> dict[PartitionId, Committed | None]:
        """Returns the committed position of each partition; None for a partition without one.

        Raises KafkaRequestError if a transaction hides one, or if the coordinator does not answer.
        """
        asked = list(partitions)
        if self.hidden(asked):
            raise KafkaRequestError(
                "positions of the group are in an open transaction, and cannot be read yet",
                retriable=True,
            )
        return {at: self._group.committed.get(at) for at in asked}

    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """Returns partitions whose positions a broker hides: an open transaction may change them.

        Raises KafkaRequestError while the group's coordinator cannot be reached.
        """
        self._reach_coordinator()
        pending = set[PartitionId]().union(*self._group.pending.values())
        return [at for at in partitions if at in pending]

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        """Assigns partitions, paused. `resume` begins at these positions (None: first offset)."""
        self._fetches = {
            at: _Fetch(self._kafka.log(at).low if position is None else position)
            for at, position in positions.items()
        }

    def unassign(self, partitions: Iterable[PartitionId]) -> None:  # noqa: ARG002 - all, as eager members do
        """Stops reading all partitions of this consumer, even those not in `partitions`."""
        self._fetches = {}

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        for fetch in self._of(partitions):
            fetch.paused = True

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        for fetch in self._of(partitions):
            fetch.paused = False
            fetch.reported_end = -1

    def seek(self, at: PartitionId, offset: int) -> None:
        """Makes a paused partition continue at this offset when it is resumed."""
        self._fetches[at].position = offset

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Sends a commit; a later `poll` passes its result to `Listener.committed`."""
        self._sent.append(dict(positions))
        self._deliver_commits()

    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Commits positions at once. Raises KafkaRequestError if the broker refuses them."""
        self._reach_coordinator()
        self._deliver_commits()
        if (error := self._group.commit(self._member, positions)) is not None:
            raise KafkaRequestError(str(error), retriable=True)

    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]:  # noqa: ARG002
        """Returns a partition's first offset, and the offset that follows its last one.

        Raises KafkaRequestError while the broker cannot be reached.
        """
        self._reach()
        log = self._kafka.log(at)
        return log.low, log.high

    def group_metadata(self) -> MemoryGroupMetadata:
        """Returns the metadata with which a transaction may commit this group's positions.

        Raises KafkaRequestError if this consumer is not a member.
        """
        if self._member is None or self._member.expelled:
            raise KafkaRequestError("this consumer is not a member of the group", retriable=True)
        return MemoryGroupMetadata(self._group, self._member, self._member.generation)

    def close(self) -> None:
        """Revokes all partitions. A dynamic member leaves the group, a static one stays in it."""
        self._give_up()
        if not self._static:
            self._leave()
        self._member = None

    def expire(self) -> None:
        """Ends the session, as if this consumer had sent no heartbeat for too long."""
        if self._member is not None:
            self._group.expel(self._member)

    def _reach(self) -> None:
        if not self._kafka.up:
            raise KafkaRequestError("broker unreachable", retriable=True)

    def _reach_coordinator(self) -> None:
        self._reach()
        if not self._kafka.coordinated:
            raise KafkaRequestError("the group has no coordinator", retriable=True)

    def _join(self) -> None:
        name = self._static or self._kafka.new_name()
        self._member = self._group.join(name, self._topics)

    def _leave(self) -> None:
        if self._member is not None:
            self._group.leave(self._member)
            self._member = None

    def _give_up(self) -> None:
        owned, self._owned = self._owned, []
        if owned:
            self._listener.revoked(owned)

    def _deliver_commits(self) -> None:
        while self._kafka.up and self._kafka.coordinated and self._sent:
            self._answers.append(self._group.commit(self._member, self._sent.pop(0)))

    def _deliver_answers(self) -> None:
        self._deliver_commits()
        answers, self._answers = self._answers, []
        for error in answers:
            self._listener.committed(None if error is None else str(error))

    def _follow_group(self) -> None:
        """Acts on a change of this consumer's membership. One call acts on one change.

        Leaves the group after `unsubscribe`. Reports that it is fenced. Joins again after the end
        of its session. Gives up its partitions for a rebalance. Takes up a new assignment.
        """
        if self._is_new:
            self._is_new = False
            if not self._static:
                self._leave()
            self._join()
        member = self._member
        if member is None:
            return
        if not self._topics:
            self._give_up()
            self._leave()
        elif member.fenced:
            self._fenced()
        elif member.expelled:
            self._lose()
        elif self._group.awaits(member):
            self._give_up()
            self._group.rejoin(member)
        elif (assignment := member.fetch_assignment()) is not None:
            self._owned = assignment
            self._listener.assigned(list(assignment))

    def _fenced(self) -> None:
        self._fetches = {}
        error = KafkaError(KafkaError._FATAL, "static consumer fenced by another")
        self._events.append(Event(("", -1), -1, error))

    def _lose(self) -> None:
        owned, self._owned = self._owned, []
        if owned:
            self._listener.lost(owned)
        self._join()

    def _report_missing_topics(self) -> None:
        missing = set(self._kafka.missing(self._topics))
        for topic in sorted(missing - self._reported_missing):
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            self._events.append(Event((topic, -1), -1, error))
        self._reported_missing = missing

    def _of(self, partitions: Iterable[PartitionId]) -> list[_Fetch]:
        return [self._fetches[at] for at in partitions if at in self._fetches]

    def _fetch(self, most: int) -> list[RawMessage]:
        """Returns up to `most` records and events; begins with the partition read longest ago."""
        taken: list[RawMessage] = []
        for at in list(self._fetches):
            if len(taken) >= most:
                break
            if found := self._fetch_one(at, self._fetches[at], most - len(taken)):
                taken += found
                self._fetches[at] = self._fetches.pop(at)
        return taken

    def _fetch_one(self, at: PartitionId, fetch: _Fetch, most: int) -> list[RawMessage]:
        if fetch.paused or fetch.stopped:
            return []
        log = self._kafka.log(at)
        if not log.low <= fetch.position <= log.high:
            fetch.stopped = True
            return [Event(at, fetch.position, KafkaError(KafkaError._AUTO_OFFSET_RESET))]
        found: list[RawMessage] = [*log.read(fetch.position, most)]
        if len(found) < most:
            fetch.position = log.high
            return found + self._eof(at, fetch)
        fetch.position = found[-1].offset() + 1
        return found

    def _eof(self, at: PartitionId, fetch: _Fetch) -> list[RawMessage]:
        if not self._reports_eof or fetch.reported_end == fetch.position:
            return []
        fetch.reported_end = fetch.position
        return [Event(at, fetch.position, KafkaError(KafkaError._PARTITION_EOF))]
