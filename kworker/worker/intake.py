"""Intake: puts the consumer's records into ledgers and lanes; handles the consumer's events.

One file over 300 lines, since it handles every kind of record and event of the client.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from kworker.clients.errors import Fenced, KafkaRequestError
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.chunk import Chunk, Columns
from kworker.core.failure import Described, Failure, FailureKind
from kworker.core.flow import Flow
from kworker.core.headers import Envelope, Forged
from kworker.core.lanes import Lanes
from kworker.core.memory_size import size_together, sizes_of
from kworker.core.message import (
    NO_HEADERS,
    HeaderList,
    PartitionId,
    RawMessage,
    headers_of,
    with_headers,
)
from kworker.core.outcome import TOMBSTONE, Failed
from kworker.core.record import Partition, Record, records_of
from kworker.core.record_groups import edges
from kworker.worker.assignment import Assigning, Assignment

_LOG = structlog.get_logger()

_ASK_S = 5.0
_NO_POSITION = "the group had a position there and has none now;"
_CHUNK_LEAST = 16  # records: with fewer, a chunk saves little
_CHUNK_MOST = 128  # so that partitions may share a run


class OutOfOrder(Exception):
    """The consumer returned an offset for a second time, so its position is wrong."""


class Taking(Assigning, Protocol):
    """The methods of `KafkaConsumer`, and of its in-memory twin, that the intake uses."""

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]: ...
    def pause(self, partitions: Iterable[PartitionId]) -> None: ...
    def resume(self, partitions: Iterable[PartitionId]) -> None: ...
    def seek(self, at: PartitionId, offset: int) -> None: ...
    def recreate(self) -> None: ...
    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class IntakePolicy:
    """The settings of the intake.

    They name the requeue topic, tell which topics are source topics, limit the age of new records,
    and say whether tombstones (records without a value) are skipped.
    """

    requeue: str = ""
    is_source: Callable[[str], bool] = lambda _topic: True
    max_age_s: float | None = None
    skips_tombstones: bool = False


class Intake:
    """Moves records from the consumer to the queues of their keys.

    Also handles the consumer's events, such as errors. Owned by the poll thread. Ignores records
    that the client fetched for an earlier assignment, since these are delivered again.
    """

    def __init__(
        self,
        consumer: Taking,
        assignment: Assignment,
        lanes: Lanes,
        flow: Flow,
        policy: IntakePolicy,
        end_early: Callable[[list[Record]], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._lanes = lanes
        self._flow = flow
        self._policy = policy
        self._end_early = end_early
        self._wall = wall
        self.consumed = 0
        self.remembered = 0  # records that were done before, as a map told
        self._taken_ns = 0  # the time of the last poll that brought anything
        self._gap_problems: dict[PartitionId, str] = {}  # of stopped partitions
        self._topic_problems: dict[str, str] = {}  # of topics, or of a pattern that matches none
        self._read_elsewhere: set[str] = set()  # topics that exist, of which this worker has none

    def take(self, most: int, wait_s: float) -> int:
        """Polls the consumer; returns the number of records and events.

        Rebalances happen during this call. Raises Fenced if another process has taken this worker's
        place in the group. Raises OutOfOrder if the consumer returns an offset twice; then the
        worker must be restarted.
        """
        batch = self._consumer.poll(most, wait_s)
        if batch:
            self._taken_ns = time.monotonic_ns()
            self._deliver(batch)
        return len(batch)

    def rebalanced(self, fresh: Collection[Partition]) -> None:
        """Drops problems that the new assignment has solved.

        A partition that stopped, and was not assigned anew, remains stopped.
        """
        begun = {(partition.topic, partition.number) for partition in fresh}
        owned = self._assignment.partitions.keys()
        stopped = owned - begun
        self._gap_problems = {at: text for at, text in self._gap_problems.items() if at in stopped}
        read = {topic for topic, _ in owned}
        matched = any(map(self._policy.is_source, read))
        self._topic_problems = {
            topic: text
            for topic, text in self._topic_problems.items()
            if topic not in read and not (matched and _is_pattern(topic))
        }

    def note_existing(self, topics: Collection[str]) -> None:
        """Hides the problems of existing topics of which this worker has no partition.

        `topics` are those that exist, by the brokers' last answer, of the topics that this worker
        asked about. If a topic is missing, the client tells this to every member, once. When the
        topic is back, only a member that gets a partition of it notices. The problem is hidden and
        not forgotten, since the brokers' answer may be older than the problem.
        """
        self._read_elsewhere = {*topics} - {topic for topic, _ in self._assignment.partitions}

    @property
    def unreadable(self) -> set[str]:
        """The topics that the client could not read, and of which it has read nothing since."""
        return {topic for topic in self._topic_problems if not _is_pattern(topic)}

    @property
    def problems(self) -> list[str]:
        """One line for each stopped partition, and for each topic that cannot be read."""
        unread = self._topic_problems.keys() - self._read_elsewhere
        of_topics = [text for topic, text in self._topic_problems.items() if topic in unread]
        return [*self._gap_problems.values(), *of_topics]

    def stopped(self, at: PartitionId) -> bool:
        """Returns True if a partition is not read any more, until a `kworker offsets reset`."""
        return at in self._gap_problems

    def _deliver(self, batch: list[RawMessage]) -> None:
        """Passes on what a poll returned, in the same order: records, and events of the client.

        Adjacent records of one partition are passed on together, which costs half as much.
        """
        errors = [raw.error() for raw in batch]
        if not any(errors):  # to compare one with None raises
            self._deliver_records(batch)
            return
        begin = 0
        for i in [i for i, error in enumerate(errors) if error is not None]:
            self._deliver_records(batch[begin:i])
            self._event(batch[i])
            begin = i + 1
        self._deliver_records(batch[begin:])

    def _deliver_records(self, raws: list[RawMessage]) -> None:
        topics, numbers = [raw.topic() for raw in raws], [raw.partition() for raw in raws]
        begin = 0
        for end in sorted({*edges(topics), *edges(numbers)}):
            self._deliver_run((topics[begin], numbers[begin]), raws[begin:end])
            begin = end

    def _deliver_run(self, at: PartitionId, raws: list[RawMessage]) -> None:
        partition = self._present(at)
        if partition is None:
            return
        self._read_again(at[0])
        offsets = [raw.offset() for raw in raws]
        if (fit := partition.ledger.count_fitting(offsets)) < len(raws):
            self._give_back(partition, offsets[fit])
            raws, offsets = raws[:fit], offsets[:fit]
            if not raws:
                return
        done = partition.ledger.deliver_run(offsets)
        if done is None:
            name = f"{partition.topic}/{partition.number}"
            raise OutOfOrder(
                f"the Kafka client returned offset {offsets[0]} of {name} a second time, so its"
                " position is wrong; the worker exits and is started again"
            )
        if done:
            self.remembered += len(done)
            raws = [raw for raw in raws if raw.offset() not in done]
            offsets = [offset for offset in offsets if offset not in done]
        if raws:
            self._add(partition, raws, offsets)

    def _read_again(self, topic: str) -> None:
        """Forgets the error of a topic that could not be read, and now can be."""
        if self._topic_problems:
            self._topic_problems.pop(topic, None)

    def _give_back(self, partition: Partition, offset: int) -> None:
        """Pauses a partition at the first record for which its offset map has no room."""
        at = (partition.topic, partition.number)
        self._consumer.pause([at])
        self._consumer.seek(at, offset)
        self._flow.crowd(partition, offset)

    def _add(self, partition: Partition, raws: list[RawMessage], offsets: list[int]) -> None:
        if (stamp := raws[0].timestamp()[1]) >= 0:  # else it has none, whatever it says
            partition.ledger.sample_timestamp(offsets[0], stamp)
        keys = [raw.key() for raw in raws]
        headers, unreadable = headers_of(raws)
        if unreadable:
            raws = [with_headers(raw, ()) if i in unreadable else raw for i, raw in enumerate(raws)]
        lanes = self._lanes.lanes_of(keys)
        self.consumed += len(raws)
        if self._lanes.takes_chunks and self._fit_for_chunks(partition, raws) and not unreadable:
            given = headers if any(headers) else None
            columns = Columns(offsets, lanes, raws, self._taken_ns, given)
            self._add_chunks(partition, columns, keys, headers)
            return
        sizes = sizes_of(raws, keys, headers)
        records = records_of(partition, offsets, lanes, sizes, raws, self._taken_ns)
        self._flow.enter(partition, sizes)
        if unreadable:
            records = self._readable(records, unreadable)
        if partition.topic == self._policy.requeue:
            self._join_sources(records)
            return
        if self._policy.skips_tombstones:
            records = self._valued(records)
        if self._policy.max_age_s is not None:
            records = self._young(records, self._policy.max_age_s)
        self._lanes.add(partition, records)
        if late := self._lanes.held_back(records):
            self._flow.hold(late)

    def _fit_for_chunks(self, partition: Partition, raws: list[RawMessage]) -> bool:
        """Returns True if there are many records, and all of them go to their handler as new."""
        policy = self._policy
        if policy.skips_tombstones or policy.max_age_s is not None:
            return False
        return len(raws) >= _CHUNK_LEAST and partition.topic != policy.requeue

    def _add_chunks(
        self,
        partition: Partition,
        columns: Columns,
        keys: list[bytes | None],
        headers: list[HeaderList | None],
    ) -> None:
        for begin in range(0, len(headers), _CHUNK_MOST):
            end = begin + _CHUNK_MOST
            part = columns.part(begin, end)
            total, most = size_together(part.raws, keys[begin:end], headers[begin:end])
            self._flow.enter_together(partition, len(part.raws), total, most)
            self._lanes.add_chunk(Chunk(partition, part, total))

    def _readable(self, records: list[Record], raised: Mapping[int, Exception]) -> list[Record]:
        """Fails the records whose headers made the client raise; returns the other records."""
        for i, error in raised.items():
            self._end_early([_dead(records[i], Failure.unreadable(error, NO_HEADERS))])
        return [record for i, record in enumerate(records) if i not in raised]

    def _join_sources(self, records: list[Record]) -> None:
        """Puts each record of the requeue topic into the queue of its source partition and key.

        A record with forged or unreadable headers fails instead.
        """
        for record in records:
            try:
                envelope = Envelope.open(record.raw.headers() or ())
                source = envelope.source
                if not self._policy.is_source(source.topic):
                    topic = source.topic
                    raise Forged(
                        f"the header kworker-source names {topic}, which this service does not read"
                    )
            except Forged as forged:
                self._end_early(
                    [_failed(record, "undecodable", f"headers are not kworker's: {forged}")]
                )
                continue
            except Exception as error:  # noqa: BLE001 - becomes the dead letter of that record
                failure = Failure.unreadable(error, "kworker's headers cannot be read")
                self._end_early([_dead(record, failure.with_stack(error))])
                continue
            at = (source.topic, source.partition)
            record.comes_again(envelope, self._assignment.index_of_guest(at))
            if self._policy.skips_tombstones and not self._valued([record]):
                continue
            self._lanes.add_again(record)
            if self._lanes.held_back((record,)):
                self._flow.hold((record,))

    def _valued(self, records: list[Record]) -> list[Record]:
        """Ends the records without a value, which are skipped; returns the others."""
        tombstones = [record for record in records if record.raw.value() is None]
        if not tombstones:
            return records
        for record in tombstones:
            record.lane = None  # no other record waits for it
            record.outcome = TOMBSTONE
        _log_skipped(tombstones)
        self._end_early(tombstones)
        return [record for record in records if record.outcome is None]

    def _young(self, records: list[Record], max_age_s: float) -> list[Record]:
        """Fails records older than `max_age_s`; returns the others. Not called for retries."""
        oldest_ms = (self._wall() - max_age_s) * 1000
        old = [record for record in records if 0 <= record.raw.timestamp()[1] < oldest_ms]
        if not old:
            return records
        self._end_early([_failed(record, "expired", "older than source.max_age") for record in old])
        expired = set(old)
        return [record for record in records if record not in expired]

    def _present(self, at: PartitionId) -> Partition | None:
        """Returns the partition if its records may be taken now, otherwise None.

        Returns None for a partition that is not assigned, was assigned during this very poll, or
        has a full offset map. Once a drain has begun, returns None for every partition.
        """
        partition = self._assignment.partitions.get(at)
        if partition is None or partition in self._assignment.fresh or self._flow.stopped:
            return None
        return partition if partition.map_full_from is None else None

    def _event(self, event: RawMessage) -> None:
        at = (event.topic(), event.partition())
        match event_of(event):
            case ConsumerEvent.PARTITION_EOF:
                partition = self._present(at)
                if partition is not None:
                    partition.ledger.advance_end(event.offset())
                    self._read_again(at[0])
            case ConsumerEvent.OUT_OF_RANGE:
                self._gap(at)
            case ConsumerEvent.FENCED:
                raise Fenced(str(event.error()))
            case ConsumerEvent.UNREADABLE:
                self._topic_problems[at[0]] = f"cannot read {at[0]}: {event.error().str()}"
                self._read_elsewhere.discard(at[0])
            case ConsumerEvent.TRANSIENT:
                _LOG.warning(
                    "the Kafka client reports an error, from which it recovers by itself",
                    error=event.error().str(),
                )

    def _gap(self, at: PartitionId) -> None:
        """Reports a partition that the client fetches no more: its position is out of range."""
        name = f"{at[0]}/{at[1]}"
        partition = self._assignment.partitions.get(at)
        if partition is None:
            return  # its owner is told
        self._assignment.beat()
        partition.end_offset = 0  # it waits for a person, and nobody waits for it
        try:
            low, high = self._consumer.watermarks(at, _ASK_S)
            holds = f"the partition now holds {low} to {high}"
        except KafkaRequestError as refused:
            holds = f"what the partition holds is not known ({refused})"
        end = partition.ledger.end
        would = f"its next record would be {end}, but" if end is not None else _NO_POSITION
        text = f"{name} stopped: {would} {holds}"
        self._gap_problems[at] = f"{text}; `kworker offsets reset` decides where to go on"
        _LOG.error(text)


def _is_pattern(topic: str) -> bool:
    """Returns True if `topic` is a regular expression.

    If no topic matches the expression, the client's error has the expression as its topic.
    """
    return topic.startswith("^")


def _log_skipped(tombstones: list[Record]) -> None:
    if _LOG.is_enabled_for(logging.DEBUG):  # to make a position costs more than all else here
        for record in tombstones:
            _LOG.debug(
                'tombstone skipped: the handler is not called, since source.tombstones = "skip"',
                source=str(record.source),
            )


def _failed(record: Record, kind: FailureKind, message: str) -> Record:
    return _dead(record, Failure(kind, message=message))


def _dead(record: Record, failure: Failure) -> Record:
    """Fails a record, and gives it no lane, so that no other record waits for it."""
    record.lane = None
    record.outcome = Failed(Described(failure))
    return record
