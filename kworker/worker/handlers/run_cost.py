"""The cost of a record in handler threads, and the number of records to hand them at a time."""

from dataclasses import dataclass

_RUN_S = 0.001  # of work in a run, as far as its records' cost is known
_COMPUTED_RUN_S = 0.01  # if threads only wait for each other: the lock changes hands less often
RUN_MOST = 1024
RUNS_EACH = 2  # one that a thread runs, and one that waits for it
_CHEAP_S = 0.0003
_FORGET = 0.3
_SATURATED = 0.8  # of one interpreter: more runs at once only wait for each other
_COMPUTING = 0.2  # of a run's time, much of which a computing thread waits for the others


@dataclass(frozen=True, slots=True)
class _Sample:
    """The measured cost of a run: its seconds per record, and its share of time on a CPU."""

    record_s: float
    computing: float


class RunCost:
    """The cost of a record, learned from the runs that threads measure.

    Here, a run is the work on records that a thread gets at a time. Any thread adds measurements.
    Only the poll thread reads the cost, and calls `learn`, which uses the last measurement.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._sample = self._known = _Sample(_RUN_S, 0.0)  # the first runs are of one

    def add(self, record_s: float, computing: float) -> None:
        """Notes the seconds per record of a run, and its share of time on a CPU."""
        self._sample = _Sample(record_s, computing)

    def learn(self) -> None:
        """Updates the moving averages with the last measurement, if there is a new one."""
        sample, known = self._sample, self._known
        if sample is not known:
            self._sample = self._known = _Sample(
                known.record_s + _FORGET * (sample.record_s - known.record_s),
                known.computing + _FORGET * (sample.computing - known.computing),
            )

    @property
    def record_s(self) -> float:
        """The seconds that a record takes in its thread."""
        return self._known.record_s

    @property
    def run_size(self) -> int:
        """The number of records to hand to a thread in one run.

        Handlers that compute get longer runs, since their threads would only wait for each other.
        """
        run_s = _COMPUTED_RUN_S if self.computes else _RUN_S
        return max(1, min(RUN_MOST, int(run_s / self._known.record_s)))

    @property
    def cheap(self) -> bool:
        """True if handlers are so fast that the cost of handing records over matters."""
        return self._known.record_s < _CHEAP_S

    @property
    def computes(self) -> bool:
        """True if handlers are cheap and mostly compute, so that threads wait for each other."""
        return self.cheap and self._known.computing > _COMPUTING

    @property
    def useful_runs(self) -> int:
        """The number of runs to have queued or running: two for each thread that is of use."""
        threads = self._threads
        if self.cheap:
            saturating = int(_SATURATED / max(self._known.computing, 1e-3))
            threads = max(1, min(threads, saturating))
        return RUNS_EACH * threads
