"""What the group has given the delay process: delay partitions, and what is held of each."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import structlog

from kworker.clients.awaited_positions import ASK_S, AwaitedPositions, PositionReader
from kworker.clients.errors import KafkaRequestError
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.delay.partitions import DelayPartition, HoldPolicy
from kworker.delay.routes import SKEW_MS
from kworker.worker.intake import Fenced, Taking

_LOG = structlog.get_logger()


class DelayConsumer(Taking, PositionReader, Protocol):
    """What the heads need of `KafkaConsumer` or its twin."""

    @property
    def absence(self) -> Absence | None: ...
    def group_metadata(self) -> object: ...


class DelayAssignment:
    """The partitions that this member owns now; the consumer's `Listener`.

    Owned by the delay process's thread: every callback comes from inside `poll`. Nothing
    is committed at a revoke: positions go only with what is forwarded.
    """

    def __init__(
        self,
        consumer: Callable[["DelayAssignment"], DelayConsumer],
        delay_ms: Callable[[str], int],
        policy: HoldPolicy,
        settle: Callable[[], None],
        waits: Callable[[], bool],
    ) -> None:
        """`settle` ends any doubt about transactions of ours, or raises Refused.

        `waits` is asked by whatever waits: it beats, and is False when it is time to end.
        """
        self.consumer = consumer(self)
        self.heads: dict[PartitionId, DelayPartition] = {}
        self.reasons: dict[str, str] = {}
        self.joined = False
        self.gone: set[PartitionId] = set()  # since the last look
        self._delay_ms = delay_ms
        self._policy = policy
        self._settle = settle
        self.goes_on = waits
        self._awaited = AwaitedPositions(waits)
        self._paused: frozenset[PartitionId] = frozenset()
        self._fresh = False
        self._seen_ms = 0  # on the clock, when it was last looked at

    # -- the listener -----------------------------------------------------------------

    def assigned(self, partitions: list[PartitionId]) -> None:
        """Reads positions back and begins there; the group waits meanwhile."""
        # A partition that stopped, and is not given anew, stands still as before.
        stopped = {_name(at) for at in self.heads.keys() - set(partitions)}
        self.reasons = {name: text for name, text in self.reasons.items() if name in stopped}
        positions = self._positions(partitions) if partitions else {}
        for at, position in positions.items():
            self.heads[at] = DelayPartition(self._delay_ms(at[0]), position)
        self.consumer.assign(positions)
        self.joined = self._fresh = True
        _LOG.info("assigned", partitions=_names(partitions))

    def revoked(self, partitions: list[PartitionId]) -> None:
        """What is held is taken, and waits, at its next owner's."""
        self._give_up(partitions)
        _LOG.info("revoked", partitions=_names(partitions))

    def lost(self, partitions: list[PartitionId]) -> None:
        """Others may own them already, and ours could not be committed any more."""
        self._give_up(partitions)
        _LOG.warning("partitions lost; others wait for their records", of=_names(partitions))

    def committed(self, error: str | None) -> None:
        """Never asked for: transactions commit."""

    def rejoin(self) -> None:
        """Another member in place of this one, which has nobody left to answer."""
        self.gone.update(self.heads)
        self.heads.clear()
        self.consumer.recreate()

    def _give_up(self, partitions: Collection[PartitionId]) -> None:
        for at in partitions:
            self.heads.pop(at, None)
        self.gone.update(partitions)
        self.consumer.unassign(partitions)

    def _positions(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, int | None]:
        """None, when it is time to end before they are known."""
        # First: an open transaction of ours would hide the positions.
        held = self._awaited.positions(self.consumer, list(partitions), self._settle)
        return {at: each and each.position for at, each in (held or {}).items()}

    @property
    def waits_for(self) -> str | None:
        """What an assignment inside the present turn cannot do without."""
        return self._awaited.reason

    # -- what the loop does -----------------------------------------------------------

    def take(self, most: int, timeout_s: float, wall_ms: Callable[[], int]) -> int:
        """How many records and events came. Raises Fenced."""
        batch = self.consumer.poll(most, timeout_s)
        now_ms = wall_ms()
        if now_ms < self._seen_ms - SKEW_MS:
            for waiting in self.heads.values():
                waiting.set_back(now_ms)
        self._seen_ms = now_ms
        for raw in batch:
            if raw.error() is not None:
                self._event(raw)
            elif head := self.heads.get((raw.topic(), raw.partition())):
                head.take(raw, now_ms)
                self.reasons.pop(raw.topic(), None)  # it can be read after all
        return len(batch)

    def adjust(self, now_ms: int) -> None:
        """Pauses what holds enough, resumes what does not."""
        paused = self._paused & self.heads.keys()
        wanted = self._policy.to_pause(self.heads, paused, now_ms)
        # What is new begins paused; and what was paused a rebalance may have forgotten.
        pause = wanted if self._fresh else wanted - paused
        resume = self.heads.keys() - wanted if self._fresh else paused - wanted
        if pause:
            self.consumer.pause(pause)
        if resume:
            self.consumer.resume(resume)
        self._paused, self._fresh = wanted, False

    def read_back(self) -> list[PartitionId]:
        """What the group has was forwarded, whatever we know of it: where it did more than that.

        Raises Refused.
        """
        moved: list[PartitionId] = []
        if not self.heads:
            return moved
        for at, held in self.consumer.positions(self.heads, ASK_S).items():
            if held is not None:
                moved += [at] if held.position != self.heads[at].committed else []
                self.heads[at].reached(held.position)
        return moved

    def _event(self, event: RawMessage) -> None:
        at = (event.topic(), event.partition())
        match event_of(event):
            case ConsumerEvent.PARTITION_EOF:
                if head := self.heads.get(at):
                    head.ledger.advance_end(event.offset())
                    self.reasons.pop(at[0], None)
            case ConsumerEvent.OUT_OF_RANGE:
                self._gap(at)
            case ConsumerEvent.FENCED:
                raise Fenced(str(event.error()))
            case ConsumerEvent.UNREADABLE if at[0].startswith("^"):
                self.joined = True  # no delay topic is there, so nothing waits
            case ConsumerEvent.UNREADABLE:
                self.reasons[at[0]] = f"cannot read {at[0]}: {event.error().str()}"
            case ConsumerEvent.TRANSIENT:
                _LOG.warning("kafka reports; the client goes on", error=event.error().str())

    def _gap(self, at: PartitionId) -> None:
        """The partition stops, by itself: the client fetches nothing more of it."""
        if not (head := self.heads.get(at)):
            return  # its owner is told
        name = _name(at)
        self.goes_on()
        try:
            low, high = self.consumer.watermarks(at, ASK_S)
            holds = f"the partition now holds {low} to {high}"
        except KafkaRequestError as refused:
            holds = f"what the partition holds is not known ({refused})"
        text = f"{name} stopped: its next record would be {head.ledger.end}, but {holds}"
        self.reasons[name] = f"{text}; reset its position in the delay group to go on"
        _LOG.error(text)


def _name(at: PartitionId) -> str:
    return f"{at[0]}/{at[1]}"


def _names(partitions: Iterable[PartitionId]) -> list[str]:
    return [_name(at) for at in sorted(partitions)]
