"""The partitions that the group has given this worker, each with an epoch and a ledger."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Protocol

import structlog

from kworker.clients.awaited_positions import ASK_S, AwaitedPositions, PositionReader
from kworker.clients.consumer import LOST
from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import (
    Committed,
    Ignored,
    OffsetRange,
    TopicIdentity,
    decode,
    origin_of,
    same_topic,
)
from kworker.core.record import NAMELESS, Partition
from kworker.instance.group_note import lost_partitions
from kworker.worker.publish.committer import Committer

_LOG = structlog.get_logger()
_ASK_AGAIN_S = 0.5
_LOOK_AGAIN_S = 0.005
_GHOST_S = 60.0
_GUESTS_MAX = 1_000
_MISSING_S = 2.0  # for topics that are not there: they may be too new for the broker


class Assigning(PositionReader, Protocol):
    """The methods of `KafkaConsumer`, and of its in-memory twin, that the assignment uses."""

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None: ...
    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]: ...
    def unassign(self, partitions: Iterable[PartitionId]) -> None: ...


Identify = Callable[[Collection[str], float], Mapping[str, TopicIdentity]]
"""Returns the identities of those topics that exist, within so many seconds.

Raises KafkaRequestError when the same may work later.
"""


class Assignment:
    """The partitions that this group member owns now; the consumer's rebalance `Listener`.

    Owned by the poll thread: every callback runs inside a poll. An epoch lasts from one assignment
    to the next. New partitions are in `fresh` until the poll that assigned them has returned, since
    it may return records fetched before the assignment. `maps_ignored` counts unusable offset maps.
    """

    def __init__(
        self,
        identify: Identify,
        finish: Callable[[list[Partition]], None],
        drop: Callable[[Partition], None],
        positions_readable: Callable[[], bool],
        had: Mapping[PartitionId, str],
    ) -> None:
        """`had` has the topic's id for each partition in which the group ever had a position."""
        self._identify = identify
        self._finish = finish  # lets what is in hand end, publishes and commits
        self._drop = drop  # takes what is left out of every count
        self._positions_readable = positions_readable  # False while our transaction hides them
        self._had = dict(had)
        self.maps_ignored = 0
        self._missing: set[str] = set()  # assigned topics that do not exist
        self._known: dict[str, TopicIdentity] = {}  # as of the last assignment of each
        self.partitions: dict[PartitionId, Partition] = {}
        self.known: list[PartitionId] = []
        self.announce: Callable[[], None] = lambda: None  # `known` has grown
        # What waits inside a callback calls it again and again: it tells the supervisor that
        # this thread lives, and for how many seconds more it may wait: inf until a drain begins.
        self.beat: Callable[[], float] = lambda: inf
        self._awaited = AwaitedPositions(self._goes_on)
        self._indexes: dict[PartitionId, int] = {}
        self._guests = 0  # of those, by records that came again
        self.fresh: set[Partition] = set()
        self.rebalances = 0
        self.joined = False
        self.changed = False
        self._lost_at = float("-inf")

    def bind(self, consumer: Assigning, committer: Committer) -> None:
        """Sets the consumer and the committer, which are made after this listener."""
        self._consumer = consumer
        self._committer = committer

    def assigned(self, partitions: list[PartitionId]) -> None:
        """Adds new partitions at the group's committed positions. They are paused at first."""
        self.rebalances += 1
        held, identities = self._read(partitions)
        origins = {at: origin_of(identities[at[0]], at) for at in held}
        held |= self._begun_anew(held, identities, origins)
        gone = lost_partitions(
            self._had, [at for at, each in held.items() if each is None], identities
        )
        for at, each in held.items():
            self._begin(at, each, origins[at])
        begin = {at: each and each.position for at, each in held.items()}
        self._consumer.assign({**begin, **dict.fromkeys(gone, LOST)})
        self.joined = self.changed = True
        _LOG.info("partitions assigned", partitions=_names(partitions), epoch=self.rebalances)

    def _begin(self, at: PartitionId, held: Committed | None, origin: bytes) -> None:
        done = self._done(at, held, origin) if held else []
        position = held and held.position
        partition = Partition(*at, self.rebalances, self.index(at), position, origin, done)
        self.partitions[at] = partition
        self.fresh.add(partition)
        self._committer.learn(at, held)

    @property
    def topics(self) -> set[str]:
        """The assigned topics, including those that do not exist on the brokers."""
        return {topic for topic, _ in self.partitions} | self._missing

    def made_again(self, ids: Mapping[str, str]) -> list[str]:
        """Returns assigned topics that have another id in `ids` now: they were created again."""
        known = {topic: self._known[topic] for topic, _ in self.partitions}
        others = {t for t, one in known.items() if ids.get(t, one.topic_id) != one.topic_id}
        return sorted(others | (self._missing & ids.keys()))

    def _begun_anew(
        self,
        held: Mapping[PartitionId, Committed | None],
        identities: Mapping[str, TopicIdentity],
        origins: Mapping[PartitionId, bytes],
    ) -> dict[PartitionId, Committed | None]:
        """Returns new start positions for partitions whose topic was deleted and created again.

        A position is outdated if its metadata names the old topic. A position without metadata is
        outdated if the topic's id has changed since the last assignment. The next commit writes the
        new positions, even if no record has ended.
        """
        others = {t for t, one in identities.items() if self._known.get(t, one) != one}
        self._known.update(identities)
        anew: dict[PartitionId, Committed | None] = {}
        for at, origin in origins.items():
            each = held[at]
            same = same_topic(each, origin) if each else None
            if same is False or (same is None and at[0] in others):
                self.beat()
                anew[at] = self._beginning(at, each)
        return anew

    def _beginning(self, at: PartitionId, held: Committed | None) -> Committed | None:
        """Logs the outdated position `held`; returns the log's first offset, None if not known."""
        _LOG.warning(
            "topic was deleted and created again; the partition is read from its first offset, not"
            " from the committed position",
            partition=f"{at[0]}/{at[1]}",
            committed_position=held and held.position,
        )
        try:
            return Committed(self._consumer.watermarks(at, ASK_S)[0])
        except KafkaRequestError:
            return None

    def _done(self, at: PartitionId, held: Committed, origin: bytes) -> list[OffsetRange]:
        found = decode(held.metadata, origin, held.position)
        if not isinstance(found, Ignored):
            return found
        self.maps_ignored += 1
        _LOG.warning(
            "the commit's metadata, which lists records finished beyond the committed position,"
            " is not usable; these records run again",
            partition=f"{at[0]}/{at[1]}",
            position=held.position,
            why=f"{found.kind}: {found.why}",
        )
        return []

    def revoked(self, partitions: list[PartitionId]) -> None:
        """Gives partitions up after their running records have ended; the group waits meanwhile."""
        going = [self.partitions[at] for at in partitions if at in self.partitions]
        self._finish(going)
        self._close(partitions)
        _LOG.info("partitions revoked", partitions=_names(partitions))

    def lost(self, partitions: list[PartitionId]) -> None:
        """Drops partitions and commits nothing, since other members may own them already."""
        self._lost_at = time.monotonic()
        self._close(partitions)
        _LOG.warning(
            "partitions lost; their next owners go on from the committed positions",
            partitions=_names(partitions),
        )

    def committed(self, error: str | None) -> None:
        self._committer.answered(error)

    @property
    def lost_lately(self) -> bool:
        """True if partitions were lost lately: an earlier commit may now get this member fenced."""
        return time.monotonic() - self._lost_at < _GHOST_S

    def abandon(self) -> None:
        """Drops all partitions, since another client takes this member's place in the group."""
        self._forget(list(self.partitions))
        self._missing.clear()

    def _close(self, partitions: list[PartitionId]) -> None:
        self._forget(partitions)
        self._consumer.unassign(partitions)

    def _forget(self, partitions: list[PartitionId]) -> None:
        for at in partitions:
            self._missing.discard(at[0])
            if partition := self.partitions.pop(at, None):
                partition.open = False
                self.fresh.discard(partition)
                self._drop(partition)
            if self._committer.known(at) is not None:
                known = self._known.get(at[0])
                self._had[at] = known.topic_id if known else ""
            self._committer.forget(at)
        self.changed = True

    @property
    def problem(self) -> str | None:
        """The reason why an assignment still waits for the brokers; None if no assignment waits."""
        return self._awaited.problem

    def _goes_on(self) -> bool:
        return self.beat() == inf

    def _read(
        self, partitions: list[PartitionId]
    ) -> tuple[dict[PartitionId, Committed | None], Mapping[str, TopicIdentity]]:
        """Returns the group's positions, and the identities of those topics that exist.

        Both are empty if a drain begins before they are known: then no partition starts any more. A
        partition of a missing topic starts once the topic exists: see `made_again`.
        """
        if not partitions:
            return {}, {}
        held = self._awaited.positions(self._consumer, partitions, self._wait_for_own_transaction)
        topics = {topic for topic, _ in partitions}
        found = None if held is None else self._identities(topics)
        if held is None or found is None:
            _LOG.info("worker drains; new partitions are not read", partitions=_names(partitions))
            return {}, {}
        self._missing -= found.keys()
        if missing := topics - found.keys():
            self._missing |= missing
            _LOG.warning(
                "assigned topics do not exist; their partitions start once the topics are created",
                topics=sorted(missing),
            )
        return {at: each for at, each in held.items() if at[0] in found}, found

    def _identities(self, topics: Collection[str]) -> Mapping[str, TopicIdentity] | None:
        """Returns the present identities of topics that exist; None if a drain begins meanwhile."""
        deadline = time.monotonic() + _MISSING_S
        while True:
            found = self._awaited.answer(lambda: self._identify(topics, ASK_S), str)
            if found is None or len(found) == len(topics) or time.monotonic() >= deadline:
                return found
            if not self._goes_on():
                return None
            time.sleep(_ASK_AGAIN_S)  # the group waits for us anyway

    def _wait_for_own_transaction(self) -> None:
        """Waits, up to ASK_S seconds, while this worker's transaction hides the positions."""
        until = time.monotonic() + ASK_S
        while not self._positions_readable() and time.monotonic() < until:
            self.beat()
            time.sleep(_LOOK_AGAIN_S)

    def index(self, at: PartitionId) -> int:
        """Returns the index of a partition in the scoreboard's list `known`, which only grows."""
        index = self._indexes.setdefault(at, len(self.known))
        if index == len(self.known):
            self.known.append(at)
            # Before any handler has a record of it: it may be that handler's last.
            self.announce()
        return index

    def index_of_guest(self, at: PartitionId) -> int:
        """Returns the index in `known` of a requeued record's source partition, or NAMELESS.

        Only 1,000 such partitions get an index, since forged headers may name any number of them.
        """
        if at in self._indexes or at in self.partitions:
            return self.index(at)
        self._guests += 1
        return self.index(at) if self._guests <= _GUESTS_MAX else NAMELESS


def _names(partitions: list[PartitionId]) -> list[str]:
    return [f"{topic}/{number}" for topic, number in sorted(partitions)]
