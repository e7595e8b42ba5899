"""Placement: one CPU while that is enough, every CPU as soon as it is not."""

import hashlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from kworker.worker.handlers.cpu_affinity import (
    CpuAffinity,
    CpuAffinityPolicy,
    CpuLoad,
    Usage,
    _OwnThreads,
)
from kworker.worker.handlers.cpu_comparison import ComparisonPolicy
from tests.support.waiting import eventually

EVERY = os.sched_getaffinity(0)
POLICY = CpuAffinityPolicy()
COMPARISON = ComparisonPolicy()
ONE_S = COMPARISON.looks * POLICY.look_s  # to measure one of the two choices


class Load(NamedTuple):
    """What the threads use of a CPU, and how many records end in a second."""

    share: float
    rate: float


CONVOY = Load(1.1, 19_000), Load(0.6, 23_000)  # on all, on one
NATIVE = Load(1.4, 4_000), Load(1.0, 2_900)


class Threads:
    """What the placement sees of a process, and where it put it."""

    def __init__(self) -> None:
        self.used_s = self.delayed_s = self.ended = 0.0
        self.idle = dict.fromkeys(EVERY, 0.0)  # shares
        self.idle_s = dict.fromkeys(EVERY, 0.0)
        self.chance = 0.0
        self.now = 1000.0
        self.cpus = EVERY
        self.placement = CpuAffinity(
            POLICY,
            ended=lambda: int(self.ended),
            usage=lambda: Usage(self.used_s, self.delayed_s),
            load=lambda: CpuLoad(self.used_s, dict(self.idle_s)),
            place=self._move,
            chance=lambda: self.chance,
        )

    @property
    def cpu(self) -> int:
        [cpu] = self.cpus
        return cpu

    @property
    def another(self) -> int:
        return min(EVERY - self.cpus)

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
            for cpu, idle in self.idle.items():
                self.idle_s[cpu] += 0.01 * idle
            self.placement.decide(locked, self.now)
            seen.append(len(self.cpus))
        return seen

    def work(self, seconds: float, *loads: Load, locked: bool = False) -> list[int]:
        """As `run`, with two loads: the first is that on all CPUs, the second that on one."""
        seen = []
        for _ in range(round(seconds / 0.01)):
            load = loads[len(self.cpus) == 1]
            self.ended += 0.01 * load.rate
            seen += self.run(0.01, load.share, locked=locked)
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


def moves(seen: list[int]) -> list[float]:
    """When the threads went to one CPU, in seconds."""
    return [i / 100 for i in range(1, len(seen)) if seen[i] == 1 < seen[i - 1]]


def test_threads_that_run_more_records_on_one_cpu_keep_together(threads: Threads) -> None:
    """To hand over the interpreter's lock between CPUs costs many threads most of their time."""
    seen = threads.work(2 * ONE_S + 1.0, *CONVOY)
    assert len(EVERY) in seen
    assert threads.work(120.0, *CONVOY).count(1) > 0.95 * 12_000


def test_a_use_of_one_cpu_that_changes_does_not_end_the_finding(threads: Threads) -> None:
    """Else the threads would leave it whenever they use a little more of it."""
    waves = [Load(0.4, 23_000), Load(0.8, 23_000)] * 60
    seen = [threads.work(1.0, CONVOY[0], wave).count(1) for wave in waves]
    assert sum(seen) > 0.93 * 100 * len(waves)


def test_one_cpu_that_was_slower_is_tried_ever_more_seldom(threads: Threads) -> None:
    """Each try keeps handlers waiting that compute in a library without the lock."""
    seen = threads.work(600.0, *NATIVE)
    tries = moves(seen)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[:3] == pytest.approx(
        [4.0 + 2 * ONE_S, 8.0 + 2 * ONE_S, 16.0 + 2 * ONE_S], abs=0.5
    )
    assert pauses[3:] == pytest.approx([30.0 + 2 * ONE_S] * len(pauses[3:]), abs=0.5)
    assert seen.count(1) < 0.04 * len(seen)


@pytest.mark.parametrize("lull_s", [0.2, 1.0, 5.0, 40.0])
def test_a_lull_does_not_keep_threads_on_one_cpu(threads: Threads, lull_s: float) -> None:
    """What they ran in it, on all CPUs or on one, says nothing of what they could run."""
    threads.work(100.0, *NATIVE)
    threads.work(lull_s, *[Load(0.2, 300)] * 2)
    seen = threads.work(30.0, Load(2.5, 9_000), Load(1.0, 3_000))
    assert seen.count(1) <= 100 * (POLICY.look_s + ONE_S)


@pytest.mark.parametrize("first_s", [1.0, 60.0, 150.0])
def test_handlers_that_begin_to_compute_without_the_lock_are_let_go(
    threads: Threads, first_s: float
) -> None:
    threads.work(first_s, *CONVOY)
    threads.work(COMPARISON.pause_most_s + 2 * ONE_S, Load(2.5, 90_000), Load(1.0, 30_000))
    assert set(threads.work(60.0, Load(2.5, 90_000), Load(1.0, 30_000))) == {len(EVERY)}


def test_few_records_are_not_worth_a_try(threads: Threads) -> None:
    """Chance would decide, and to hand over the lock so seldom costs nothing."""
    assert set(threads.work(60.0, *[Load(1.1, 400)] * 2)) == {len(EVERY)}


def test_lock_bound_threads_are_no_measure_of_all_cpus(threads: Threads) -> None:
    """They were on one; what they ran there is no rate on all."""
    threads.work(10.0, *[Load(1.0, 90_000)] * 2, locked=True)
    seen = threads.work(3.0, *CONVOY)
    assert len(EVERY) in seen
    assert set(seen[100:]) == {1}


