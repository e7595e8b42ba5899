"""The estimate of workers, partitions and memory for a load, with a configuration or without."""

from dataclasses import dataclass
from typing import Any, Literal

from kworker.config.model import Config, Settings, WorkersSettings
from kworker.config.rules import Ceiling, memory_ceiling
from kworker.core import capacity
from kworker.core.capacity import Load, Measured, Partitions, ProcessLimits, Workers

_MIB = 1 << 20
_MEMORY_STEP = 64 * _MIB
_QUEUED = 2  # records in flight for each handler, so that none waits for the next fetch
_ENDS_WITHIN = 2  # a time-out is this many times the p99, so that nearly all records keep it


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """The load, and what else is known of the records and the handlers."""

    load: Load
    p99_s: float | None = None
    record_bytes: int | None = None
    processes: int | None = None
    is_async: bool = False

    @property
    def noun(self) -> str:
        """The key of `[workers]` for the number of handlers in a process."""
        return "concurrency" if self.is_async else "threads"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The workers, partitions and settings for a load, and the limits they were computed from.

    `keys` are those of `[workers]` to set, with sizes in bytes and times in seconds. `now` has the
    workers of the configuration, if there is one, and the records a second that they do at most.
    """

    workers: Workers
    partitions: Partitions
    ordering: Literal["key", "partition", "none"]
    limits: ProcessLimits
    measured: Measured
    keys: dict[str, Any]
    ceiling: Ceiling | None
    now: tuple[Workers, float] | None


def estimate(question: PlanQuestion, config: Config | None) -> CapacityPlan:
    """Returns how many workers a load needs. Without a configuration, the defaults apply."""
    measured = _measured(config)
    most = WorkersSettings().concurrency if question.is_async else capacity.THREADS
    limits = ProcessLimits(measured.rate, most)
    settings = config or _defaults()
    workers = capacity.workers_for(question.load, limits, question.processes)
    ordering = settings.workers.ordering
    keys = _keys(question, workers, settings.workers)
    ceiling = memory_ceiling(_changed(settings, keys))
    if ceiling and ceiling.total > settings.workers.memory:
        keys["memory"] = _up(ceiling.total, _MEMORY_STEP)
    return CapacityPlan(
        workers,
        capacity.partitions_for(workers, one_at_a_time=ordering == "partition"),
        ordering,
        limits,
        measured,
        keys,
        ceiling,
        None if config is None else _now(question, limits, config.workers),
    )


def _measured(config: Config | None) -> Measured:
    """Returns the rate that the benchmark measured with the features of this configuration.

    Exactly-once delivery and idempotency were not measured together: with both, returns the lower
    of their two rates.
    """
    found = [capacity.RESULTS]
    if config and config.delivery.guarantee == "exactly-once":
        found.append(capacity.EXACTLY_ONCE)
    if config and config.idempotency:
        found.append(capacity.IDEMPOTENT)
    return min(found)


def _defaults() -> Settings:
    """Returns the settings of a service that sets only the required keys."""
    needed = {"name": "service", "source": {"topics": ["source"]}, "kafka": {"common": {}}}
    return Settings.model_validate(needed)


def _keys(question: PlanQuestion, workers: Workers, now: WorkersSettings) -> dict[str, Any]:
    keys: dict[str, Any] = {"processes": workers.processes, question.noun: workers.handlers}
    in_flight = _QUEUED * workers.handlers
    if in_flight > now.in_flight:
        keys["in_flight"] = in_flight
    if (size := in_flight * (question.record_bytes or 0)) > now.in_flight_bytes:
        keys["in_flight_bytes"] = _up(size, _MIB)
    p99_s = question.p99_s or 0.0
    for name, least_s in (
        ("handler_timeout", _ENDS_WITHIN * p99_s),
        ("revoke_timeout", p99_s),
        ("drain_timeout", _ENDS_WITHIN * p99_s),
    ):
        if least_s > getattr(now, name):
            keys[name] = least_s
    return keys


def _changed(settings: Settings, keys: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"workers": settings.workers.model_copy(update=keys)})


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _now(
    question: PlanQuestion, limits: ProcessLimits, now: WorkersSettings
) -> tuple[Workers, float]:
    handlers = min(now.concurrency if question.is_async else now.threads, now.in_flight)
    if question.record_bytes:  # one record larger than the limit is taken alone
        handlers = min(handlers, max(1, now.in_flight_bytes // question.record_bytes))
    workers = Workers(now.processes, handlers)
    return workers, workers.rate_max(question.load.handler_s, limits)
