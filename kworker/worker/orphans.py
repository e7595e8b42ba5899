"""Orphaned runs: those that outlive a revoke of their partition, and the use of their outcomes."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.message import PartitionId
from kworker.core.record import Partition, Record

LaneName = tuple[object, ...]
"""The identity of a lane across assignments; for a record without a lane, its position."""


class EndedRuns(NamedTuple):
    """Runs that ended after their partition was revoked, and records that waited for them.

    `adopted` and `useless` have the runs. `freed` has the records that waited: they may run now.
    """

    adopted: list[Record]  # each takes the place of its own redelivery, in the present epoch
    freed: list[Record]  # may run now
    useless: list[Record]  # another member's to redo, or already covered by the position


class FinishedRun(NamedTuple):
    """A run that began before a rebalance and has ended.

    The record of this run was delivered again after the rebalance.
    """

    run: Record


class LaneBusy(NamedTuple):
    """A run that began before a rebalance occupies the record's lane, the queue of its key."""


LANE_BUSY = LaneBusy()


class _OrphanLane:
    """The runs of one key that began before a rebalance, and records that wait for these."""

    __slots__ = ("following", "going", "useful")

    def __init__(self) -> None:
        self.going: set[Record] = set()  # have not ended
        self.useful: list[Record] = []  # may be adopted, when or since they have ended
        # Of the present epoch, and first in their lane: one in each partition that has the lane.
        self.following: list[Record] = []

    def __bool__(self) -> bool:
        return bool(self.going or self.useful or self.following)

    def run_of(self, record: Record) -> Record | None:
        """Returns this record's own run from before a rebalance, if its outcome is still useful."""
        return _same(self.useful, record)


