"""Intake: what the client returns, into ledger and lanes; and what its events mean."""

from collections.abc import Iterable
from typing import Protocol

import structlog

from kworker.clients.kafka import At, Refused, Trouble, trouble_of
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.message import RawMessage
from kworker.core.record import Partition, Record
from kworker.worker.assignment import Assigning, Assignment

_LOG = structlog.get_logger()

_ASK_S = 5.0
_OBJECT_BYTES = 400  # what a record costs beside its payload
_HEADER_BYTES = 100  # and a header


class Fenced(Exception):
    """Another process has taken this worker's identity in the group."""


class OutOfOrder(Exception):
    """The client delivered an offset again: its position is not what it should be."""


class Taking(Assigning, Protocol):
    """What the intake needs of `KafkaConsumer` or its twin."""

    def take(self, most: int, timeout_s: float) -> list[RawMessage]: ...
    def pause(self, partitions: Iterable[At]) -> None: ...
    def resume(self, partitions: Iterable[At]) -> None: ...
    def renew(self) -> None: ...
    def watermarks(self, at: At, timeout_s: float) -> tuple[int, int]: ...


class Intake:
    """Takes records of the present epochs; everything else comes again, or is an event.

    Owned by the poll thread.
    """

    def __init__(self, consumer: Taking, assignment: Assignment, lanes: Lanes, flow: Flow) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._lanes = lanes
        self._flow = flow
        self.consumed = 0
        self._takes = 0
        self.reasons: dict[str, str] = {}

    def take(self, most: int, wait_s: float) -> int:
        """How many records and events came. Rebalances happen in here.

        Raises Fenced; OutOfOrder, after which only a new start knows the position.
        """
        self._takes += 1
        batch = self._consumer.take(most, wait_s)
        if batch:
            self._deliver(batch)
        return len(batch)

    def rebalanced(self) -> None:
        """Reasons that the new assignment has answered are forgotten."""
        back = {f"source {topic}" for topic, _ in self._assignment.partitions}
        self.reasons = {
            name: text
            for name, text in self.reasons.items()
            if not name.startswith("gap ") and name not in back
        }

    def stopped(self, at: At) -> bool:
        """Whether a partition waits for a person, who decides where to go on."""
        return f"gap {at[0]}/{at[1]}" in self.reasons

    def _deliver(self, batch: list[RawMessage]) -> None:
        """Into ledger and lanes, a run of one partition at a time."""
        run: list[RawMessage] = []
        topic, number = "", -1
        for raw in batch:
            if raw.error() is not None:
                self._deliver_run(run)
                run = []
                self._event(raw)
            elif raw.partition() == number and raw.topic() == topic:
                run.append(raw)
            else:
                self._deliver_run(run)
                run = [raw]
                topic, number = raw.topic(), raw.partition()
        self._deliver_run(run)

    def _deliver_run(self, raws: list[RawMessage]) -> None:
        if not raws:
            return
        first = raws[0]
        partition = self._present((first.topic(), first.partition()))
        if partition is None:
            return
        offsets = [raw.offset() for raw in raws]
        if not partition.ledger.deliver_run(offsets):
            raise OutOfOrder(f"{partition.topic}/{partition.number}: {offsets[0]} came again")
        partition.ledger.mark(offsets[0], first.timestamp()[1])
        lane_of, takes = self._lanes.lane_of, self._takes
        records = []
        for raw, offset in zip(raws, offsets, strict=True):
            key = raw.key()
            size = _OBJECT_BYTES + len(raw) + (len(key) if key else 0)
            if headers := raw.headers():
                size += _size(headers)
            records.append(Record(partition, offset, lane_of(key), size, raw, takes))
        self._lanes.add(partition, records)
        self._flow.enter(partition, records)
        self.consumed += len(records)

    def _present(self, at: At) -> Partition | None:
        """None: what came is of an earlier epoch, or after the drain began, and comes again."""
        partition = self._assignment.partitions.get(at)
        if partition is None or partition in self._assignment.fresh or self._flow.stopped:
            return None
        return partition

    def _event(self, event: RawMessage) -> None:
        at = (event.topic(), event.partition())
        match trouble_of(event):
            case Trouble.END:
                partition = self._present(at)
                if partition is not None:
                    partition.at_end = True
                    partition.ledger.reach(event.offset())
            case Trouble.GAP:
                self._gap(at)
            case Trouble.FENCED:
                raise Fenced(str(event.error()))
            case Trouble.MISSING:
                self.reasons[f"source {at[0]}"] = f"cannot read {at[0]}: {event.error().str()}"
            case Trouble.PASSING:
                _LOG.warning("kafka reports; the client goes on", error=event.error().str())

    def _gap(self, at: At) -> None:
        """The partition stops, by itself: the client fetches nothing more of it."""
        name = f"{at[0]}/{at[1]}"
        partition = self._assignment.partitions.get(at)
        if partition is None:
            return  # its owner is told
        partition.at_end = True  # it waits for a person, and nobody waits for it
        try:
            low, high = self._consumer.watermarks(at, _ASK_S)
            holds = f"the partition now holds {low} to {high}"
        except Refused as refused:
            holds = f"what the partition holds is not known ({refused})"
        text = f"{name} stopped: its next record would be {partition.ledger.end}, but {holds}"
        self.reasons[f"gap {name}"] = f"{text}; `kworker offsets reset` decides where to go on"
        _LOG.error(text)


def _size(headers: list[tuple[str, bytes | None]]) -> int:
    return sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in headers)
