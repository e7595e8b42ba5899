"""An estimate of workers as JSON, and as lines with the keys to paste."""

import json
from collections.abc import Iterator
from typing import Any

from kworker.cli.plan.estimate import CapacityPlan, PlanQuestion
from kworker.config.model import Config
from kworker.config.value_types import format_size
from kworker.core import capacity
from kworker.core.duration import format_duration

_OUTAGE_MIN = 10
_MIB = 1 << 20


def as_data(question: PlanQuestion, plan: CapacityPlan, config: Config | None) -> dict[str, Any]:
    load = question.load
    return {
        "rate": load.rate,
        "handler_time_s": load.handler_s,
        "headroom": load.headroom,
        "in_flight": round(load.in_flight, 3),
        "handlers": load.handlers,
        "processes": plan.workers.processes,
        question.noun: plan.workers.handlers,
        "partitions": plan.partitions.advised,
        "partitions_min": plan.partitions.least,
        "memory_ceiling_bytes": plan.ceiling and plan.ceiling.total,
        "workers": {name: _value(name, value) for name, value in plan.keys.items()},
        "warnings": list(_warnings(question, plan)),
        "measured": {**plan.measured._asdict(), "machine": capacity.MACHINE},
        "now": _now_data(question, plan, config),
    }


def _now_data(
    question: PlanQuestion, plan: CapacityPlan, config: Config | None
) -> dict[str, Any] | None:
    if config is None or plan.now is None:
        return None
    workers, rate = plan.now
    return {
        "file": str(config.file),
        "processes": workers.processes,
        question.noun: workers.handlers,
        "rate_max": round(rate, 1),
        "enough": _is_enough(question, rate),
    }


def lines(question: PlanQuestion, plan: CapacityPlan, config: Config | None) -> Iterator[str]:
    """Yields the estimate as lines for a person."""
    yield from _handlers(question, plan)
    yield _partitions(plan)
    yield from _memory(plan)
    yield from (f"beware: {warning}" for warning in _warnings(question, plan))
    yield ""
    yield "[workers]"
    yield from (f"{name} = {json.dumps(_value(name, value))}" for name, value in plan.keys.items())
    yield ""
    yield from _compared(question, plan, config)
    yield (
        "This is an estimate. Its figures are of kworker's benchmark (README, Speed), on"
        f" {capacity.MACHINE}; the time in which handlers use the CPU is not in them."
    )


def _handlers(question: PlanQuestion, plan: CapacityPlan) -> Iterator[str]:
    load, (processes, handlers) = question.load, plan.workers
    time = format_duration(load.handler_s)
    yield (
        f"{load.rate:,g} records/s × {time} = {load.in_flight:,g} handlers at once;"
        f" with head room {load.headroom:g}: {load.handlers:,}"
    )
    why = _why(question, plan)
    yield f"processes: {processes:,} in all, with {question.noun} = {handlers:,} in each; {why}"
    if plan.ordering != "none":
        yield f"one {plan.ordering} runs one record at a time: at most {1 / load.handler_s:,.4g}/s"
    if (minutes := load.catch_up_s(_OUTAGE_MIN)) is None:
        yield "without head room, the lag of an outage never goes"
    else:
        yield f"after an outage of {_OUTAGE_MIN} min, its lag is gone in {minutes:,.0f} min"


def _why(question: PlanQuestion, plan: CapacityPlan) -> str:
    by_handlers, by_rate = capacity.processes_needed(question.load, plan.limits)
    if question.processes:
        return f"{max(by_handlers, by_rate):,} would do"
    if by_rate > by_handlers:
        return f"one does {plan.limits.rate:,} records/s at most ({plan.measured.what})"
    if question.is_async:
        return f"at most {plan.limits.handlers:,} in one, the default (none was measured)"
    return f"at most {plan.limits.handlers:,} in one: more are not planned for"


def _partitions(plan: CapacityPlan) -> str:
    least, advised = plan.partitions
    waiting = "handler" if plan.ordering == "partition" else "process"
    why = f"a {waiting} without one idles"
    return f"partitions: {advised:,} of each source topic; at least {least:,}, since {why}"


def _memory(plan: CapacityPlan) -> Iterator[str]:
    if plan.ceiling is None:
        return
    count, each = plan.workers.processes, -(-plan.ceiling.total // _MIB)
    yield f"memory: a worker uses at most {each:,}MiB = {plan.ceiling.parts}"
    yield f"        all {count:,} workers: {count * each:,}MiB"


def _warnings(question: PlanQuestion, plan: CapacityPlan) -> Iterator[str]:
    """Yields a text for each way in which the plan asks more of a process than was measured.

    This happens only if the number of processes was given.
    """
    handlers, limits = plan.workers.handlers, plan.limits
    if handlers > limits.handlers and not question.is_async:
        most = f"{limits.handlers} for which processes are planned"
        yield f"{handlers:,} threads in a process are more than the {most}"
    rate = question.load.rate * question.load.headroom / plan.workers.processes
    if rate > limits.rate:
        yield (
            f"each process would do {rate:,.0f} records/s, but did {limits.rate:,} at most"
            f" ({plan.measured.what})"
        )


def _compared(question: PlanQuestion, plan: CapacityPlan, config: Config | None) -> Iterator[str]:
    if config is None or plan.now is None:
        return
    workers, rate = plan.now
    verdict = "enough" if _is_enough(question, rate) else "too few"
    yield (
        f"{config.file} has {workers.processes:,} processes with {question.noun} ="
        f" {workers.handlers:,}: at most {rate:,.0f} records/s,"
        f" {rate / question.load.headroom:,.0f} with head room; {verdict}"
    )


def _is_enough(question: PlanQuestion, rate: float) -> bool:
    return rate >= question.load.rate * question.load.headroom


def _value(name: str, value: Any) -> Any:
    """Returns the value of a key of `[workers]` in the form that kworker.toml takes."""
    if name.endswith("_timeout"):
        return format_duration(value)
    return format_size(value) if name in ("memory", "in_flight_bytes") else value
