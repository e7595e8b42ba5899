"""The delay process under the supervisor: it may die as it likes, the service goes on."""

import os
import signal

import psutil

from tests.support.bare_service import Service
from tests.support.waiting import eventually

ROWS = [["1s", 12, 1_700_000_000_000], ["1m", 0, None]]


def test_the_delay_process_is_a_child_with_its_own_title(service: Service):
    service.serve()
    pid = service.delay_runs()
    process = psutil.Process(pid)
    assert process.ppid() == service.pid
    assert process.cmdline()[0].startswith("kworker: delay")


def test_the_status_shows_waiting_records_by_delay(service: Service):
    service.write(behaviour={"delay": {"rows": ROWS}})
    service.serve()
    service.delay_runs()
    assert service.status()["delays"] == [
        {"delay": "1s", "waiting": 12, "next_due_ms": 1_700_000_000_000},
        {"delay": "1m", "waiting": 0, "next_due_ms": None},
    ]
    assert service.status()["state"] == "running"


def test_problems_of_the_delay_process_turn_the_service_red(service: Service):
    service.write(behaviour={"delay": {"reasons": ["no broker answers"]}})
    service.serve()
    service.delay_runs()
    status = service.status()
    assert (status["state"], status["reasons"]) == ("red", ["delay: no broker answers"])


def test_a_killed_delay_process_restarts_and_workers_go_on(service: Service):
    """What is due waits for it."""
    service.serve()
    before, pid = service.running(), service.delay_runs()
    os.kill(pid, signal.SIGKILL)
    service.says("the delay process exited (SIGKILL)")
    eventually(lambda: service.delay_runs() != pid)
    assert service.running() == before
    assert service.delay()["restarts"] == 1
    assert len(service.births(of="delay-births")) == 2


def test_a_fenced_delay_process_ends_the_service_with_73(service: Service):
    """With dynamic workers, only the delay processes of two copies tell of each other."""
    service.write(behaviour={"delay": {"die_at_boot": 73}})
    service.start()
    assert service.exit_code() == 73
    service.says("the delay process was fenced by another process with its identity: the service")
    assert len(service.births(of="delay-births")) == 1


def test_a_dying_delay_process_never_ends_the_service(service: Service):
    """A worker's slot would be given up; but nothing that waits is lost by waiting longer."""
    service.write(
        behaviour={"delay": {"die_at_boot": 1}},
        limits={"restart": {"first_delay_s": 0.05, "longest_delay_s": 0.2, "failed_starts_max": 3}},
    )
    service.serve()
    eventually(lambda: len(service.births(of="delay-births")) >= 6)
    assert sorted(service.running()) == [0, 1]
    eventually(lambda: any("delay process exited" in r for r in service.status()["reasons"]))
    service.write(behaviour={})
    service.delay_runs()
    assert service.status()["state"] == "running"


def test_the_last_delay_report_is_shown_during_a_restart(service: Service):
    service.write(
        behaviour={"delay": {"rows": ROWS}},
        limits={"restart": {"first_delay_s": 30.0, "deaths_at_once": 0}},
    )
    service.serve()
    os.kill(service.delay_runs(), signal.SIGKILL)
    eventually(lambda: service.delay()["pid"] is None)
    assert [row["waiting"] for row in service.status()["delays"]] == [12, 0]
    [reason] = service.status()["reasons"]
    assert reason.startswith("delay process exited (SIGKILL); next start in")


def test_a_stuck_delay_process_is_dumped_killed_and_replaced(service: Service):
    service.write(
        behaviour={"delay": {"silent": True, "ignore_term": True}},
        limits={"heartbeat_s": 1.2, "dump_s": 0.2, "term_s": 0.3, "abort_s": 0.5},
    )
    service.serve()
    pid = service.delay_runs()
    service.write(behaviour={})
    service.says("the delay process is stuck: it has not polled for")
    service.says("in fake_delay")
    service.says("the delay process exited (SIGABRT)")
    eventually(lambda: service.delay_runs() != pid)


def test_the_delay_process_ends_with_the_service(service: Service):
    """And the drain is the workers': its own makes no exit code."""
    service.serve()
    service.delay_runs()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert service.alive() == []


def test_a_deaf_delay_process_is_killed_after_a_wait(service: Service):
    service.write(
        settings={"drain_timeout": "200ms"},
        limits={"drain_margin_s": 0.3},
        behaviour={"delay": {"ignore_term": True}},
    )
    service.serve()
    service.delay_runs()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert "the delay process did not end in time: killed" in service.said()
    assert service.alive() == []


def test_a_reload_restarts_the_delay_process_with_new_delays(service: Service):
    """A delay that is new must be read at once, and one that is retired not be written to."""
    service.serve()
    pid = service.delay_runs()
    service.send(signal.SIGHUP)
    eventually(lambda: service.delay_runs() != pid)
    eventually(lambda: len(service.running()) == 2)
    assert "exited" not in service.said()


def test_the_delay_process_ends_when_its_supervisor_is_killed(service: Service):
    service.serve()
    service.delay_runs()
    service.send(signal.SIGKILL)
    service.exit_code()
    eventually(lambda: service.alive() == [], what="nobody is left")


def test_a_dump_has_its_stacks_too(service: Service):
    service.serve()
    service.delay_runs()
    service.client.request("dump")
    service.says("in fake_delay")


def test_lag_counts_every_partition_and_an_unowned_one_is_red(service: Service):
    """Workers 0 and 1 have those of their numbers, and know better how far they are in them."""
    told = {"behind": {"orders": [1, 2, 40, 7]}, "others": {"orders": [3]}}
    service.write(behaviour={"delay": told}, limits={"unowned_s": 0.5})
    service.serve()
    service.delay_runs()
    [reason] = eventually(lambda: service.status()["reasons"])
    assert reason.startswith("no worker has orders/2, for ")
    assert "40 records wait" in reason
    assert service.status()["lag"]["records"] == 47
