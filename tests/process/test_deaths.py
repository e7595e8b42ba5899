"""Workers die, and the supervisor restarts them: at once, later, or no more."""

import os
import signal
import time
from pathlib import Path

import psutil

from tests.support.bare_service import Service
from tests.support.waiting import eventually

DELAY_S = 3.0  # of the first start that is not made at once


def test_a_killed_worker_is_back_within_two_seconds(service: Service):
    """Its partitions wait for it: each second is a second of delay for a customer."""
    service.serve()
    before = service.running()
    os.kill(before[0], signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: service.running().get(0) not in (None, before[0]), timeout_s=5)
    assert service.births(0)[-1] - killed < 2
    assert service.running()[1] == before[1]
    assert [row["restarts"] for row in service.workers()] == [1, 0]
    assert service.status()["deaths"] == {"SIGKILL": 1}
    assert "worker 0 exited (SIGKILL) after" in service.said()
    assert "next start at once" in service.said()


def test_a_third_quick_death_waits_and_turns_the_service_red(
    service: Service,
):
    """A worker that dies again and again must not burn the machine; a status must tell it."""
    service.write(limits={"restart": {"first_delay_s": DELAY_S}})
    service.serve()
    killed = [service.kill(0) for _ in range(3)]
    red = service.status()
    assert red["state"] == "red"
    assert "worker 0 exited (SIGKILL); next start in" in red["reasons"][0]
    assert red["workers"][0]["pid"] is None
    eventually(lambda: service.running().get(0))
    assert service.status()["state"] == "running"
    births = service.births(0)
    assert len(births) == 4
    assert births[2] - killed[1] < DELAY_S < births[3] - killed[2]


def test_totals_keep_what_a_dead_worker_had_counted(service: Service):
    """Counters that fall when a process dies make every rate a lie."""
    service.serve()
    eventually(lambda: service.status()["counters"]["done"] > 20)
    before = service.status()["counters"]["done"]
    service.write(behaviour={"*": {"idle": True}})
    for slot in (0, 1):
        service.kill(slot)
    eventually(lambda: len(service.running()) == 2)
    assert service.status()["counters"]["done"] >= before


def test_five_failed_starts_of_one_slot_end_the_service_with_70(service: Service):
    """A loop that cannot help must end where somebody sees it; the others drain."""
    service.write(
        limits={"restart": {"first_delay_s": 0.1, "longest_delay_s": 0.2}},
        behaviour={"1": {"die_at_boot": -int(signal.SIGSEGV)}},
    )
    service.start()
    assert service.exit_code() == 70
    assert len(service.births(1)) == 5
    assert "worker 1 exited (SIGSEGV) after" in service.said()
    assert "3 of 5" in service.said()
    assert "5 starts in a row failed: giving up" in service.said()
    assert service.alive() == []


def test_kills_before_the_first_poll_are_never_given_up(service: Service):
    """Out of memory passes; a service that gave up would stay down."""
    service.write(
        limits={"restart": {"first_delay_s": 0.02, "longest_delay_s": 0.05}},
        behaviour={"1": {"die_at_boot": -int(signal.SIGKILL)}},
    )
    service.start()
    eventually(lambda: len(service.births(1)) > 8)
    service.write(behaviour={})
    eventually(lambda: len(service.running()) == 2)


def test_a_worker_with_a_config_error_ends_the_service_with_78(service: Service):
    service.write(behaviour={"0": {"die_at_boot": 78}})
    service.start()
    assert service.exit_code() == 78
    assert len(service.births(0)) == 1
    assert "cannot run with this configuration" in service.said()


def test_a_fenced_worker_ends_the_service_with_73(service: Service):
    """Two twins that fence each other in turn would never process anything."""
    service.write(behaviour={"0": {"die_at_boot": 73}})
    service.start()
    assert service.exit_code() == 73
    assert "fenced by another process with its identity" in service.said()


def test_a_silent_poll_thread_is_dumped_killed_and_replaced(service: Service):
    """A worker that holds the GIL for ever keeps its partitions from everybody."""
    service.write(
        limits={"heartbeat_s": 1.2, "dump_s": 0.2, "term_s": 0.3, "abort_s": 0.5},
        behaviour={"0": {"silent": True, "ignore_term": True}},
    )
    service.serve()
    service.write(behaviour={})
    service.says("has not polled for")
    service.says("Fatal Python error: Aborted")
    eventually(lambda: service.status()["workers"][0]["restarts"] == 1)
    eventually(lambda: len(service.running()) == 2)
    assert " in run\n" in service.said()  # the stack says where
    assert service.workers()[1]["restarts"] == 0


def test_a_still_pool_is_dumped_and_its_worker_replaced(service: Service):
    """It polls and beats, and would hold its partitions for ever. No record is to blame."""
    service.write(limits={"stalled_s": 1.0}, behaviour={"0": {"still_ms": 1500}})
    service.serve()
    service.write(behaviour={})
    service.says(
        "worker 0 is stuck: it has finished no record for 2 s, with 0 in flight and no handler"
        " running"
    )
    eventually(lambda: service.status()["workers"][0]["restarts"] == 1)
    eventually(lambda: len(service.running()) == 2)
    assert " in run\n" in service.said()  # the stacks say where
    assert not (service.folder / "suspects").exists()


