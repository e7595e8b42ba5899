"""Signals to the supervisor keep their meaning, in any number and at any time."""

import os
import random
import signal
import time
from contextlib import suppress
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2

from tests.support.bare_service import Service
from tests.support.waiting import eventually


def test_term_drains_and_a_second_changes_nothing(service: Service):
    """Records in hand finish; an impatient init system must not make them lost work."""
    service.write(behaviour={"*": {"drain_steps": 6}})
    service.serve()
    service.delay_runs()
    service.send(SIGTERM)
    service.says("draining: finishing records")
    service.send(SIGTERM, SIGTERM)
    assert service.exit_code() == 0
    assert service.said().count("ended (exit code 0)") == 3  # the delay process, too
    assert service.alive() == []


def test_a_drain_that_timed_out_in_a_worker_exits_75(service: Service):
    service.write(behaviour={"1": {"drain_exit": 75}})
    service.serve()
    service.send(SIGTERM)
    assert service.exit_code() == 75


def test_a_worker_past_its_drain_timeout_is_killed_with_75(service: Service):
    """Without the setting it would have as long as the driver gives: longer than is waited here."""
    service.write(
        settings={"drain_timeout": "200ms"},
        limits={"drain_margin_s": 0.3},
        behaviour={"0": {"ignore_term": True}},
    )
    service.serve()
    service.send(SIGTERM)
    assert service.exit_code() == 75
    assert "worker 0 did not end in time: killed" in service.said()


def test_int_drains_and_a_second_ends_at_once(service: Service):
    """Ctrl-C, and Ctrl-C again by somebody who has no time; 75 tells what was in hand."""
    service.write(behaviour={"*": {"drain_steps": 100, "in_hand": 3}})
    service.serve()
    service.send(SIGINT)
    service.says("draining: finishing records")
    eventually(lambda: service.status().get("state") == "draining")
    eventually(lambda: len(service.alive()) == 2, what="the workers alone are left")
    service.send(SIGINT)
    assert service.exit_code(5) == 75
    assert service.alive() == []


def test_ctrl_c_reaches_the_whole_group_and_workers_still_drain(service: Service):
    """A terminal sends SIGINT to the workers too: they must leave it to the supervisor."""
    service.write(behaviour={"*": {"drain_steps": 3}})
    service.serve()
    service.delay_runs()
    os.killpg(service.pid, SIGINT)
    assert service.exit_code() == 0
    assert service.said().count("ended (exit code 0)") == 3  # the delay process, too


def test_quit_ends_at_once(service: Service):
    service.write(behaviour={"*": {"ignore_term": True}})
    service.serve()
    service.send(SIGQUIT)
    assert service.exit_code(5) == 0  # nothing was in hand
    assert service.alive() == []


def test_ttin_and_ttou_scale_by_one(service: Service):
    service.serve()
    before = service.running()
    service.send(SIGTTIN)
    eventually(lambda: sorted(service.running()) == [0, 1, 2])
    service.send(SIGTTOU)
    eventually(lambda: service.running() == before and len(service.workers()) == 2)
    service.send(SIGTTOU)
    eventually(lambda: sorted(service.running()) == [0])
    service.send(SIGTTOU)
    service.says("refused to run 0 workers: 1 to ")
    assert service.running() == {0: before[0]}


def test_usr2_replaces_the_workers_one_at_a_time(service: Service):
    """A release must never take the whole service away."""
    service.write(behaviour={"*": {"drain_steps": 5}})
    service.serve()
    before = service.running()
    service.send(SIGUSR2)
    fewest = 2
    while not (len(now := service.running()) == 2 and not set(now.values()) & set(before.values())):
        fewest = min(fewest, len(now))
    assert fewest == 1
    first, second = service.births(0)[1], service.births(1)[1]
    assert abs(second - first) > 0.3  # the second began its drain when the first was back


def test_a_reload_of_a_fixed_key_is_refused(service: Service):
    service.serve()
    before = service.running()
    service.write(settings={"name": "invoices", "membership": "dynamic"})
    service.send(SIGHUP)
    service.says('name: is \\"orders\\" and cannot become \\"invoices\\"')
    service.says('workers.membership: is \\"static\\" and cannot become \\"dynamic\\"')
    assert service.running() == before


def test_a_reload_with_a_mistake_changes_nothing(service: Service):
    """A typing error in a file must not end a service that runs."""
    service.serve()
    before = service.running()
    service.write(settings={"mistake": ["workers.threads: expected a number"]})
    service.send(SIGHUP)
    service.says("reload refused, nothing is changed: workers.threads: expected a number")
    service.write(settings={}, preflight={"problems": ["handler: no module named nope"]})
    service.send(SIGHUP)
    service.says("reload refused, nothing is changed: handler: no module named nope")
    assert service.running() == before


def test_a_reload_rolls_the_workers_into_the_new_configuration(service: Service):
    service.serve()
    before = service.running()
    service.write(settings={"processes": 3})
    service.send(SIGHUP)
    eventually(lambda: sorted(service.running()) == [0, 1, 2])
    eventually(lambda: not set(service.running().values()) & set(before.values()))


def test_usr1_dumps_the_stacks_of_all(service: Service):
    service.serve()
    service.send(SIGUSR1)
    # A function that every worker is in. Only its name is sure to stand together: both write at
    # the same time, a word at a time.
    eventually(lambda: service.said().count("fake_worker") == 2)
    service.says("in turn")  # the supervisor's own
    said = service.said()
    for pid in service.running().values():  # above the stacks of each
        assert f"(pid {pid}), by thread:\n" in said
    assert len(service.running()) == 2


def test_term_during_boot_ends(service: Service):
    """At any moment of the start: it must be gone, and quickly."""
    service.write(behaviour={"*": {"hang_at_boot": True}})
    service.start()
    eventually(lambda: len(service.births()) == 2)
    service.send(SIGTERM)
    assert service.exit_code(5) == 0
    assert service.alive() == []


def test_fifty_random_signals_do_not_prevent_a_term(service: Service):
    """No order of signals may leave a process behind or a state that cannot end."""
    seed = int(time.time())
    choice = random.Random(seed)
    service.write(limits={"restart": {"first_delay_s": 0.1}})
    service.serve()
    for _ in range(50):
        service.send(choice.choice([SIGHUP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, signal.SIGCHLD]))
        service.status()
        if pids := list(service.running().values()):
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                number = choice.choice([SIGTERM, SIGINT, SIGUSR1, signal.SIGKILL])
                os.kill(choice.choice(pids), number)
    service.send(SIGTERM)
    assert service.exit_code() in (0, 75), f"seed {seed}"
    assert service.alive() == []
