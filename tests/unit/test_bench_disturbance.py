"""What other virtual machines do to a measurement, and when it is made again."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from bench import disturbance
from bench.disturbance import (
    REPEATS_S,
    REPEATS_SHARE,
    CpuProbe,
    LoopTimes,
    Repeats,
    least_disturbed,
)

USUAL = [100.0] * 5


class Machine:
    """Tells the stolen share and the times of the loop of one measurement after the other."""

    def __init__(self, *measurements: tuple[float, float]) -> None:
        self._stolen: Iterator[float] = iter([stolen for stolen, _ in measurements])
        self._loops: Iterator[float] = iter([loop_us for _, loop_us in measurements])

    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(share=lambda: next(self._stolen))

    def probe(self) -> SimpleNamespace:
        return SimpleNamespace(end=lambda: [next(self._loops)])


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> LoopTimes:
    times = LoopTimes()
    monkeypatch.setattr(disturbance, "LOOP_TIMES", times)
    monkeypatch.setattr(disturbance, "REPEATS", Repeats())
    return times


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """The try that counts, and its stolen share."""
    monkeypatch.setattr(disturbance, "Stolen", machine.clock)
    monkeypatch.setattr(disturbance, "CpuProbe", machine.probe)
    return least_disturbed(lambda number: number, str)


@pytest.mark.parametrize(
    ("measurements", "counts"),
    [
        ([(0.0, 124.0)], 0),
        ([(0.0, 126.0), (0.0, 105.0)], 1),
        ([(0.0, 140.0), (0.0, 130.0)], 1),  # measured again only once
        ([(0.0, 130.0), (0.0, 140.0)], 0),
        ([(0.3, 100.0), (0.2, 100.0), (0.1, 100.0)], 2),
        ([(0.3, 100.0), (0.01, 150.0)], 1),  # steal counts more
        ([(0.0, 150.0), (0.3, 100.0), (0.01, 160.0)], 0),
    ],
)
def test_the_least_disturbed_try_counts(
    measurements: list[tuple[float, float]],
    counts: int,
    times: LoopTimes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times.kept = USUAL.copy()
    found, stolen = on(Machine(*measurements), monkeypatch)
    assert (found, stolen) == (counts, measurements[counts][0])
    assert times.kept == [*USUAL, measurements[counts][1]]


def test_nothing_is_slow_before_it_is_known_what_is_usual(
    times: LoopTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    times.kept = USUAL[1:]
    assert on(Machine((0.0, 500.0)), monkeypatch) == (0, 0.0)


def test_no_more_is_repeated_when_repeats_have_had_their_time(
    times: LoopTimes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times.kept = USUAL.copy()
    disturbance.REPEATS.again_s = REPEATS_S + 1
    assert on(Machine((0.3, 100.0), (0.0, 100.0)), monkeypatch) == (0, 0.3)
    assert "not measured again: repeats have taken" in capsys.readouterr().out
    assert disturbance.REPEATS.left_out == 1


def test_repeats_have_a_share_of_what_was_measured() -> None:
    repeats = Repeats()
    repeats.note(1000.0, again=False)
    most_s = REPEATS_S + REPEATS_SHARE * 1000.0
    assert repeats.allow(most_s)
    repeats.note(most_s - 20.0, again=True)
    assert [repeats.allow(20.0), repeats.allow(21.0)] == [True, False]
    again = Repeats()
    again.load(repeats.saved())
    assert again.saved() == repeats.saved() == {"first_s": 1000.0, "again_s": 90.0, "left_out": 1}


def test_a_try_says_what_is_wrong_with_it(
    times: LoopTimes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times.kept = USUAL.copy()
    on(Machine((0.04, 100.0), (0.0, 130.0)), monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        "  0, but 4% of the CPU went to others",
        "  1, but the CPUs were 30% slower than usual",
    ]


def test_the_probe_times_the_loop_on_each_cpu_and_ends(
    times: LoopTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disturbance, "PROBE_EVERY_S", 0.001)
    pinned, enough = set(), threading.Event()
    cpus = disturbance.os.sched_getaffinity(0)

    def pin(_: int, chosen: list[int]) -> None:
        pinned.update(chosen)
        if pinned >= cpus:
            enough.set()

    monkeypatch.setattr(disturbance.os, "sched_setaffinity", pin)
    probe = CpuProbe()
    assert enough.wait(10)
    loops_us = probe.end()
    assert pinned == cpus
    assert times.note(loops_us) >= times.best > 0
    assert "cpu-probe" not in [thread.name for thread in threading.enumerate()]
