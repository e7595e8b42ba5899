"""What the supervisor writes into the crash journal when a worker dies, and when not."""

import json
import os
import signal

import pytest

from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import CrashJournal
from tests.support.bare_service import Service
from tests.support.waiting import eventually

EXPECTED = json.dumps([["orders", 0, 7], ["orders", 0, 9]])
QUICK = {"dump_s": 0.2, "term_s": 0.3, "abort_s": 0.5}


def suspects(service: Service) -> dict[int, Suspect]:
    """By offset."""
    return {s.place[2]: s for s in CrashJournal(service.folder / "suspects").read().values()}


def replaced(service: Service) -> None:
    """Worker 0 lives a second time, and the one beside it its first."""
    eventually(lambda: service.running().get(0) and len(service.births(0)) > 1)
    assert len(service.births(1)) == 1


@pytest.mark.parametrize(
    ("how", "name"),
    [(-signal.SIGSEGV, "SIGSEGV"), (3, "exit code 3"), (-signal.SIGKILL, "SIGKILL")],
)
def test_records_in_hand_at_a_crash_become_suspects_at_once(service: Service, how: int, name: str):
    """The next worker would take the same record and die again."""
    dies = {"holds": [7, 9], "die_later": how, "tell_suspects": True}
    service.write(behaviour={"0": dies})
    service.start()
    at_birth = service.folder / "known_at_birth"
    eventually(lambda: at_birth.exists() and at_birth.read_text() == EXPECTED)
    found = suspects(service)
    assert {offset: (s.why, s.deaths, set(s.ended)) for offset, s in found.items()} == {
        7: ("crash", 0, {name}),
        9: ("crash", 0, {name}),
    }
    assert "worker 0 had 2 unfinished records, which may have caused its end" in service.said()


@pytest.mark.parametrize(("how", "seconds"), [(3, [0, 0, 60]), (-signal.SIGKILL, [0, 0, 0])])
def test_the_third_crash_in_a_row_isolates_all_records(
    service: Service, how: int, seconds: list[int]
):
    """Nothing in hand did it, or it would be isolated by now. A kill comes from outside."""
    service.write(behaviour={"0": {"die_later": how, "tell_isolation": True}})
    service.start()
    told = service.folder / "isolates"
    eventually(lambda: told.exists() and len(told.read_text().split()) >= len(seconds) + 1)
    found = [int(line) for line in told.read_text().split()]
    assert found[: len(seconds) + 1] == [0, *seconds]
    event = "; all its records run in an isolated process for 60 s then"
    assert (event in service.said()) == (how == 3)


