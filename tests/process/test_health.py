"""`kworker health` beside a real supervisor, whose console is off: the probes of a container."""

import signal
import time

from tests.support.bare_service import MAIN, Service, python
from tests.support.waiting import eventually


def probed(service: Service, kind: str, *more: str) -> tuple[int, str]:
    """Exit code and line, as the container's runtime gets them."""
    done = python("-c", MAIN, "health", kind, "--state-dir", service.folder, *more)
    return done.returncode, done.stdout + done.stderr


def all_codes(service: Service) -> tuple[int, ...]:
    return tuple(probed(service, kind)[0] for kind in ("live", "ready", "startup"))


def test_the_probes_follow_a_service_through_its_life(service: Service):
    assert all_codes(service) == (3, 3, 3)
    service.write(preflight={"unreachable": ["no broker answers"]})
    service.start()
    eventually(lambda: service.status().get("state") == "waiting")
    assert all_codes(service) == (0, 1, 1)
    assert probed(service, "ready") == (1, "orders is not ready: no broker answers\n")
    service.write(preflight={})
    eventually(lambda: service.status().get("state") == "running")
    assert all_codes(service) == (0, 0, 0)
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert all_codes(service) == (3, 3, 3)


def test_a_dead_worker_makes_it_unready_and_not_unlive(service: Service):
    service.write(limits={"restart": {"deaths_at_once": 0, "first_delay_s": 5.0}})
    service.serve()
    service.kill(0)
    code, line = probed(service, "ready")
    assert code == 1
    assert line.startswith("orders is not ready: worker 0 exited (SIGKILL); next start in")
    assert probed(service, "live")[0] == probed(service, "startup")[0] == 0


def test_a_drain_is_live_and_not_ready(service: Service):
    """Else its records would be cut off by a restart."""
    held = service.folder / "held"
    held.touch()
    service.write(behaviour={"*": {"drain_while": str(held)}})
    service.serve()
    service.send(signal.SIGTERM)
    eventually(lambda: service.status().get("state") == "draining")
    assert probed(service, "live")[0] == 0
    assert probed(service, "ready") == (1, "orders is not ready: the service is draining\n")
    held.unlink()


def test_a_supervisor_that_hangs_is_told_within_the_time_out(service: Service):
    service.serve()
    service.send(signal.SIGSTOP)
    began = time.monotonic()
    code, line = probed(service, "live", "--timeout", "500ms")
    assert time.monotonic() - began < 5
    assert code == 1
    assert f"the supervisor (pid {service.pid}) does not answer" in line
    service.send(signal.SIGCONT)
    assert probed(service, "live") == (0, "orders is live\n")
