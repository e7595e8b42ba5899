"""The preflight check comes before the first worker, and a start waits until it passes."""

import signal

from tests.support.bare_service import Service
from tests.support.waiting import eventually


def test_a_mistake_ends_the_start_with_78_and_its_lines(service: Service):
    service.write(preflight={"problems": ["handler: no module named nope; correct it"]})
    service.start()
    assert service.exit_code() == 78
    assert "handler: no module named nope; correct it" in service.said()
    assert service.births() == []


def test_a_start_waits_for_unreachable_brokers_in_red(service: Service):
    """A broker that is down means wait, say so, resume."""
    service.write(preflight={"unreachable": ["kafka: no broker answers at 127.0.0.1:1"]})
    service.start()
    service.says("waiting: kafka: no broker answers")
    status = eventually(service.status)
    assert status["state"] == "waiting"
    assert status["reasons"] == ["kafka: no broker answers at 127.0.0.1:1"]
    assert service.births() == []
    service.write(preflight={})
    eventually(lambda: len(service.running()) == 2)
    assert service.status()["state"] == "running"
    assert service.status()["reasons"] == []
    assert service.said().count("waiting: kafka") == 1  # once, not each try


def test_term_while_waiting_exits_0(service: Service):
    service.write(preflight={"unreachable": ["kafka: no broker answers"]})
    service.start()
    service.says("waiting: kafka")
    service.send(signal.SIGTERM)
    assert service.exit_code(5) == 0


def test_a_preflight_check_that_crashes_is_a_mistake_not_a_loop(service: Service):
    """A handler whose import segfaults must not take the supervisor along."""
    service.write(preflight={"crash": int(signal.SIGSEGV)})
    service.start()
    assert service.exit_code() == 78
    assert "the preflight check crashed (SIGSEGV)" in service.said()


def test_a_preflight_check_that_hangs_is_ended_and_tried_again(service: Service):
    service.write(preflight={"hang": True}, limits={"check_s": 0.4})
    service.start()
    service.says("waiting: the preflight check took over 0.4 s")
    service.write(preflight={})
    eventually(lambda: len(service.running()) == 2)