# To whom which signal goes.
ENDS = {
    "rolling restart": ("service", signal.SIGUSR2),
    "scaling down": ("service", signal.SIGTTOU),
    "stop": ("service", signal.SIGTERM),
    "quit": ("service", signal.SIGQUIT),
    "one worker drained by hand": ("worker", signal.SIGTERM),
    "one worker ended by hand": ("worker", signal.SIGQUIT),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_ordered_death_makes_no_suspects(service: Service, end: str):
    """A deploy is not an attempt of the records that it interrupts."""
    service.write(behaviour={"*": {"holds": [7]}})
    service.serve()
    pid = service.running()[1]
    whom, signum = ENDS[end]
    os.kill(pid if whom == "worker" else service.pid, signum)
    eventually(lambda: pid not in service.alive())
    eventually(lambda: 0 in service.running() or not service.status())
    assert suspects(service) == {}


def test_a_kill_for_a_slow_drain_makes_no_suspects(service: Service):
    service.write(
        settings={"drain_timeout": "0s"},
        limits={"drain_margin_s": 0.5},
        behaviour={"0": {"holds": [7], "ignore_term": True}},
    )
    service.serve()
    service.send(signal.SIGTERM)
    service.says("did not end in time: killed")
    service.exit_code()
    assert suspects(service) == {}


def test_only_the_record_that_overran_is_suspected(service: Service):
    """Stacks first, since they say where; then the others' records get a moment to end."""
    service.write(
        settings={"handler_timeout": "1s"},
        limits=QUICK,
        behaviour={"0": {"holds": [7, 9], "renews": [1], "ignore_term": True}},
    )
    service.serve()
    service.write(behaviour={})
    replaced(service)
    said = service.said()
    assert {o: (s.why, s.ended) for o, s in suspects(service).items()} == {
        7: ("timeout", ("SIGABRT",))
    }
    assert "has a handler over workers.handler_timeout = 1s; dumping its stacks" in said
    assert "SIGTERM in 0.2 s, SIGABRT in 0.5 s, SIGKILL in 1 s" in said
    stacks_at, aborted_at = said.index(" in run\n"), said.index("Fatal Python error: Aborted")
    assert stacks_at < aborted_at
    assert "next start at once" in said


def test_an_overrun_record_that_ends_is_no_suspect(service: Service):
    """It may just have been slow; what it did is committed."""
    service.write(
        settings={"handler_timeout": "1s"},
        limits={"term_s": 20},
        behaviour={"0": {"holds": [7], "lets_go": [0]}},
    )
    service.serve()
    service.write(behaviour={})
    replaced(service)
    assert "over workers.handler_timeout" in service.said()
    assert suspects(service) == {}


def test_the_computing_record_of_a_silent_worker_is_the_suspect(service: Service):
    """It holds the interpreter's lock; the others wait for it, whoever began first."""
    service.write(
        limits={**QUICK, "heartbeat_s": 2.0},
        behaviour={"0": {"holds": [7], "holds_the_lock": 9}},
    )
    service.start()
    service.says("has not polled for")
    service.write(behaviour={})
    replaced(service)
    assert {o: s.why for o, s in suspects(service).items()} == {9: "timeout"}
    assert "in _hold_the_lock" in service.said()


def test_the_record_that_holds_the_lock_is_found_behind_overruns(service: Service):
    """It began last, so those that it keeps from ending overrun first; each would stop a worker."""
    service.write(
        settings={"handler_timeout": "1s"},
        limits=QUICK,
        behaviour={"0": {"holds": [7], "holds_the_lock": 9, "locks_after_s": 0.5}},
    )
    service.start()
    service.says("over workers.handler_timeout")
    service.write(behaviour={})
    replaced(service)
    assert {o: s.why for o, s in suspects(service).items()} == {9: "timeout"}


def test_what_overran_by_the_end_of_the_worker_is_suspected(service: Service):
    """One that blocks an event loop began after those that it keeps from ending."""
    service.write(
        settings={"handler_timeout": "1s"},
        limits={**QUICK, "term_s": 1.5},
        behaviour={"0": {"holds": [7], "takes_late": 9, "ignore_term": True}},
    )
    service.serve()
    service.write(behaviour={})
    replaced(service)
    assert {o: s.why for o, s in suspects(service).items()} == {7: "timeout", 9: "timeout"}


def test_all_records_of_an_idle_silent_worker_are_suspects(service: Service):
    """A call into C that waits and keeps the lock shows nowhere; the cell finds out."""
    service.write(
        limits={**QUICK, "heartbeat_s": 1.2},
        behaviour={"0": {"holds": [7, 9], "silent": True, "ignore_term": True}},
    )
    service.serve()
    service.write(behaviour={})
    replaced(service)
    assert {o: s.why for o, s in suspects(service).items()} == {7: "timeout", 9: "timeout"}


def test_what_a_silent_worker_began_meanwhile_is_no_suspect(service: Service):
    """Its handlers go on: what they have in hand did not stop the poll thread."""
    service.write(
        limits={**QUICK, "heartbeat_s": 1.2},
        behaviour={"0": {"holds": [7, 9], "renews": [1], "silent": True, "ignore_term": True}},
    )
    service.serve()
    service.write(behaviour={})
    replaced(service)
    assert {o: s.why for o, s in suspects(service).items()} == {7: "timeout"}


def test_a_drain_takes_precedence_over_the_handler_timeout(service: Service):
    service.write(
        settings={"handler_timeout": "1s", "drain_timeout": "3s"},
        behaviour={"0": {"holds": [7], "drain_steps": 25}},
    )
    service.serve()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert "over workers.handler_timeout" not in service.said()
    assert suspects(service) == {}


def test_an_unwritable_journal_stops_no_worker(service: Service):
    service.write(behaviour={"0": {"holds": [7], "die_later": -signal.SIGSEGV}})
    (service.folder / "suspects").write_text("in the way")
    service.start()
    service.says("may have ended worker 0 cannot be written")
    service.write(behaviour={})
    eventually(lambda: len(service.running()) == 2)
