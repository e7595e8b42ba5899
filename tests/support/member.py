"""A member of a group as the contract sees it: it does what it is told and remembers all of it."""

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from kworker.clients.consumer import LOST
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed
from tests.support.kafka_and_twin import Cluster
from tests.support.waiting import eventually

_BATCH = 100
_SERIAL = itertools.count()


def new_group() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}-{next(_SERIAL)}"


class Member:
    """Takes up what it is given at the committed positions, and reads it unless told not to."""

    def __init__(
        self,
        cluster: Cluster,
        topics: list[str],
        *,
        group: str = "",
        reads: bool = True,
        insists: bool = False,
        **properties: Any,
    ) -> None:
        """One that `insists` on a position begins nowhere without."""
        self.owned: list[PartitionId] = []
        self.told: list[tuple[str, Any]] = []  # what the listener heard, in order
        self.records: list[RawMessage] = []
        self.ends: list[tuple[PartitionId, int]] = []
        self.troubles: list[tuple[ConsumerEvent, str]] = []
        self.commit_on_revoke: dict[PartitionId, Committed] = {}
        self._wait_s = cluster.wait_s
        self._reads = reads
        self._insists = insists
        self._resume: list[PartitionId] = []
        self.consumer = cluster.consumer(self, group or new_group(), **properties)
        self.consumer.subscribe(topics)

    # -- the listener -----------------------------------------------------------------

    def assigned(self, partitions: list[PartitionId]) -> None:
        self.told.append(("assigned", sorted(partitions)))
        held = self.consumer.positions(partitions, 10.0) if partitions else {}
        none = LOST if self._insists else None
        self.consumer.assign({at: each.position if each else none for at, each in held.items()})
        self.owned = sorted({*self.owned, *partitions})
        self._resume += list(partitions) if self._reads else []

    def revoked(self, partitions: list[PartitionId]) -> None:
        self.told.append(("revoked", sorted(partitions)))
        if positions := {a: p for a, p in self.commit_on_revoke.items() if a in partitions}:
            self.consumer.commit_now(positions)
        self._drop(partitions)

    def lost(self, partitions: list[PartitionId]) -> None:
        self.told.append(("lost", sorted(partitions)))
        self._drop(partitions)

    def committed(self, error: str | None) -> None:
        self.told.append(("committed", error))

    def _drop(self, partitions: list[PartitionId]) -> None:
        self.consumer.unassign(partitions)
        self.owned = [at for at in self.owned if at not in partitions]

    # -- what tests do ----------------------------------------------------------------

    def turn(self) -> None:
        batch = self.consumer.poll(_BATCH, self._wait_s)
        if self._resume:
            self.consumer.resume(self._resume)
            self._resume = []
        for raw in batch:
            self._sort_in(raw)

    def heard(self, what: str) -> list[Any]:
        return [told for name, told in self.told if name == what]

    def values(self) -> list[bytes | None]:
        return [record.value() for record in self.records]

    def _sort_in(self, raw: RawMessage) -> None:
        if raw.error() is None:
            self.records.append(raw)
        elif (trouble := event_of(raw)) is ConsumerEvent.PARTITION_EOF:
            self.ends.append(((raw.topic(), raw.partition()), raw.offset()))
        else:
            self.troubles.append((trouble, raw.topic()))


def until(condition: Callable[[], object], *members: Member, what: str = "") -> None:
    """Lets every member take its turns until the condition holds."""

    def turned() -> object:
        for member in members:
            member.turn()
        return condition()

    eventually(turned, what=what)


def for_a_while(*members: Member, turns: int = 8) -> None:
    """Turns for claims that something does not happen; what would come comes at once."""
    for _ in range(turns):
        for member in members:
            member.turn()
