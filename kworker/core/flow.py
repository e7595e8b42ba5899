"""Back-pressure: the room for more records, and the partitions that must wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kworker.core.chunk import ChunkPart
from kworker.core.pauses import NOTHING_PAUSED
from kworker.core.record import Partition, Record
from kworker.core.record_groups import Groups, by_partition


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """The limits on the number and size of the unfinished records in one worker's memory."""

    records_max: int
    bytes_max: int
    held_max: int = 5_000  # records of keys that are held
    held_bytes_max: int = 16 << 20
    low: float = 0.5  # of its bound, at which a paused partition resumes
    patience_s: float = 0.5  # without room; then pause, and poll on
    starving_s: float = 1.0  # while a partition over its credit keeps another from any record
    starving_most_s: float = 5.0  # the same, even if there is room for the other's records
    crowded_records: int = 250  # with map room for so many, a partition resumes
    crowded_s: float = 5.0  # with a full map, before that is reported


class Flow:
    """Counts a worker's records in flight. Decides how many to take, and which partitions to pause.

    Owned by the poll thread. When a partition is paused, the client throws away the records that it
    has prefetched of that partition. So a worker without room at first only stops taking records.
    After `patience_s` without room it pauses all partitions, because it must go on polling to stay
    in the group.

    A partition starves if it has records in Kafka, but none in flight. While a partition starves,
    each other partition has a credit: about twice an even share of the worker's limits. A partition
    is paused once its records in flight have filled its credit for `starving_s`, and another
    partition has starved for `starving_s`. But the pause is put off if, since the other partition
    began to starve, the worker has taken as many records as it may have in flight. Then room is
    not what the starving partition lacks: the client first delivers the many records of others that
    it has prefetched. The pause is put off only until the starving partition has starved for
    `starving_most_s`.

    The offset map in a partition's commit metadata is full when too many of its records are
    unfinished, or their offsets are too far apart. Then the poll loop pauses the partition at the
    first record without room in the map. The partition stays paused until its map has room again.

    Partitions of topics that an operator has paused are no part of this: they have no credit, and
    do not starve.
    """

    def __init__(self, policy: FlowPolicy) -> None:
        self._policy = policy
        self.records = 0
        self.bytes = 0
        self.held = 0  # not in flight: these wait, with their keys
        self.held_bytes = 0
        self._held: set[Record] = set()
        self._largest = 1  # bytes of the largest record seen lately
        self._full_since: float | None = None
        self._had_room = False  # since the last look
        self._all_paused = False
        self._taken = 0  # records, ever
        self._starving_since: dict[Partition, tuple[float, int]] = {}  # and `_taken` at that time
        self._over_since: dict[Partition, float] = {}
        self._crowded_since: dict[Partition, float] = {}
        self.paused: set[Partition] = set()
        self.stopped = False  # for good: draining
        self.blocked = False  # for now: what is finished cannot be published
        self.by_operator = NOTHING_PAUSED  # topics

    def forget(self, partition: Partition) -> None:
        """Removes a closed partition, with its records in flight and held, from all counts."""
        self.records -= partition.in_flight
        self.bytes -= partition.in_flight_bytes
        partition.in_flight = partition.in_flight_bytes = 0
        self.held -= partition.held
        self.held_bytes -= partition.held_bytes
        partition.held = partition.held_bytes = 0
        self._held = {record for record in self._held if record.partition is not partition}
        self.paused.discard(partition)
        self._over_since.pop(partition, None)
        self._crowded_since.pop(partition, None)

    def crowd(self, partition: Partition, offset: int) -> None:
        """Notes that a partition, paused already, has no room in its offset map for `offset`."""
        partition.map_full_from = offset
        self.paused.add(partition)

    def enter(self, partition: Partition, sizes: Sequence[int]) -> None:
        """Counts records taken from one partition as in flight, by their sizes in bytes."""
        self.enter_together(partition, len(sizes), sum(sizes), max(sizes))

    def enter_together(self, partition: Partition, number: int, total: int, most: int) -> None:
        """Counts `number` records of `total` bytes, none of them of more than `most`."""
        self.records += number
        self.bytes += total
        self._taken += number
        partition.in_flight += number
        partition.in_flight_bytes += total
        # Forgets slowly, so that one large record makes the next takes careful.
        self._largest = max(most, self._largest - (self._largest >> 4))

    def leave(self, records: Sequence[Record]) -> None:
        """Counts records as no longer in flight.

        They have ended, were dropped, or are held in memory until a retry.
        """
        self.leave_grouped(by_partition(records))

    def leave_grouped(self, groups: Groups) -> None:
        """Does what `leave` does, with records that are grouped by partition already."""
        for partition, own in groups:
            self._leave(partition, len(own), sum([record.memory_bytes for record in own]))

    def leave_parts(self, parts: Sequence[ChunkPart]) -> None:
        """Does what `leave` does, with the records of parts of chunks."""
        for part in parts:
            self._leave(part.partition, part.number, part.memory_bytes)

    def _leave(self, partition: Partition, number: int, total: int) -> None:
        partition.in_flight -= number
        partition.in_flight_bytes -= total
        self.records -= number
        self.bytes -= total

    def drop(self, records: Sequence[Record]) -> None:
        """Removes dropped records from the counts, whether held or in flight."""
        self.release(records)
        self.leave(records)

    def hold(self, records: Iterable[Record]) -> None:
        """Counts records as held, no longer in flight: they wait in memory for a retry."""
        fresh = [record for record in records if record not in self._held]
        self.leave(fresh)
        self._held.update(fresh)
        self._count_held(fresh, 1)

    def release(self, records: Iterable[Record]) -> None:
        """Counts records as in flight again. Ignores those that were not held."""
        back = [record for record in records if record in self._held]
        self._held.difference_update(back)
        self._count_held(back, -1)
        for record in back:
            self.enter(record.partition, (record.memory_bytes,))

    def _count_held(self, records: Iterable[Record], sign: int) -> None:
        for record in records:
            self.held += sign
            self.held_bytes += sign * record.memory_bytes
            record.partition.held += sign
            record.partition.held_bytes += sign * record.memory_bytes

    def room(self, most: int) -> int:
        """Returns the number of records to take now, at most `most`.

        Returns 0 if the worker is full, is draining, or cannot publish its results.
        """
        room = self._room(most)
        self._had_room |= room > 0
        return room

    def _room(self, most: int) -> int:
        if self.stopped or self.blocked or self._held_full():
            return 0
        by_bytes = (self._policy.bytes_max - self.bytes) // self._largest
        if self.records == 0:
            by_bytes = max(1, by_bytes)
        return max(0, min(most, self._policy.records_max - self.records, by_bytes))

    def _held_full(self) -> bool:
        """Returns True if no more records may be held.

        Then no record is taken, because it might have to be held.
        """
        policy = self._policy
        return self.held >= policy.held_max or self.held_bytes >= policy.held_bytes_max

    def must_pause_all(self, now: float) -> bool:
        """Returns True if all partitions must be paused.

        Once the worker drains, they are paused for good. They must also be paused once the worker
        has had no room for `patience_s`, and until the worker is well below its limits.
        """
        if self.stopped:
            return True
        if self._all_paused and not self._low():
            return True
        if self._room(1) or self._had_room:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        self._had_room = False
        since = now if self._full_since is None else self._full_since
        self._all_paused = now - since >= self._policy.patience_s
        return self._all_paused

    def _low(self) -> bool:
        low = self._policy.low
        return self._room(1) > 0 and (
            self.records <= self._policy.records_max * low
            and self.bytes <= self._policy.bytes_max * low
        )

    def to_pause(self, partitions: Iterable[Partition], now: float) -> set[Partition]:
        """Returns the assigned partitions to pause; all others are to be resumed."""
        assigned = list(partitions)
        self._look_at_crowded(assigned, now)
        if self.must_pause_all(now):
            self._over_since.clear()
            self._starving_since.clear()
            return set(assigned)
        ordered = {p for p in assigned if p.topic in self.by_operator}
        rest = [p for p in assigned if p not in ordered] if ordered else assigned
        share = min(1.0, 2 / (len(rest) + 1))
        starving = [p for p in rest if p.starving]
        waiting = self._look_at_starving(starving, now)
        spare = not starving and self._low()
        # A paused one waits until it is well below its share and its offset map has room again; if
        # nobody else has use for the limits, it may have all of them.
        credit = 1.0 if spare else share * self._policy.low
        kept = self._over([p for p in rest if p in self.paused], credit)
        running = [p for p in rest if p not in self.paused]
        return ordered | {*kept} | self._greedy(running, share, now, waiting=waiting)

    def _look_at_starving(self, starving: Iterable[Partition], now: float) -> bool:
        """Notes since when partitions starve; returns True if one has starved for too long.

        A partition that is paused does not count as starving.
        """
        before, begins = self._starving_since, (now, self._taken)
        self._starving_since = {p: before.get(p, begins) for p in starving if p not in self.paused}
        policy = self._policy
        return any(
            now - since >= policy.starving_s
            and (self._taken - taken < policy.records_max or now - since >= policy.starving_most_s)
            for since, taken in self._starving_since.values()
        )

    def _greedy(
        self, running: Iterable[Partition], share: float, now: float, *, waiting: bool
    ) -> set[Partition]:
        """Returns those to pause of the `running` partitions, so that others get records, too.

        They have had at least `share` of the worker's limits for `starving_s` seconds, and
        `waiting` is True: another partition has starved for too long.
        """
        over = self._over(running, share)
        self._over_since = {p: self._over_since.get(p, now) for p in over}
        if not waiting:
            return set()
        greedy = {p for p in over if now - self._over_since[p] >= self._policy.starving_s}
        for partition in greedy:
            del self._over_since[partition]
        return greedy

    def _over(self, partitions: Iterable[Partition], share: float) -> list[Partition]:
        """Returns those that have a share of the worker's limits, or no room in their map.

        All at once, since a worker may have hundreds.
        """
        records = max(1.0, self._policy.records_max * share)
        size = self._policy.bytes_max * share
        return [
            p
            for p in partitions
            if p.in_flight >= records or p.in_flight_bytes >= size or p.map_full_from is not None
        ]

    def _look_at_crowded(self, partitions: Iterable[Partition], now: float) -> None:
        for partition in partitions:
            if partition.map_full_from is None:
                continue
            if partition.ledger.has_room(self._policy.crowded_records, partition.map_full_from):
                partition.map_full_from = None
                self._crowded_since.pop(partition, None)
            else:
                self._crowded_since.setdefault(partition, now)

    def crowded(self, now: float) -> list[Partition]:
        """Returns the partitions whose offset map has been full for `crowded_s`."""
        patience_s = self._policy.crowded_s
        return [p for p, since in self._crowded_since.items() if now - since >= patience_s]
