"""Kafka's consumer as the worker, the delay process and a replay use it.

One room, for callbacks, pauses and positions share the state of one librdkafka client.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from kworker.clients.errors import KafkaRequestError
from kworker.clients.events import ConsumerEvent, event_of
from kworker.clients.statistics import absence_in
from kworker.clients.topic_partitions import committed_in, offsets_of
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed

LOST = int(OFFSET_INVALID)
"""Instead of a position: what the group holds, and where that is nothing, OUT_OF_RANGE."""
_LOG = logging.getLogger("librdkafka")


class Listener(Protocol):
    """Told of the group's decisions, on the thread that polls, inside `poll`."""

    def assigned(self, partitions: list[PartitionId]) -> None: ...
    def revoked(self, partitions: list[PartitionId]) -> None: ...
    def lost(self, partitions: list[PartitionId]) -> None: ...
    def committed(self, error: str | None) -> None: ...


_STATISTICS_MS = 1000  # by which a client tells of its place in the group
_COMMIT_S = 5.0
_LOOK_S = 2.0  # for what is known at once, or hidden
_LOOK_EACH_S = 1.0
_HIDDEN_MOST = 3  # partitions that are named
# Of a client beside a member, which asks and never joins.
_MEMBERS_ONLY = frozenset({"group.instance.id", "group.remote.assignor", "group.protocol"})
_NOT_FETCHING = frozenset({KafkaError._STATE, KafkaError._PREV_IN_PROGRESS})


