"""Kafka's consumer as the worker, the delay process and a replay use it.

Over 300 lines, since callbacks, pauses and positions share the state of one librdkafka client.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
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
"""Passed as a position: begin at the committed one. Without one, `poll` returns OUT_OF_RANGE."""
_LOG = logging.getLogger("librdkafka")


class Listener(Protocol):
    """Receives assignments, revocations and results of commits from `KafkaConsumer.poll`.

    The listener runs on the thread that calls `poll`.
    """

    def assigned(self, partitions: list[PartitionId]) -> None: ...
    def revoked(self, partitions: list[PartitionId]) -> None: ...
    def lost(self, partitions: list[PartitionId]) -> None: ...
    def committed(self, error: str | None) -> None: ...


_STATISTICS_MS = 1000  # in which a client reports its place in the group
_COMMIT_S = 5.0
_WAKE_S = 0.2  # for answers that nobody reads
_HIDDEN_S = 2.0  # without an answer for so long, positions are hidden
_HIDDEN_EACH_S = 1.0
_HIDDEN_MOST = 3  # partitions that are named
# Not for a client beside a member, which sends requests and never joins.
_MEMBERS_ONLY = frozenset({"group.instance.id", "group.remote.assignor", "group.protocol"})
_NOT_FETCHING = frozenset({KafkaError._STATE, KafkaError._PREV_IN_PROGRESS})


class KafkaConsumer:
    """One member of a consumer group.

    Used by one thread. If a callback raised an exception, the library would swallow the exception
    and lose a record. So the callbacks here store their exception, and `poll` raises it afterwards.
    """

    def __init__(self, properties: Mapping[str, Any], listener: Listener) -> None:
        """Raises KafkaRequestError for properties that the library refuses."""
        self._listener = listener
        self._raised: Exception | None = None
        self._incremental = properties.get("group.protocol") == "consumer"
        self._properties = dict(properties)
        self._topics: list[str] = []
        self._unresumed: dict[PartitionId, int] = {}  # assigned and not resumed: the start of each
        self._paused: set[PartitionId] = set()  # in the client
        self._revoked: set[PartitionId] = set()  # in the present call
        self._early: list[RawMessage] = []  # came with the assignment; kept until it is resumed
        self._client_number = 0  # callbacks of earlier clients are ignored
        # Commits whose answers `commit_now` takes itself.
        self._awaited_commits: list[frozenset[tuple[str, int, int]]] = []
        self._consumer = self._make_client()

    def _make_client(self) -> Consumer:
        self._absence: Absence | None = Absence.JOINING
        callbacks = {
            "on_commit": partial(self._on_commit, self._client_number),
            "stats_cb": partial(self._on_statistics, self._client_number),
            "statistics.interval.ms": _STATISTICS_MS,
        }
        try:
            return Consumer({**self._properties, **callbacks}, logger=_LOG)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=False) from None

    def recreate(self) -> None:
        """Makes a new client with the same subscription, and closes the present one.

        Call this if the present client was fenced, or has been out of its group for too long.
        """
        self._client_number += 1
        self._unresumed, self._paused, self._early = {}, set(), []
        self._awaited_commits = []
        threading.Thread(target=self._consumer.close, name="close", daemon=True).start()
        self._consumer = self._make_client()
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
        """Makes later polls revoke all partitions and leave the group, even for a static member."""
        self._topics = []
        self._consumer.unsubscribe()

    @property
    def joined(self) -> bool:
        """True while this client has a member id.

        After `unsubscribe`, the client keeps its member id until it has left the group.
        """
        return bool(self._consumer.memberid())

    @property
    def absence(self) -> Absence | None:
        """The reason why this client takes no part in its group; None if it takes part.

        The reason may be a second old. Unlike `joined`, this property also shows a rejoin that
        hangs, and a coordinator that does not answer.
        """
        return self._absence

    @property
    def joining(self) -> bool:
        """True if this client has subscribed, and has no member id in the group now."""
        return bool(self._topics) and not self.joined

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:
        """Returns up to `most` messages; waits up to `timeout_s` if there are none.

        A message is a record, or an error that librdkafka passes on like a record, such as the end
        of a partition. Calls the listener, and raises the listener's errors.
        """
        if self._unresumed:
            self.pause(list(self._unresumed))  # for they were not resumed at once
        self._revoked = set()
        early = self._take_early(most) if self._early else []
        first = self._consumer.poll(timeout_s) if timeout_s and not early else None
        # With one message there, consume() would wait for the rest of its time; so it gets none.
        rest = most - len(early) - (first is not None)
        batch = cast(list[RawMessage], self._consumer.consume(rest, 0) if rest else [])
        if first is not None:
            batch.insert(0, cast(RawMessage, first))
        if self._raised is not None:
            raise self._raised
        if self._revoked:  # records kept of an earlier assignment are dropped with it
            early = [raw for raw in early if _at(raw) not in self._revoked]
        return early + (self._hold_back(batch) if self._unresumed else batch)

    def _take_early(self, most: int) -> list[RawMessage]:
        """Returns up to `most` of the messages that were held back, and no longer holds them.

        Messages of partitions that are paused, or not resumed yet, stay held back. A message is a
        record, or an error that librdkafka passes on like a record.
        """
        now: list[RawMessage] = []
        later: list[RawMessage] = []
        for raw in self._early:
            waits = _at(raw) in self._unresumed or _at(raw) in self._paused or len(now) == most
            (later if waits else now).append(raw)
        self._early = later
        return now

    def _hold_back(self, batch: list[RawMessage]) -> list[RawMessage]:
        """Keeps for later the records of partitions that wait to be resumed; returns the rest.

        An assigned partition waits until the caller resumes it. If a partition was revoked and
        assigned again during one `poll`, its records may be from the earlier assignment. So this
        method drops them, and seeks to the position at which the new assignment begins: the client
        fetches the records again from there.
        """
        early = [raw for raw in batch if _at(raw) in self._unresumed]
        older = {
            at
            for raw in early
            # Also with a failure behind records: else those before it would be passed over.
            if (at := _at(raw)) in self._revoked and not _is_failure(raw)
        }
        for at in older:
            try:
                self._consumer.seek(TopicPartition(*at, self._unresumed[at]))
            except KafkaException as error:
                if error.args[0].code() not in _NOT_FETCHING:
                    raise
                # Nothing of the new assignment was fetched yet, so there is nothing to seek.
        self._early += [raw for raw in early if _at(raw) not in older or _is_failure(raw)]
        return [raw for raw in batch if _at(raw) not in self._unresumed]

    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]:
        """Returns the committed position of each partition; None for a partition without one.

        Raises KafkaRequestError if the coordinator refuses, or does not report all positions within
        `timeout_s`.
        """
        asked = [TopicPartition(*at) for at in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=timeout_s)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        if failed := [tp for tp in answer if tp.error]:
            raise KafkaRequestError(str(failed[0].error), retriable=True)
        return {(tp.topic, tp.partition): committed_in(tp) for tp in answer}

    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """Returns up to three partitions whose committed positions Kafka does not report now.

        The reason is an open transaction that may change the positions. Blocks for some seconds.
        Raises KafkaRequestError if the group's coordinator does not answer.
        """
        asked = list(partitions)
        own = {k: v for k, v in self._properties.items() if k not in _MEMBERS_ONLY}
        # A request for positions that need not be stable is answered at once.
        beside = Consumer({**own, "isolation.level": "read_uncommitted"}, logger=_LOG)
        try:
            beside.committed([TopicPartition(*at) for at in asked], timeout=_HIDDEN_S)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        finally:
            beside.close()
        found: list[PartitionId] = []
        for at in asked:
            try:
                self.positions([at], _HIDDEN_EACH_S)
            except KafkaRequestError:
                found.append(at)
            if len(found) == _HIDDEN_MOST:
                break
        return found

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        """Begins to fetch partitions at these positions; `poll` returns no records before `resume`.

        A position is an offset, None for the first offset, or this module's constant `LOST` for the
        committed position. This method does not pause the client, since a paused client would fetch
        nothing for a second after `resume`. Instead, `poll` holds the records back.
        """
        starts = {at: OFFSET_BEGINNING if p is None else p for at, p in positions.items()}
        partitions = [TopicPartition(*at, start) for at, start in starts.items()]
        if self._incremental:
            self._consumer.incremental_assign(partitions)
            self._wake_fetchers(kept=self._assigned() - starts.keys())
        else:
            self._consumer.assign(partitions)
        self._unresumed.update(starts)

    def _assigned(self) -> set[PartitionId]:
        return {(each.topic, each.partition) for each in self._consumer.assignment()}

    def _wake_fetchers(self, kept: Iterable[PartitionId]) -> None:
        """Makes the library fetch `kept`, the partitions that stay assigned in a rebalance.

        The library pauses these partitions during a rebalance, and resumes them afterwards. But its
        thread for a broker notices that only after a second, or when it has other work. So this
        method sends the broker a request, which is such work.
        """
        if asked := [TopicPartition(*at, OFFSET_END) for at in kept]:
            with suppress(KafkaException):  # else they wait for that second
                self._consumer.offsets_for_times(asked, timeout=_WAKE_S)

    def unassign(self, partitions: Iterable[PartitionId]) -> None:
        """Stops fetching partitions that the group has revoked, or that are lost."""
        gone = set(partitions)
        self._revoked |= gone
        self._early = [raw for raw in self._early if _at(raw) not in gone]
        self._unresumed = {at: start for at, start in self._unresumed.items() if at not in gone}
        # The client would keep the pause until the partition comes back.
        self.resume(gone & self._paused)
        if self._incremental:
            self._consumer.incremental_unassign([TopicPartition(*at) for at in gone])
        else:
            self._consumer.unassign()

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        asked = list(partitions)
        for at in asked:
            self._unresumed.pop(at, None)
        self._paused.update(asked)
        self._consumer.pause([TopicPartition(*at) for at in asked])

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        paused = [at for at in partitions if self._unresumed.pop(at, None) is None]
        self._paused.difference_update(paused)
        self._consumer.resume([TopicPartition(*at) for at in paused])

    def seek(self, at: PartitionId, offset: int) -> None:
        """Makes a paused partition continue at this offset when it is resumed."""
        self._early = [raw for raw in self._early if _at(raw) != at]
        self._consumer.seek(TopicPartition(*at, offset))

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Sends a commit; a later `poll` passes its result to `Listener.committed`.

        Raises KafkaRequestError if the commit cannot be sent.
        """
        try:
            self._consumer.commit(offsets=offsets_of(positions), asynchronous=True)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None

    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None:
        """Commits positions, and returns when they are committed.

        Only for rebalance callbacks, in which the whole group waits for this member. The library's
        synchronous commit would wait three minutes for a silent coordinator. So this method sends
        the commit, then reads the positions back, which takes a few seconds at most. The
        coordinator handles the commit before it reports the positions. Raises KafkaRequestError if
        the commit cannot be sent, or if the positions cannot be read or differ from the commit.
        """
        self._awaited_commits.append(_places(offsets_of(positions)))
        self.commit(positions)
        held = self.positions(positions, _COMMIT_S)
        if any(held[at] != each for at, each in positions.items()):
            raise KafkaRequestError(
                "commit not confirmed: the positions that Kafka holds are not those just committed",
                retriable=True,
            )

    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]:
        """Returns a partition's first offset, and the offset that follows its last one.

        Raises KafkaRequestError if the broker refuses, or does not answer within `timeout_s`.
        """
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*at), timeout=timeout_s)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        return low, high

    def group_metadata(self) -> object:
        """Returns the metadata with which a transaction may commit this group's positions.

        Raises KafkaRequestError while this consumer is not a member: the metadata would name no
        member, and the broker would not check whether the commit is from a fenced member.
        """
        metadata = self._consumer.consumer_group_metadata()
        # Checked last: only `poll` begins another session.
        if not self._consumer.memberid():
            raise KafkaRequestError("this consumer is not a member of the group", retriable=True)
        return metadata

    def close(self) -> None:
        """Ends the client; a dynamic member leaves the group.

        This call may hang, so it should be made on a daemon thread.
        """
        self._consumer.close()

    def _on_commit(self, client_number: int, error: Any, partitions: Any) -> None:
        if client_number != self._client_number:
            return
        if (places := _places(partitions or ())) in self._awaited_commits:
            self._awaited_commits.remove(places)
            return
        try:
            self._listener.committed(_first_error(partitions) if error is None else str(error))
        except Exception as raised:  # noqa: BLE001 - raised again by `poll`
            self._raised = raised

    def _on_statistics(self, client_number: int, text: str) -> None:
        if client_number != self._client_number:
            return
        try:
            self._absence = absence_in(text, newer=self._incremental)
        except Exception as raised:  # noqa: BLE001 - raised again by `poll`
            self._raised = raised

    def _guarded(self, call: Callable[[list[PartitionId]], None]) -> Callable[[object, Any], None]:
        client_number = self._client_number

        def callback(_consumer: object, partitions: Any) -> None:
            if client_number != self._client_number:
                return
            try:
                call([(tp.topic, tp.partition) for tp in partitions])
            except Exception as raised:  # noqa: BLE001 - raised again by `poll`
                self._raised = raised

        return callback


def _at(raw: RawMessage) -> PartitionId:
    return raw.topic(), raw.partition()


def _places(offsets: Iterable[TopicPartition]) -> frozenset[tuple[str, int, int]]:
    return frozenset((tp.topic, tp.partition, tp.offset) for tp in offsets)


def _is_failure(raw: RawMessage) -> bool:
    return raw.error() is not None and event_of(raw) is not ConsumerEvent.PARTITION_EOF


def _first_error(partitions: Any) -> str | None:
    return next((str(tp.error) for tp in partitions or () if tp.error), None)