class OrphanedRuns:
    """Handler runs that were still going when their partition was revoked.

    Owned by the poll thread. If the partition returns, its uncommitted records are redelivered and
    wait in the lanes (one lane for each key). A redelivered record waits here for any orphaned run
    of its lane. If that run is a run of this same record, the run is adopted: its outcome is used,
    and the handler is not called again. So an outcome is used only if its record was delivered
    under the present assignment (epoch), and only once.

    Outcomes are adopted in the order of their lane. If an earlier record of the lane has to run
    first, orphaned runs of later records came too early: they are discarded, and those records run
    again.
    """

    def __init__(self, *, keeps: bool) -> None:
        """`keeps` tells whether outcomes of ended runs are kept here until the redelivery.

        If `keeps` is False, Redis keeps these outcomes.
        """
        self._keeps = keeps
        self._lanes: dict[LaneName, _OrphanLane] = {}
        self._here: dict[PartitionId, Partition] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    # -- epochs -----------------------------------------------------------------------

    def close(self, partition: Partition) -> list[Record]:
        """Forgets the waiting records of a revoked partition.

        Returns an empty list, because a waiting record has no claim that must be released.
        """
        self._here.pop(_at(partition), None)
        for lane in self._lanes.values():
            lane.following = [one for one in lane.following if one.partition is not partition]
        self._prune()
        return []

    def take_over(self, running: Iterable[Record]) -> None:
        """Takes over the records of a revoked partition whose handlers are still running."""
        for run in running:
            lane = self._lanes.setdefault(_name(run), _OrphanLane())
            lane.going.add(run)
            lane.useful.append(run)
        self._prune()

    def returned(self, owned: Collection[Partition]) -> None:
        """Notes the partitions that this member owns after a new assignment.

        Drops useless outcomes of ended runs. An outcome is useless if its partition is not owned
        here, if its record is already done, or if its topic was deleted and created again.
        """
        self._here = {_at(partition): partition for partition in owned}
        for lane in self._lanes.values():
            lane.useful = [
                run for run in lane.useful if run in lane.going or _at(run.partition) in self._here
            ]
        self.tidy()

    def tidy(self) -> None:
        """Drops outcomes of records that are already done, or whose topic was created again.

        Such a record will not be redelivered.
        """
        for lane in self._lanes.values():
            lane.useful = [run for run in lane.useful if not self.is_superseded(run)]
        self._prune()

    def is_superseded(self, run: Record) -> bool:
        """Returns True if the record of a run is known to be done, or its topic was recreated.

        Such a record will not be redelivered. Returns False if its partition is not owned here.
        """
        here = self._here.get(_at(run.partition))
        if here is None:
            return False
        return here.origin != run.partition.origin or here.ledger.is_done(run.offset)

    # -- records of the present epoch -------------------------------------------------

    def match(self, record: Record) -> FinishedRun | LaneBusy | None:
        """Looks for runs with the record's key that began before a rebalance.

        If one of them is the record's own run and has ended, returns that run. Otherwise returns
        LaneBusy if any of them has not ended. Otherwise returns None: the record may run.
        """
        if (lane := self._lanes.get(_name(record))) is None:
            return None
        run = lane.run_of(record)
        if run is not None and run not in lane.going:
            return FinishedRun(run)
        return LANE_BUSY if lane.going else None

    def adopt(self, finished: FinishedRun, record: Record) -> Record:
        """Uses the outcome of a finished run for `record`, a redelivery of the run's own record.

        Returns the run's own record, to be used in place of `record`.
        """
        self._adopt(finished.run, record, self._lanes[_name(record)])
        self._prune()
        return finished.run

    def wait(self, record: Record) -> None:
        """Keeps a record until the runs of its key that began before a rebalance have ended."""
        self._pass_over(record)
        self._lanes[_name(record)].following.append(record)

    def begin(self, record: Record) -> None:
        """Notes that a record runs now; discards orphaned runs of later records with its key."""
        if _name(record) in self._lanes:
            self._pass_over(record)
            self._prune()

    def _pass_over(self, record: Record) -> None:
        lane = self._lanes[_name(record)]
        if lane.run_of(record) is None:
            at = _at(record.partition)
            lane.useful = [one for one in lane.useful if _at(one.partition) != at]

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Removes and returns waiting records of these partitions.

        A record stays if its own run from before a rebalance may still give it an outcome.
        """
        back = []
        for lane in self._lanes.values():
            for one in list(lane.following):
                if one.partition in going and lane.run_of(one) is None:
                    back.append(one)
                    lane.following.remove(one)
        return back

    # -- runs of earlier epochs -------------------------------------------------------

    def ended(self, records: Iterable[Record]) -> EndedRuns:
        """Sorts records whose runs ended after their partitions were revoked.

        A record is returned as adopted or useless, or its outcome is kept here for the redelivery.
        Records that waited for these runs are returned as freed: they may run now.
        """
        ends = EndedRuns([], [], [])
        for record in records:
            self._end(record, ends)
        self._prune()
        return ends

    def _end(self, run: Record, ends: EndedRuns) -> None:
        lane = self._lanes.setdefault(_name(run), _OrphanLane())
        if run not in lane.going:
            if self._keeps and self._may_return(run):
                lane.useful.append(run)
            else:
                ends.useless.append(run)
            return
        lane.going.remove(run)
        again = _same(lane.following, run)
        if run not in lane.useful or run.outcome is NOT_ATTEMPTED:
            lane.useful = [one for one in lane.useful if one is not run]
            ends.useless.append(run)
        elif again is not None:
            lane.following.remove(again)
            self._adopt(run, again, lane)
            ends.adopted.append(run)
        elif not self._keeps:
            lane.useful.remove(run)
            ends.useless.append(run)
        if not lane.going:
            ends.freed.extend(lane.following)
            lane.following = []

    def _adopt(self, run: Record, record: Record, lane: _OrphanLane) -> None:
        run.stand_for(record)
        lane.useful.remove(run)

    def _may_return(self, run: Record) -> bool:
        """Returns True if the outcome of an ended run may be used when its record is redelivered.

        Returns False once records of the partition have been redelivered: an earlier record of the
        key may be among them, and must not run after this one.
        """
        if run.outcome is NOT_ATTEMPTED:
            return False
        here = self._here.get(_at(run.partition))
        if here is None:
            return True
        return not here.ledger.has_delivered and not self.is_superseded(run)

    def _prune(self) -> None:
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane}


def _at(partition: Partition) -> PartitionId:
    return partition.topic, partition.number


def _position(record: Record) -> tuple[str, int, int]:
    return record.partition.topic, record.partition.number, record.offset


def _same(records: Iterable[Record], record: Record) -> Record | None:
    """Returns the record in `records` with the position of `record`; None if there is none."""
    return next((one for one in records if _position(one) == _position(record)), None)


def _name(record: Record) -> LaneName:
    if record.lane is None:
        return (*_position(record), None)
    return record.source_lanes.topic, record.source_lanes.number, record.lane