class KafkaConsumer:
    """One member of a consumer group.

    Used by one thread. The library swallows what a callback raises and loses a
    record with it, so here callbacks never raise: `poll` raises it afterwards.
    """

    def __init__(self, properties: Mapping[str, Any], listener: Listener) -> None:
        """Raises Refused for properties that the library does not take."""
        self._listener = listener
        self._raised: Exception | None = None
        self._incremental = properties.get("group.protocol") == "consumer"
        self._properties = dict(properties)
        self._topics: list[str] = []
        self._held: dict[PartitionId, int] = {}  # assigned and not resumed: where each begins
        self._paused: set[PartitionId] = set()  # in the client
        self._gone: set[PartitionId] = set()  # given up in the present call
        self._early: list[RawMessage] = []  # came with the assignment: until that is resumed
        self._life = 0  # what an earlier client still has to say is not heard
        self._unheard: list[frozenset[tuple[str, int, int]]] = []  # commits whose answers are not
        self._consumer = self._made()

    def _made(self) -> Consumer:
        self._absence: Absence | None = Absence.JOINING
        told = {
            "on_commit": partial(self._on_commit, self._life),
            "stats_cb": partial(self._on_statistics, self._life),
            "statistics.interval.ms": _STATISTICS_MS,
        }
        try:
            return Consumer({**self._properties, **told}, logger=_LOG)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=False) from None

    def recreate(self) -> None:
        """Another client, with the same subscription, for one that is fenced for good."""
        self._life += 1
        self._held, self._paused, self._early = {}, set(), []
        self._unheard = []
        threading.Thread(target=self._consumer.close, name="close", daemon=True).start()
        self._consumer = self._made()
        self.subscribe(self._topics)

    def subscribe(self, topics: list[str]) -> None:
        self._topics = topics
        self._consumer.subscribe(
            topics,
            on_assign=self._guarded(self._listener.assigned),
            on_revoke=self._guarded(self._listener.revoked),
            on_lost=self._guarded(self._listener.lost),
        )

    def unsubscribe(self) -> None:
        """`poll` revokes everything and leaves the group, as a static member too."""
        self._topics = []
        self._consumer.unsubscribe()

    @property
    def joined(self) -> bool:
        """Whether the group knows it. After `unsubscribe`, one that it knows no more may close."""
        return bool(self._consumer.memberid())

    @property
    def absence(self) -> Absence | None:
        """Why it is no member of its group, as of a second ago; None while it is one.

        Unlike `joined`, also while a rejoin hangs, or the coordinator is away.
        """
        return self._absence

    @property
    def joining(self) -> bool:
        """Whether the group has been asked, or will be, and has not answered."""
        return bool(self._topics) and not self.joined

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:
        """Records and events, at once if there are any; serves every callback."""
        if self._held:
            self.pause(list(self._held))  # not resumed at once, so in earnest
        self._gone = set()
        early = self._early_now(most) if self._early else []
        first = self._consumer.poll(timeout_s) if timeout_s and not early else None
        # With one message there, consume() would wait for the rest of its time; so it gets none.
        rest = most - len(early) - (first is not None)
        batch = cast(list[RawMessage], self._consumer.consume(rest, 0) if rest else [])
        if first is not None:
            batch.insert(0, cast(RawMessage, first))
        if self._raised is not None:
            raise self._raised
        if self._gone:  # what was kept of an earlier assignment is over with it
            early = [raw for raw in early if _at(raw) not in self._gone]
        return early + (self._kept_back(batch) if self._held else batch)

    def _early_now(self, most: int) -> list[RawMessage]:
        """What came before its partition was resumed, and that is resumed now."""
        now: list[RawMessage] = []
        later: list[RawMessage] = []
        for raw in self._early:
            waits = _at(raw) in self._held or _at(raw) in self._paused or len(now) == most
            (later if waits else now).append(raw)
        self._early = later
        return now

    def _kept_back(self, batch: list[RawMessage]) -> list[RawMessage]:
        """Without what came in the very call that brought its assignment.

        A partition that was ours before that call, too, is sought back: it may be older.
        """
        early = [raw for raw in batch if _at(raw) in self._held]
        older = {
            at
            for raw in early
            # With a trouble behind records: else what came before it would be passed over.
            if (at := _at(raw)) in self._gone and not _is_trouble(raw)
        }
        for at in older:
            try:
                self._consumer.seek(TopicPartition(*at, self._held[at]))
            except KafkaException as error:
                if error.args[0].code() not in _NOT_FETCHING:
                    raise
                # Nothing of the new epoch was fetched yet, so there is nothing to go back over.
        self._early += [raw for raw in early if _at(raw) not in older or _is_trouble(raw)]
        return [raw for raw in batch if _at(raw) not in self._held]

    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]:
        """What the group holds of each, None where it holds nothing. Raises Refused."""
        asked = [TopicPartition(*at) for at in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=timeout_s)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        if failed := [tp for tp in answer if tp.error]:
            raise KafkaRequestError(str(failed[0].error), retriable=True)
        return {(tp.topic, tp.partition): committed_in(tp) for tp in answer}

    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """Of partitions whose positions are not told, some that an open transaction hides.

        Waits for some seconds. Raises Refused when the group's coordinator does not answer.
        """
        asked = list(partitions)
        own = {k: v for k, v in self._properties.items() if k not in _MEMBERS_ONLY}
        # Who does not insist on what is stable is answered at once.
        beside = Consumer({**own, "isolation.level": "read_uncommitted"}, logger=_LOG)
        try:
            beside.committed([TopicPartition(*at) for at in asked], timeout=_LOOK_S)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        finally:
            beside.close()
        found: list[PartitionId] = []
        for at in asked:
            try:
                self.positions([at], _LOOK_EACH_S)
            except KafkaRequestError:
                found.append(at)
            if len(found) == _HIDDEN_MOST:
                break
        return found

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        """Takes up partitions at positions (None: the beginning; or LOST), paused.

        That is, nothing of them is returned before they are resumed; but the client fetches
        already, for one that is paused and resumed here is not fetched for a second.
        """
        starts = {at: OFFSET_BEGINNING if p is None else p for at, p in positions.items()}
        partitions = [TopicPartition(*at, start) for at, start in starts.items()]
        if self._incremental:
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        self._held.update(starts)

    def unassign(self, partitions: Iterable[PartitionId]) -> None:
        """Answers a revoke or a loss."""
        gone = set(partitions)
        self._gone |= gone
        self._early = [raw for raw in self._early if _at(raw) not in gone]
        self._held = {at: start for at, start in self._held.items() if at not in gone}
        # The client would keep a pause for whenever a partition comes back.
        self.resume(gone & self._paused)
        if self._incremental:
            self._consumer.incremental_unassign([TopicPartition(*at) for at in gone])
        else:
            self._consumer.unassign()

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        asked = list(partitions)
        for at in asked:
            self._held.pop(at, None)
        self._paused.update(asked)
        self._consumer.pause([TopicPartition(*at) for at in asked])

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        paused = [at for at in partitions if self._held.pop(at, None) is None]
        self._paused.difference_update(paused)
        self._consumer.resume([TopicPartition(*at) for at in paused])

    def seek(self, at: PartitionId, offset: int) -> None:
        """The next record of a paused partition, when it is resumed, is the one at this offset."""
        self._early = [raw for raw in self._early if _at(raw) != at]
        self._consumer.seek(TopicPartition(*at, offset))

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Sends positions; `Listener.committed` hears of the end. Raises Refused."""
        try:
            self._consumer.commit(offsets=offsets_of(positions), asynchronous=True)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None

    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None:
        """The same, waiting for the answer: only where the group itself waits for us.

        The library would wait for three time-outs of its socket, three minutes, when the
        coordinator is silent. What is asked behind the commit, on its connection, is answered
        behind it and can be given up.
        """
        self._unheard.append(_places(offsets_of(positions)))
        self.commit(positions)
        held = self.positions(positions, _COMMIT_S)
        if any(held[at] != each for at, each in positions.items()):
            raise KafkaRequestError("the group does not hold what was committed", retriable=True)

    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]:
        """The first offset that a partition holds and the one after its last. Raises Refused."""
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*at), timeout=timeout_s)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        return low, high

    def group_metadata(self) -> object:
        """What a transaction shows for its right to commit this group's positions.

        Raises Refused when the session is over: a commit without would not be fenced.
        """
        metadata = self._consumer.consumer_group_metadata()
        # Asked afterwards: a session that ends comes back only through `poll`.
        if not self._consumer.memberid():
            raise KafkaRequestError("not a member of the group", retriable=True)
        return metadata

    def close(self) -> None:
        """Leaves, if dynamic; may hang: call it where a hang does no harm."""
        self._consumer.close()

    def _on_commit(self, life: int, error: Any, partitions: Any) -> None:
        if life != self._life:
            return
        if (places := _places(partitions or ())) in self._unheard:
            self._unheard.remove(places)
            return
        try:
            self._listener.committed(_first_error(partitions) if error is None else str(error))
        except Exception as raised:  # noqa: BLE001 - raised again by `poll`
            self._raised = raised

    def _on_statistics(self, life: int, text: str) -> None:
        if life != self._life:
            return
        try:
            self._absence = absence_in(text, newer=self._incremental)
        except Exception as raised:  # noqa: BLE001 - raised again by `poll`
            self._raised = raised

    def _guarded(self, tell: Callable[[list[PartitionId]], None]) -> Callable[[object, Any], None]:
        life = self._life

        def callback(_consumer: object, partitions: Any) -> None:
            if life != self._life:
                return
            try:
                tell([(tp.topic, tp.partition) for tp in partitions])
            except Exception as raised:  # noqa: BLE001 - raised again by `poll`
                self._raised = raised

        return callback


def _at(raw: RawMessage) -> PartitionId:
    return raw.topic(), raw.partition()


def _places(offsets: Iterable[TopicPartition]) -> frozenset[tuple[str, int, int]]:
    return frozenset((tp.topic, tp.partition, tp.offset) for tp in offsets)


def _is_trouble(raw: RawMessage) -> bool:
    return raw.error() is not None and event_of(raw) is not ConsumerEvent.PARTITION_EOF


def _first_error(partitions: Any) -> str | None:
    """A commit may fail for some partitions only."""
    return next((str(tp.error) for tp in partitions or () if tp.error), None)
