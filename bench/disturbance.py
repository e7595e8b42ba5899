"""What other virtual machines take meanwhile, and what is measured again because of it.

They take CPU time, which the kernel counts as stolen, and speed: where two hardware threads share a
core, ours is slower while another machine runs on the second one. No counter tells that, so a loop
that never changes is timed during each measurement, on each CPU in turn.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from bench.watched import Broken

STOLEN = 0.02  # of all CPU time: with more, a measurement is repeated
SLOWER = 1.25  # so many times the loop's usual time in this run: then, too, but only once
TRIES = 3
REPEATS_S = 60.0  # that repeats may take in any run,
REPEATS_SHARE = 0.05  # and as a share of all else: `make bench` ends within an hour
PROBE_EVERY_S = 0.1
_LOOPS = 1_500  # 0.2 to 0.4 ms, so that the probe takes less than a hundredth of a CPU
_USUAL_LEAST = 5  # measurements before it is known what is usual
_STEAL = 7

_Found = TypeVar("_Found")


class Stolen:
    """The CPU time that other virtual machines took from this one, since the object was made."""

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def share(self) -> float:
        """The stolen share of all CPU time."""
        spent = [now - then for now, then in zip(_cpu_ticks(), self._before, strict=True)]
        return spent[_STEAL] / max(1, sum(spent))


class LoopTimes:
    """How long the fixed loop took in a run of the benchmark, in microseconds of CPU time.

    `best` is the least time ever. `kept` has the mean of each measurement that counts.
    """

    def __init__(self) -> None:
        self.best = 0.0
        self.kept: list[float] = []

    def saved(self) -> dict[str, Any]:
        return {"best": round(self.best, 1), "kept": [round(each, 1) for each in self.kept]}

    def load(self, saved: dict[str, Any]) -> None:
        """Continues with what an interrupted run had saved."""
        self.best, self.kept = saved["best"], list(saved["kept"])

    def note(self, loops_us: Sequence[float]) -> float:
        """Notes the loops of one measurement, and returns their mean; 0 if there are none."""
        if not loops_us:
            return 0.0
        self.best = min(self.best or loops_us[0], *loops_us)
        return fmean(loops_us)

    def slow(self, mean_us: float) -> bool:
        """Returns True if a measurement was slower than is usual in this run."""
        known = len(self.kept) >= _USUAL_LEAST
        return known and mean_us > SLOWER * median(self.kept)


LOOP_TIMES = LoopTimes()
"""Those of this process, which runs one benchmark."""


class Repeats:
    """What measuring again has cost in a run of the benchmark, and may still cost.

    Every part of a run has its share: what comes first cannot take all.
    """

    def __init__(self) -> None:
        self.first_s = 0.0  # seconds of first tries
        self.again_s = 0.0  # and of repeats
        self.left_out = 0  # disturbed measurements that were not repeated for lack of time

    def saved(self) -> dict[str, Any]:
        seconds = {"first_s": round(self.first_s, 1), "again_s": round(self.again_s, 1)}
        return {**seconds, "left_out": self.left_out}

    def load(self, saved: dict[str, Any]) -> None:
        """Continues with what an interrupted run had saved."""
        self.first_s, self.again_s = saved["first_s"], saved["again_s"]
        self.left_out = saved["left_out"]

    def note(self, seconds: float, *, again: bool) -> None:
        """Notes how long one try took."""
        if again:
            self.again_s += seconds
        else:
            self.first_s += seconds

    def allow(self, seconds: float) -> bool:
        """Returns True if there is time for a repeat that takes so long; else counts it."""
        allowed = self.again_s + seconds <= REPEATS_S + REPEATS_SHARE * self.first_s
        self.left_out += not allowed
        return allowed


REPEATS = Repeats()
"""Those of this process, which runs one benchmark."""


class CpuProbe:
    """A thread that times the fixed loop every PROBE_EVERY_S seconds, until `end`."""

    def __init__(self) -> None:
        self._loops_us: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-probe", daemon=True)
        self._thread.start()

    def end(self) -> list[float]:
        """Returns the times of all loops, in microseconds of CPU time."""
        self._ended.set()
        self._thread.join()
        return self._loops_us

    def _run(self) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        while not self._ended.wait(PROBE_EVERY_S):
            cpus.append(cpus.pop(0))
            os.sched_setaffinity(0, cpus[:1])  # this thread alone
            # The first one finds the caches as others have left them.
            self._loops_us.append(min(_loop_us(), _loop_us()))


def _loop_us() -> float:
    began = time.thread_time()
    made: dict[int, tuple[int, str]] = {}
    for number in range(_LOOPS):
        made[number % 500] = (number, str(number))
    return (time.thread_time() - began) * 1e6


class _Try(NamedTuple):
    """One measurement: what it found, the stolen share, and the mean time of the loop."""

    found: Any
    stolen: float
    loop_us: float

    @property
    def disturbed(self) -> tuple[float, float]:
        """Grows with what others took; steal counts only from STOLEN on."""
        return max(self.stolen, STOLEN), self.loop_us

    @property
    def told(self) -> str:
        """What is wrong with it; nothing if it counts."""
        if self.stolen > STOLEN:
            return f", but {self.stolen:.0%} of the CPU went to others"
        if LOOP_TIMES.slow(self.loop_us):
            slower = self.loop_us / median(LOOP_TIMES.kept) - 1
            return f", but the CPUs were {slower:.0%} slower than usual"
        return ""


def least_disturbed(
    measure: Callable[[int], _Found],
    line: Callable[[_Found], str],
    tries: int = TRIES,
    *,
    may_break: bool = False,
) -> tuple[_Found, float]:
    """Measures again while others take more than STOLEN of the CPU, up to `tries` times in all.

    Also measures again, but only once, if the CPUs were slower than usual by the factor SLOWER.
    Does neither when REPEATS has no time left. `measure` gets the number of the try, from 0. `line`
    describes what it has found; each try is printed. Returns what the least disturbed try has
    found, and its stolen share. Raises Broken if a try fails; of a rival, which `may_break`, only
    if the first one does: else what was found before counts.
    """
    done: list[_Try] = []
    for number in range(tries):
        stolen, probe, began = Stolen(), CpuProbe(), time.monotonic()
        try:
            found = measure(number)
        except Broken as why:
            if not (may_break and done):
                raise
            print(f"  not measured again: {why}", flush=True)
            break
        finally:
            loop_us = LOOP_TIMES.note(probe.end())
            REPEATS.note(took_s := time.monotonic() - began, again=number > 0)
        done.append(each := _Try(found, stolen.share(), loop_us))
        print(f"  {line(found)}{each.told}", flush=True)
        if not each.told or (each.stolen <= STOLEN and number > 0):
            break
        if number + 1 < tries and not REPEATS.allow(took_s):
            print("  not measured again: repeats have taken their share of the time", flush=True)
            break
    least = min(done, key=lambda each: each.disturbed)
    if least.loop_us:  # else it was too short to be probed
        LOOP_TIMES.kept.append(least.loop_us)
    return least.found, least.stolen


def _cpu_ticks() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, steal: of all CPUs, since the boot."""
    return [int(word) for word in Path("/proc/stat").read_text().split()[1 : _STEAL + 2]]