def test_a_pool_in_which_a_slow_handler_is_at_work_is_left_alone(service: Service):
    """What that may take is `handler_timeout`."""
    service.write(limits={"stalled_s": 0.1}, behaviour={"*": {"still_ms": 60_000, "holds": [7]}})
    service.serve()
    done = service.status()["counters"]["done"]
    eventually(lambda: service.status()["counters"]["done"] > done + 50)
    assert [row["restarts"] for row in service.workers()] == [0, 0]


def test_a_worker_that_never_finishes_its_boot_is_replaced(service: Service):
    service.write(limits={"boot_s": 0.5, "abort_s": 0.3}, behaviour={"0": {"hang_at_boot": True}})
    service.start()
    service.says("has been starting for")
    service.write(behaviour={})
    eventually(lambda: len(service.running()) == 2)


def test_a_continued_supervisor_kills_no_worker(service: Service):
    """The heartbeats are stale only because the supervisor was stopped, the workers with it."""
    service.write(limits={"heartbeat_s": 1.0, "gap_s": 0.5})
    service.serve()
    before = service.running()
    everyone = [service.pid, *before.values()]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    eventually(lambda: time.monotonic() - stopped > 1.5)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    beats = eventually(lambda: service.status()["counters"]["done"])
    eventually(lambda: service.status()["counters"]["done"] > beats + 20)
    assert service.running() == before


def test_workers_over_their_memory_are_replaced_one_at_a_time(service: Service):
    """A leak must cost a drain, not an outage."""
    service.write(
        limits={"memory_every_s": 0.2},
        settings={"memory": "128MiB"},
        behaviour={"*": {"once": True, "bytes": 150 << 20, "drain_steps": 4}},
    )
    service.serve()
    fewest = 2
    while sum(row["replacements"] for row in service.workers()) < 2 or len(service.running()) < 2:
        fewest = min(fewest, sum(row["pid"] is not None for row in service.workers() or [{}, {}]))
        eventually(service.workers)
    assert fewest >= 1
    assert "over workers.memory = 128 MiB" in service.said()
    assert service.status()["state"] == "running"
    assert service.status()["replacements"] == {"memory": 2}


def test_a_worker_too_large_at_boot_is_red_and_not_replaced(service: Service):
    """Each new life would be as large: replaced every 5 s for ever, and nobody told."""
    service.write(
        limits={"memory_every_s": 0.1},
        settings={"memory": "128MiB"},
        behaviour={"0": {"bytes": 150 << 20, "baseline_bytes": 200 << 20}},
    )
    service.serve()
    service.says("took 200 MiB before its first record, over workers.memory = 128 MiB")
    done = service.status()["counters"]["done"]
    eventually(lambda: service.status()["counters"]["done"] > done + 50)
    document = service.status()
    assert document["state"] == "red"
    assert [reason for reason in document["reasons"] if "workers.memory = 128 MiB" in reason]
    assert [row["restarts"] for row in document["workers"]] == [0, 0]
    assert service.said().count("before its first record") == 1


def test_a_worker_that_grows_again_waits_to_be_replaced(service: Service):
    """In red, with the figures and the time."""
    service.write(
        limits={"memory_every_s": 0.1},
        settings={"memory": "128MiB", "processes": 1},
        behaviour={"0": {"bytes": 150 << 20, "baseline_bytes": 60 << 20}},
    )
    service.serve(workers=1)
    reasons = eventually(lambda: service.status().get("reasons"))
    assert "over workers.memory = 128 MiB, and was replaced for that lately" in reasons[0]
    assert len(service.births()) == 2


def test_a_worker_that_has_taken_max_records_is_replaced(service: Service):
    service.write(limits={"memory_every_s": 0.2}, settings={"max_records": 50})
    service.serve()
    eventually(lambda: sum(row["replacements"] for row in service.workers()) >= 2)
    assert [row["restarts"] for row in service.workers()] == [0, 0]
    assert "workers.max_records = 50" in service.said()
    assert service.status()["replacements"]["max_records"] >= 2


def test_the_dead_leave_no_zombies(service: Service):
    service.serve()
    for slot in (0, 1, 0, 1):
        service.kill(slot)
    eventually(lambda: len(service.running()) == 2)
    children = psutil.Process(service.pid).children()
    assert psutil.STATUS_ZOMBIE not in {child.status() for child in children}
    delay = service.status()["delay"]["pid"]
    assert {child.pid for child in children} == {delay, *service.running().values()}


def test_a_worker_has_nothing_of_the_supervisors(service: Service):
    """A lock, a socket or a lifeline in a child outlives the supervisor with it.

    That is what the lock of the host is for, and nothing else.
    """
    service.serve()
    listeners = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    locks = {f"socket:[{words[6]}]" for words in listeners if words[-1].startswith("@kworker/")}
    for pid in service.running().values():
        open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [name for name in open_files if name.endswith(("/lock", "control.sock"))]
        others = [name for name in open_files if name.startswith(("socket:", "anon_inode"))]
        assert set(others) <= locks
        assert len(others) == 1
        assert len([name for name in open_files if name.startswith("pipe:")]) <= 1
        assert [name for name in open_files if name.endswith("/workers.lock")]


def test_the_kernel_kills_workers_before_their_supervisor(service: Service):
    """It is small, but the kernel takes the largest of those that it has not yet ended."""

    def lead(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    service.serve()
    assert {lead(pid) - lead(service.pid) for pid in service.running().values()} == {100}
