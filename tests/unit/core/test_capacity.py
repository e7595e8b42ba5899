"""Workers for a rate: Little's law, in processes of a known size."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core import capacity
from kworker.core.capacity import (
    Load,
    Partitions,
    ProcessLimits,
    Workers,
    partitions_for,
    processes_needed,
    workers_for,
)

LIMITS = ProcessLimits(77_000, 64)
README = Path(__file__).parents[3] / "README.md"


@pytest.mark.parametrize(
    ("rate", "handler_s", "headroom", "in_flight", "workers"),
    [
        (2_000, 0.05, 1.5, 100, (3, 50)),  # 150 handlers, of which one process has up to 64
        (640, 0.1, 1.0, 64, (1, 64)),
        (641, 0.1, 1.0, 64.1, (2, 33)),
        (10, 0.01, 1.5, 0.1, (1, 1)),
        (100_000, 0.0005, 1.0, 50, (2, 25)),  # the rate needs two
        (200_000, 0.001, 1.5, 200, (5, 60)),  # the handlers need more
        (1, 300, 2.0, 300, (10, 60)),
    ],
)
def test_a_load_needs_its_handlers_in_processes_of_known_size(
    rate: float, handler_s: float, headroom: float, in_flight: float, workers: tuple[int, int]
) -> None:
    load = Load(rate, handler_s, headroom)
    assert load.in_flight == pytest.approx(in_flight)
    assert workers_for(load, LIMITS) == workers


@pytest.mark.parametrize(
    ("load", "needed"),
    [
        (Load(2_000, 0.05, 1.5), (3, 1)),
        (Load(100_000, 0.0005, 1.0), (1, 2)),
        (Load(77_000, 0.001, 1.0), (2, 1)),
    ],
)
def test_what_needs_more_processes_is_told(load: Load, needed: tuple[int, int]) -> None:
    assert processes_needed(load, LIMITS) == needed


def test_a_given_number_of_processes_has_more_handlers_each() -> None:
    """Also more than are known to work well: the caller says so."""
    load = Load(2_000, 0.05, 1.5)
    assert [workers_for(load, LIMITS, count) for count in (1, 2, 8)] == [(1, 150), (2, 75), (8, 19)]


@given(
    st.floats(0.1, 500_000),
    st.floats(0.001, 600),
    st.floats(1, 10),
    st.none() | st.integers(1, 50),
)
def test_the_workers_for_a_load_can_do_it_with_head_room(
    rate: float, handler_s: float, headroom: float, processes: int | None
) -> None:
    load = Load(rate, handler_s, headroom)
    workers = workers_for(load, LIMITS, processes)
    unlimited = LIMITS._replace(rate=float("inf"))
    known = LIMITS if processes is None else unlimited
    assert workers.rate_max(handler_s, known) >= rate * headroom * (1 - 1e-5)
    if processes is None:
        assert workers.handlers <= LIMITS.handlers


@pytest.mark.parametrize(
    ("workers", "handler_s", "rate"),
    [
        (Workers(2, 16), 0.05, 640),
        (Workers(2, 16), 1.0, 32),
        (Workers(2, 64), 0.0001, 154_000),  # what the processes do, not the handlers
    ],
)
def test_the_rate_of_workers_ends_at_the_first_limit(
    workers: Workers, handler_s: float, rate: float
) -> None:
    assert workers.rate_max(handler_s, LIMITS) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("workers", "one_at_a_time", "partitions"),
    [
        (Workers(3, 50), False, (3, 6)),
        (Workers(1, 1), False, (1, 2)),
        (Workers(3, 50), True, (150, 150)),
        (Workers(3, 1), True, (3, 6)),
    ],
)
def test_each_process_has_partitions_and_each_handler_if_it_must(
    workers: Workers, one_at_a_time: bool, partitions: tuple[int, int]
) -> None:
    assert partitions_for(workers, one_at_a_time=one_at_a_time) == Partitions(*partitions)


def test_head_room_is_what_catches_up() -> None:
    assert Load(100, 0.1, 1.5).catch_up_s(600) == 1200
    assert Load(100, 0.1, 3.0).catch_up_s(600) == 300
    assert Load(100, 0.1, 1.0).catch_up_s(600) is None


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w,]*\w", text.lower()))


def test_the_figures_are_those_of_the_readme() -> None:
    """`bench.document` writes both; a line there has each word of the constant, and its rate."""
    speed = README.read_text().split("## Speed")[1].split("\n## ")[0]
    lines = [words(line) for line in speed.splitlines()]
    for measured in (capacity.RESULTS, capacity.EXACTLY_ONCE, capacity.IDEMPOTENT):
        told = words(measured.what) | {f"{measured.rate:,}"}
        assert any(told <= line for line in lines), measured
    plain = " ".join(speed.replace("*", "").split())
    assert f"kworker, {capacity.THREADS} threads, 10 ms each |" in plain
    assert [part for part in capacity.MACHINE.split(", with ") if part not in plain] == []
