"""The delay partitions that the group has assigned to the delay process, and their records."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import structlog

from kworker.clients.awaited_positions import ASK_S, AwaitedPositions, PositionReader
from kworker.clients.errors import Fenced, KafkaRequestError
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.delay.partitions import DelayPartition, HoldPolicy
from kworker.delay.routes import SKEW_MS
from kworker.worker.intake import Taking

_LOG = structlog.get_logger()


class DelayConsumer(Taking, PositionReader, Protocol):
    """The methods of `KafkaConsumer` and its in-memory twin that the delay process calls."""

    @property
    def absence(self) -> Absence | None: ...
    def group_metadata(self) -> object: ...


class DelayAssignment:
    """The delay partitions that are assigned to this member now.

    This object is also the `Listener` that the consumer calls in a rebalance. Owned by the delay
    process's thread: every callback comes from inside `poll`. A revocation commits nothing: only
    the transactions that forward records commit positions.
    """

    def __init__(
        self,
        consumer: Callable[["DelayAssignment"], DelayConsumer],
        delay_ms: Callable[[str], int],
        policy: HoldPolicy,
        settle: Callable[[], None],
        goes_on: Callable[[], bool],
    ) -> None:
        """`settle` aborts a transaction that this process left open, or raises KafkaRequestError.

        `goes_on` is called during waits: it writes the heartbeat, and returns False when the
        process must end.
        """
        self.consumer = consumer(self)
        self.partitions: dict[PartitionId, DelayPartition] = {}
        self.problems: dict[str, str] = {}
        self.joined = False
        self.gone: set[PartitionId] = set()  # revoked or lost since the last turn
        self._delay_ms = delay_ms
        self._policy = policy
        self._settle = settle
        self.goes_on = goes_on
        self._awaited = AwaitedPositions(goes_on)
        self._paused: frozenset[PartitionId] = frozenset()
        self._fresh = False
        self._seen_ms = 0  # the wall clock at the last poll

    # -- the listener -----------------------------------------------------------------

    def assigned(self, partitions: list[PartitionId]) -> None:
        """Reads the committed positions and fetches from there; the rebalance waits meanwhile."""
        # A stopped partition that is not assigned anew stays stopped.
        stopped = {_name(at) for at in self.partitions.keys() - set(partitions)}
        self.problems = {name: text for name, text in self.problems.items() if name in stopped}
        positions = self._wait_for_positions(partitions) if partitions else {}
        for at, position in positions.items():
            self.partitions[at] = DelayPartition(self._delay_ms(at[0]), position)
        self.consumer.assign(positions)
        self.joined = self._fresh = True
        _LOG.info("delay partitions assigned to this process", partitions=_names(partitions))

    def revoked(self, partitions: list[PartitionId]) -> None:
        """Drops the held records of these partitions; their next owners read them again."""
        self._give_up(partitions)
        _LOG.info("delay partitions revoked from this process", partitions=_names(partitions))

    def lost(self, partitions: list[PartitionId]) -> None:
        """Drops the held records: other members may own their partitions, so commits would fail."""
        self._give_up(partitions)
        _LOG.warning(
            "delay partitions lost: this process is out of its consumer group; their next"
            " owners read the waiting records again",
            partitions=_names(partitions),
        )

    def committed(self, error: str | None) -> None:
        """Does nothing: the consumer commits no positions, transactions do."""

    def rejoin(self) -> None:
        """Discards a client that fails to rejoin the group, and creates a new one, which joins."""
        self.gone.update(self.partitions)
        self.partitions.clear()
        self.consumer.recreate()

    def _give_up(self, partitions: Collection[PartitionId]) -> None:
        for at in partitions:
            self.partitions.pop(at, None)
        self.gone.update(partitions)
        self.consumer.unassign(partitions)

    def _wait_for_positions(
        self, partitions: Iterable[PartitionId]
    ) -> dict[PartitionId, int | None]:
        """Returns the position to begin at in each partition; {} if the process must end first."""
        # First: an open transaction of ours would hide the positions.
        held = self._awaited.positions(self.consumer, list(partitions), self._settle)
        return {at: each and each.position for at, each in (held or {}).items()}

    @property
    def problem(self) -> str | None:
        """The reason why an assignment still waits for positions; None if none waits."""
        return self._awaited.problem

    # -- calls of the loop -----------------------------------------------------------

    def poll(self, most: int, timeout_s: float, wall_ms: Callable[[], int]) -> int:
        """Polls once, and holds the fetched records in memory until they are forwarded.

        Returns the number of messages. Raises Fenced if another process has taken the identity of
        this one in the group.
        """
        batch = self.consumer.poll(most, timeout_s)
        now_ms = wall_ms()
        if now_ms < self._seen_ms - SKEW_MS:
            for partition in self.partitions.values():
                partition.clock_set_back(now_ms)
        self._seen_ms = now_ms
        for raw in batch:
            if raw.error() is not None:
                self._event(raw)
            elif owned := self.partitions.get((raw.topic(), raw.partition())):
                owned.add(raw, now_ms)
                self.problems.pop(raw.topic(), None)  # the topic can be read after all
        return len(batch)

    def adjust(self, now_ms: int) -> None:
        """Pauses the partitions that hold as many records as the `HoldPolicy` allows.

        Resumes the other partitions.
        """
        paused = self._paused & self.partitions.keys()
        wanted = self._policy.to_pause(self.partitions, paused, now_ms)
        # New partitions begin paused, and a rebalance may have forgotten which were paused.
        pause = wanted if self._fresh else wanted - paused
        resume = self.partitions.keys() - wanted if self._fresh else paused - wanted
        if pause:
            self.consumer.pause(pause)
        if resume:
            self.consumer.resume(resume)
        self._paused, self._fresh = wanted, False

    def read_positions(self) -> list[PartitionId]:
        """Reads the committed positions and drops the records below them, which were forwarded.

        Returns the partitions whose position has changed. Raises KafkaRequestError if Kafka refuses
        the request or does not answer.
        """
        moved: list[PartitionId] = []
        if not self.partitions:
            return moved
        for at, held in self.consumer.positions(self.partitions, ASK_S).items():
            if held is not None:
                moved += [at] if held.position != self.partitions[at].committed else []
                self.partitions[at].advance_to(held.position)
        return moved

    def _event(self, event: RawMessage) -> None:
        at = (event.topic(), event.partition())
        match event_of(event):
            case ConsumerEvent.PARTITION_EOF:
                if partition := self.partitions.get(at):
                    partition.ledger.advance_end(event.offset())
                    self.problems.pop(at[0], None)
            case ConsumerEvent.OUT_OF_RANGE:
                self._stop_partition(at)
            case ConsumerEvent.FENCED:
                raise Fenced(str(event.error()))
            case ConsumerEvent.UNREADABLE if at[0].startswith("^"):
                self.joined = True  # no delay topic is there, so nothing waits
            case ConsumerEvent.UNREADABLE:
                self.problems[at[0]] = f"cannot read {at[0]}: {event.error().str()}"
            case ConsumerEvent.TRANSIENT:
                _LOG.warning(
                    "the Kafka client reports an error, from which it recovers by itself",
                    error=event.error().str(),
                )

    def _stop_partition(self, at: PartitionId) -> None:
        """Logs that a partition does not hold the offset that is to be read next.

        The client has stopped fetching from this partition.
        """
        if not (partition := self.partitions.get(at)):
            return  # its owner gets the same event
        name = _name(at)
        self.goes_on()
        try:
            low, high = self.consumer.watermarks(at, ASK_S)
            holds = f"the partition now holds {low} to {high}"
        except KafkaRequestError as refused:
            holds = f"the offsets it holds are unknown ({refused})"
        text = f"{name} stopped: its next record would be {partition.ledger.end}, but {holds}"
        self.problems[name] = f"{text}; reset its position in the delay group to go on"
        _LOG.error(text)


def _name(at: PartitionId) -> str:
    return f"{at[0]}/{at[1]}"


def _names(partitions: Iterable[PartitionId]) -> list[str]:
    return [_name(at) for at in sorted(partitions)]
