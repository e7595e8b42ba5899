"""Runs that outlive the epoch of their partition, and what they are good for when it returns."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.record import Partition, Record

LaneName = tuple[object, ...]
"""Of a lane, whatever the epoch; of a record without one, its own."""


class EndedRuns(NamedTuple):
    """What became of runs that have ended, and of the records that waited for them."""

    taken_up: list[Record]  # of the present epoch: each stands for itself, read again
    freed: list[Record]  # may run now
    useless: list[Record]  # others', or nobody's


class _OrphanLane:
    """Runs of earlier epochs in one lane, and who waits for them."""

    __slots__ = ("following", "going", "useful")

    def __init__(self) -> None:
        self.going: set[Record] = set()  # have not ended
        self.useful: list[Record] = []  # may be taken up, when or since they have ended
        # Of the present epoch, and their turn has come: one in each partition that has the lane.
        self.following: list[Record] = []

    def __bool__(self) -> bool:
        return bool(self.going or self.useful or self.following)

    def run_of(self, record: Record) -> Record | None:
        """The useful run of this very record, in an earlier epoch."""
        return _same(self.useful, record)


class OrphanedRuns:
    """Records that had begun when their partition was closed.

    Owned by the poll thread. When the partition returns, they are read again like all that
    its position and map do not cover, and stand in their lanes. A record whose turn has come
    meets here what still runs of its lane, and waits for it. If that was its own run, it is
    taken up: the old record takes the place of the one read again, which nobody has seen. So
    a completion reaches a later epoch only through a delivery of that epoch, and only once.

    An outcome is taken up in the order of its lane: where an earlier record has to run first,
    the runs beyond it came too early, and are done again.
    """

    def __init__(self, *, keeps: bool) -> None:
        """`keeps` outcomes for which nobody waits yet; else others can ask for them elsewhere."""
        self._keeps = keeps
        self._lanes: dict[LaneName, _OrphanLane] = {}
        self._here: dict[tuple[str, int], Partition] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    # -- epochs -----------------------------------------------------------------------

    def leave(self, partition: Partition, running: Iterable[Record]) -> None:
        """It is closed, and these of its records still run."""
        self._here.pop(_at(partition), None)
        for lane in self._lanes.values():
            lane.following = [one for one in lane.following if one.partition is not partition]
        for run in running:
            lane = self._lanes.setdefault(_name(run), _OrphanLane())
            lane.going.add(run)
            if partition.origin is not None:  # else nobody knows whether it is that which returns
                lane.useful.append(run)
        self._prune()

    def returned(self, owned: Collection[Partition]) -> None:
        """An assignment: what is done, or of a topic that was made again, is of no use.

        Nor are outcomes of what is others' now.
        """
        self._here = {_at(partition): partition for partition in owned}
        for lane in self._lanes.values():
            lane.useful = [
                run for run in lane.useful if run in lane.going or _at(run.partition) in self._here
            ]
        self.tidy()

    def tidy(self) -> None:
        """Forgets outcomes of which nobody will ask: all is done up to there without them."""
        for lane in self._lanes.values():
            lane.useful = [run for run in lane.useful if not self._superseded(run)]
        self._prune()

    def _superseded(self, run: Record) -> bool:
        here = self._here.get(_at(run.partition))
        if here is None:
            return False
        return here.origin != run.partition.origin or here.ledger.is_done(run.offset)

    # -- records of a present epoch ---------------------------------------------------

    def meet(self, record: Record) -> Record | None:
        """Whose turn it is: the record's own; that of its run, which ended; None: it waits."""
        if (lane := self._lanes.get(_name(record))) is None:
            return record
        run = lane.run_of(record)
        if run is None:
            lane.useful = [
                one for one in lane.useful if _at(one.partition) != _at(record.partition)
            ]
        elif run not in lane.going:
            self._take_up(run, record, lane)
            self._prune()
            return run
        if lane.going:
            lane.following.append(record)
            return None
        self._prune()
        return record

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Of these partitions, the records that wait for runs other than their own."""
        back = []
        for lane in self._lanes.values():
            for one in list(lane.following):
                if one.partition in going and lane.run_of(one) is None:
                    back.append(one)
                    lane.following.remove(one)
        return back

    # -- runs of earlier ones ---------------------------------------------------------

    def ended(self, records: Iterable[Record]) -> EndedRuns:
        """Records of closed partitions that came back, with an outcome or not attempted."""
        ends = EndedRuns([], [], [])
        for record in records:
            self._end(record, ends)
        self._prune()
        return ends

    def _end(self, run: Record, ends: EndedRuns) -> None:
        lane = self._lanes.setdefault(_name(run), _OrphanLane())
        if run not in lane.going:
            if self._keeps and self._will_come(run):
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
            self._take_up(run, again, lane)
            ends.taken_up.append(run)
        elif not self._keeps:
            lane.useful.remove(run)
            ends.useless.append(run)
        if not lane.going:
            ends.freed.extend(lane.following)
            lane.following = []

    def _take_up(self, run: Record, record: Record, lane: _OrphanLane) -> None:
        run.stand_for(record)
        lane.useful.remove(run)

    def _will_come(self, run: Record) -> bool:
        """Whether a record that ended and was not settled may be read again."""
        if run.outcome is NOT_ATTEMPTED or run.partition.origin is None:
            return False
        here = self._here.get(_at(run.partition))
        if here is None:
            return True
        return (here.ledger.end or 0) <= run.offset and not self._superseded(run)

    def _prune(self) -> None:
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane}


def _at(partition: Partition) -> tuple[str, int]:
    return partition.topic, partition.number


def _place(record: Record) -> tuple[str, int, int]:
    return record.partition.topic, record.partition.number, record.offset


def _same(records: Iterable[Record], record: Record) -> Record | None:
    """The one of another epoch that is this very record."""
    return next((one for one in records if _place(one) == _place(record)), None)


def _name(record: Record) -> LaneName:
    if record.lane is None:
        return (*_place(record), None)
    return record.home.topic, record.home.number, record.lane
