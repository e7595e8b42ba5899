"""Steal: CPU time that other virtual machines take, and what is measured again because of it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.watched import Broken

STOLEN = 0.02  # of all CPU time: with more, a measurement is repeated
TRIES = 3
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


def least_disturbed(
    measure: Callable[[int], _Found],
    line: Callable[[_Found], str],
    tries: int = TRIES,
    *,
    may_break: bool = False,
) -> tuple[_Found, float]:
    """Measures again while others take more than STOLEN of the CPU, up to `tries` times in all.

    `measure` gets the number of the try, from 0. `line` describes what it has found; each try is
    printed. Returns what the try with the smallest stolen share has found, and that share. Raises
    Broken if a try fails; of a rival, which `may_break`, only if the first one does: else what was
    found before counts.
    """
    found: dict[float, _Found] = {}
    for number in range(tries):
        stolen = Stolen()
        try:
            each = measure(number)
        except Broken as why:
            if not (may_break and found):
                raise
            print(f"  not measured again: {why}", flush=True)
            break
        found[share := stolen.share()] = each
        told = f", but {share:.0%} of the CPU went to others" if share > STOLEN else ""
        print(f"  {line(each)}{told}", flush=True)
        if not told:
            break
    return found[least := min(found)], least


def _cpu_ticks() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, steal: of all CPUs, since the boot."""
    return [int(word) for word in Path("/proc/stat").read_text().split()[1 : _STEAL + 2]]