def test_a_process_that_was_suspended_has_not_been_idle(threads: Threads) -> None:
    load = Load(2.5, 9_000), Load(1.0, 3_000)
    threads.work(1.0, *load)
    threads.now += 60.0
    assert set(threads.work(1.0, *load)) == {len(EVERY)}


def test_what_was_found_out_holds_over_a_lull(threads: Threads) -> None:
    """The threads do not leave their CPU at each wave."""
    threads.work(60.0, *CONVOY)
    lulls = [threads.work(1.0, *each) for each in (CONVOY, [Load(0.2, 7_000)] * 2) * 10]
    assert sum(each.count(1) for each in lulls) > 0.9 * 2_000


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


def shared(threads: Threads) -> int:
    """Has another process compute on the CPU of the threads, which would compute, too."""
    threads.run(2 * POLICY.look_s, share=0.1)
    threads.idle[threads.another] = 0.95
    return threads.another


@pytest.mark.parametrize("locked", [True, False])
def test_a_cpu_that_another_process_uses_is_left_for_an_idle_one(
    threads: Threads, *, locked: bool
) -> None:
    """Two workers that compute would have one CPU, and nobody the other."""
    idle = shared(threads)
    threads.run(3 * POLICY.compare_s, share=0.5, locked=locked)
    assert threads.cpu == idle


def test_of_two_processes_on_one_cpu_one_may_stay(threads: Threads) -> None:
    """If both left at once, they would meet again."""
    idle = shared(threads)
    threads.chance = POLICY.leave
    threads.run(3 * POLICY.compare_s, share=0.5)
    assert threads.cpu != idle
    threads.chance = 0.0
    threads.run(2 * POLICY.compare_s, share=0.5)
    assert threads.cpu == idle


def test_a_cpu_that_nobody_else_uses_is_kept(threads: Threads) -> None:
    threads.run(2 * POLICY.compare_s, share=0.98, locked=True)
    idle = threads.another
    threads.idle[idle] = 0.95
    threads.run(20 * POLICY.compare_s, share=0.98, locked=True)
    assert threads.cpu != idle
    threads.idle[threads.cpu] = 0.5
    threads.run(20 * POLICY.compare_s, share=0.4)
    assert threads.cpu != idle


def test_a_shared_cpu_is_kept_while_no_other_is_idle(threads: Threads) -> None:
    idle = shared(threads)
    threads.idle[idle] = POLICY.idle / 2
    threads.run(20 * POLICY.compare_s, share=0.5)
    assert threads.cpu != idle


def test_the_load_counts_no_time_of_the_kafka_library() -> None:
    """Its threads run on the other CPUs, and would make a shared CPU look like one of our own."""
    threads = _OwnThreads()
    before = threads.load()
    ended = threading.Event()
    spinner = threading.Thread(target=spin, args=(ended,))
    spinner.start()
    try:
        eventually(lambda: Path(f"/proc/self/task/{spinner.native_id}").exists())
        Path(f"/proc/self/task/{spinner.native_id}/comm").write_text("rdk:broker0")
        threads.load()
        threads.load()  # a young thread may not have its name yet
        used_s, own_s = time.process_time(), threads.load().own_s
        eventually(lambda: time.process_time() > used_s + 0.3)
        assert threads.load().own_s - own_s < 0.15
    finally:
        ended.set()
        spinner.join()
    assert set(before.idle_s) >= EVERY


def test_a_kafka_client_made_by_a_pinned_thread_may_go_anywhere() -> None:
    """Its threads inherit the CPU of their maker, and do not compete with it for the lock."""
    assert len(EVERY) > 1, "this test needs a second CPU"
    threads, ended = _OwnThreads(), threading.Event()
    client = threading.Thread(target=ended.wait)
    cpu = {min(EVERY)}
    threads.place(cpu)
    try:
        client.start()
        assert client.native_id
        threads.load()  # before it has been given its name
        assert os.sched_getaffinity(client.native_id) == cpu
        Path(f"/proc/self/task/{client.native_id}/comm").write_text("rdk:main")
        threads.load()
        assert os.sched_getaffinity(client.native_id) == EVERY
        assert os.sched_getaffinity(0) == cpu
    finally:
        ended.set()
        threads.place(EVERY)
        client.join()


def spin(ended: threading.Event) -> None:
    while not ended.is_set():
        hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock


def test_threads_that_outlive_their_pool_may_go_anywhere(threads: Threads) -> None:
    threads.run(2 * POLICY.look_s, share=0.1)
    threads.placement.end()
    assert threads.cpus == EVERY


def test_a_handlers_child_process_may_use_every_cpu() -> None:
    """A child inherits the CPUs of the thread that starts it, and keeps them."""
    placement = CpuAffinity(POLICY, ended=lambda: 0, usage=lambda: Usage(0.0, 0.0))
    placement.decide(True, 1000.0)
    try:
        assert len(os.sched_getaffinity(0)) == 1
        count = "import os; print(len(os.sched_getaffinity(0)))"
        counted = subprocess.run(
            [sys.executable, "-c", count], capture_output=True, text=True, check=True
        )
        assert int(counted.stdout) == len(EVERY)
        os.sched_setaffinity(0, {min(EVERY)})  # that child let this thread go, too
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(os.sched_getaffinity, 0).result() == EVERY
    finally:
        placement.decide(False, 1000.01)
    assert os.sched_getaffinity(0) == EVERY
