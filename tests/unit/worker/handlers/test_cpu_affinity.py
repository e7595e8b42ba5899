"""Placement: one CPU while that is enough, every CPU as soon as it is not."""

import os
import subprocess
import sys

import pytest

from kworker.worker.handlers.cpu_affinity import CpuAffinity, CpuAffinityPolicy, Usage

EVERY = os.sched_getaffinity(0)
POLICY = CpuAffinityPolicy()


class Threads:
    """What the placement sees of a process, and where it put it."""

    def __init__(self) -> None:
        self.used_s = self.delayed_s = 0.0
        self.now = 1000.0
        self.cpus = EVERY
        self.placement = CpuAffinity(POLICY, usage=self._usage, place=self._move)

    def _usage(self) -> Usage:
        return Usage(self.used_s, self.delayed_s)

    def _move(self, cpus: set[int]) -> None:
        self.cpus = cpus

    def run(
        self, seconds: float, share: float, *, locked: bool = False, delayed: float = 0.0
    ) -> list[int]:
        """Uses so much of one CPU, and waits for one; on how many it might run, all the time."""
        seen = []
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01
            self.used_s += 0.01 * share
            self.delayed_s += 0.01 * delayed
            self.placement.decide(locked, self.now)
            seen.append(len(self.cpus))
        return seen


@pytest.fixture
def threads() -> Threads:
    assert len(EVERY) > 1, "these tests need a second CPU"
    return Threads()


def test_threads_that_mostly_wait_keep_together(threads: Threads) -> None:
    threads.run(2 * POLICY.look_s, share=0.1)
    assert len(threads.cpus) == 1


def test_threads_that_use_more_than_one_cpu_has_are_let_go(threads: Threads) -> None:
    """Handlers that compute in a library without the lock gain from every CPU."""
    threads.run(2 * POLICY.look_s, share=0.1)
    threads.run(2 * POLICY.look_s, share=0.95)
    assert threads.cpus == EVERY
    assert set(threads.run(20.0, share=1.6)) == {len(EVERY)}


def test_threads_that_could_not_run_at_once_anyway_keep_together(threads: Threads) -> None:
    threads.run(2 * POLICY.look_s, share=0.98, locked=True)
    assert len(threads.cpus) == 1


def test_a_share_between_the_bounds_changes_nothing(threads: Threads) -> None:
    """Else the threads would move to and fro."""
    between = (POLICY.little + POLICY.much) / 2
    assert set(threads.run(10.0, share=between)) == {len(EVERY)}
    threads.run(2 * POLICY.look_s, share=0.1)
    assert threads.run(10.0, share=between).count(1) > 900


def test_a_cpu_that_others_need_is_left_for_a_while(threads: Threads) -> None:
    """Handlers that wait lose more there than they save."""
    threads.run(2 * POLICY.look_s, share=0.1)
    threads.run(2 * POLICY.look_s, share=0.1, delayed=0.5)
    assert threads.cpus == EVERY
    assert set(threads.run(POLICY.shy_s - 2 * POLICY.look_s, share=0.1)) == {len(EVERY)}
    threads.run(2 * POLICY.shy_s, share=0.1)
    assert len(threads.cpus) == 1


def test_lock_bound_threads_stay_though_others_need_the_cpu(threads: Threads) -> None:
    """Apart they would cost half as much again, and wait as long."""
    threads.run(2 * POLICY.look_s, share=0.98, locked=True)
    seen = threads.run(3.0, share=0.98, locked=True, delayed=0.5)
    assert set(seen) == {1}


def test_now_and_then_the_scheduler_may_choose_another_cpu(threads: Threads) -> None:
    """One that has become crowded is left; and only for a moment are the threads apart."""
    seen = threads.run(4 * POLICY.keep_s, share=0.1)[round(2 * POLICY.look_s / 0.01) :]
    apart = seen.count(len(EVERY)) * 0.01
    assert 3 <= round(apart / POLICY.choose_s) <= 4


def test_threads_that_outlive_their_pool_may_go_anywhere(threads: Threads) -> None:
    threads.run(2 * POLICY.look_s, share=0.1)
    threads.placement.end()
    assert threads.cpus == EVERY


def test_a_handlers_child_process_may_use_every_cpu() -> None:
    """A child inherits the CPUs of the thread that starts it, and keeps them."""
    placement = CpuAffinity(POLICY, usage=lambda: Usage(0.0, 0.0))
    placement.decide(True, 1000.0)
    try:
        assert len(os.sched_getaffinity(0)) == 1
        count = "import os; print(len(os.sched_getaffinity(0)))"
        counted = subprocess.run(
            [sys.executable, "-c", count], capture_output=True, text=True, check=True
        )
        assert int(counted.stdout) == len(EVERY)
    finally:
        placement.decide(False, 1000.01)
    assert os.sched_getaffinity(0) == EVERY
