"""The number of workers that a rate needs, by Little's law, and measured rates of one process."""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple


class Measured(NamedTuple):
    """A rate of records a second that one worker process reached in the benchmark."""

    rate: int
    what: str


# From the benchmark: `bench.document` writes these rates and MACHINE together with the table in
# README, section Speed; a test compares them. Figures that nobody has measured do not belong here.
RESULTS = Measured(105_000, "one result for each record")
EXACTLY_ONCE = Measured(105_000, "one result for each record, exactly once")
IDEMPOTENT = Measured(41_000, "a handler that does nothing, idempotent")
THREADS = 64
"""The most threads that are planned for in one process; README has the rate of as many."""
MACHINE = "2 cores, which the broker shares, with records of 200 bytes"

_SPARE_PARTITIONS = 2  # for each process: partitions can be added, but then keys move


@dataclass(frozen=True, slots=True)
class Load:
    """The load to plan for: records a second, and the mean time that a handler takes for one.

    `headroom` is a factor, 1.0 or more: the workers are planned for `headroom` times this rate.
    """

    rate: float
    handler_s: float
    headroom: float

    @property
    def in_flight(self) -> float:
        """The mean number of handlers that run at once (Little's law)."""
        return self.rate * self.handler_s

    @property
    def handlers(self) -> int:
        """The number of handlers that must be able to run at once, with `headroom` included."""
        return _up(self.in_flight * self.headroom)

    def catch_up_s(self, outage_s: float) -> float | None:
        """Returns how many seconds after an outage the lag is gone; None if it never goes."""
        return outage_s / (self.headroom - 1) if self.headroom > 1 else None


class ProcessLimits(NamedTuple):
    """The most that one worker process is planned for: records a second, and handlers at once."""

    rate: float
    handlers: int


class Workers(NamedTuple):
    """A number of worker processes, and of handlers at once in each."""

    processes: int
    handlers: int

    def rate_max(self, handler_s: float, limits: ProcessLimits) -> float:
        """Returns the records a second that these workers can do at most."""
        return self.processes * min(self.handlers / handler_s, limits.rate)


def processes_needed(load: Load, limits: ProcessLimits) -> tuple[int, int]:
    """Returns the number of processes that the handlers need, and the number that the rate needs.

    The larger of them is what the load needs.
    """
    return _up(load.handlers / limits.handlers), _up(load.rate * load.headroom / limits.rate)


def workers_for(load: Load, limits: ProcessLimits, processes: int | None = None) -> Workers:
    """Returns the workers for a load: `processes` of them if given, else as many as it needs."""
    count = processes or max(processes_needed(load, limits))
    return Workers(count, _up(load.handlers / count))


class Partitions(NamedTuple):
    """The fewest partitions with which all workers have work, and the number that is advised."""

    least: int
    advised: int


def partitions_for(workers: Workers, *, one_at_a_time: bool) -> Partitions:
    """Returns the numbers of partitions, the advised one a multiple of the number of processes.

    With `one_at_a_time` a partition's records run one after the other.
    """
    count = workers.processes
    least = count * workers.handlers if one_at_a_time else count
    return Partitions(least, max(_SPARE_PARTITIONS * count, least))


def _up(number: float) -> int:
    """Rounds up to a whole number, 1 or more; first drops the rounding error of floats."""
    return max(1, ceil(round(number, 6)))
