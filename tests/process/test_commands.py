"""The verbs as a person types them, against a service that runs, and the daemon."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.bare_service import MAIN, Service, command, python
from tests.support.config_text import smallest
from tests.support.lines import whole_lines
from tests.support.waiting import eventually


def kworker(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return python(*command(folder, *arguments))


def test_status_and_scale_and_stop_read_well(service: Service):
    service.write(behaviour={"*": {"drain_steps": 6}})
    service.serve()
    shown = kworker(service.folder, "status")
    assert f"orders on test is running  pid {service.pid}" in shown.stdout
    assert (shown.returncode, kworker(service.folder, "status", "--json").returncode) == (0, 0)
    assert kworker(service.folder, "scale", "-1").stdout == "1 workers\n"
    eventually(lambda: len(service.workers()) == 1, what="the other is gone")
    stopped = kworker(service.folder, "stop")
    assert stopped.stdout == "orders is stopped\n"
    assert "draining: 1 workers" in stopped.stderr
    assert stopped.returncode == 0
    assert service.exit_code(1) == 0


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_status_ends_with_1_when_red(service: Service, json_too: list[str]):
    """A probe asks no more than that."""
    service.write(behaviour={"0": {"reasons": ["the breaker is open"]}})
    service.serve()
    shown = kworker(service.folder, "status", *json_too)
    assert "the breaker is open" in shown.stdout
    assert (shown.returncode, shown.stderr) == (1, "")


def test_status_ends_with_1_while_the_service_waits(service: Service):
    service.write(preflight={"unreachable": ["brokers: none answers"]})
    service.start()
    eventually(lambda: service.status().get("state") == "waiting")
    assert kworker(service.folder, "status").returncode == 1


def test_status_ends_with_0_while_the_service_drains(service: Service):
    """Somebody asked for that."""
    service.write(behaviour={"*": {"drain_while": str(service.folder / "draining")}})
    (service.folder / "draining").touch()
    service.serve()
    service.send(signal.SIGTERM)
    eventually(lambda: service.status().get("state") == "draining")
    assert kworker(service.folder, "status").returncode == 0
    (service.folder / "draining").unlink()


def test_status_json_is_the_document(service: Service):
    service.serve()
    shown = kworker(service.folder, "status", "--json")
    assert json.loads(shown.stdout)["workers"][1]["phase"] == "running"


def test_restart_and_reload_wait_for_their_end(service: Service):
    service.serve()
    before = service.running()
    restarted = kworker(service.folder, "restart")
    assert restarted.stdout == "orders: restart done\n"
    assert ", the preflight check runs\n" in restarted.stderr
    rows = [*service.workers(), service.delay()]
    assert {(row["restarts"], row["replacements"]) for row in rows[:2]} == {(0, 1)}
    assert rows[2]["restarts"] == 0
    assert service.status()["replacements"] == {"restart": 2}
    assert not set(service.running().values()) & set(before.values())
    service.write(settings={"name": "invoices"})
    refused = kworker(service.folder, "reload")
    assert refused.returncode == 78
    assert refused.stderr.startswith('kworker: name: is "orders" and cannot become "invoices"')


def test_a_slow_stop_advises_now_and_now_ends_it(service: Service):
    service.write(behaviour={"*": {"drain_steps": 300, "in_hand": 1}})
    service.serve()
    late = kworker(service.folder, "stop", "--timeout", "500ms")
    assert late.returncode == 1
    assert (
        "still draining after 500ms; wait, or end it at once with: kworker stop --now"
        in late.stderr
    )
    assert kworker(service.folder, "stop", "--now").returncode == 75


def test_a_drain_that_timed_out_is_75_for_stop_too(service: Service):
    service.write(behaviour={"0": {"drain_exit": 75, "leaves": 3}})
    service.serve()
    stopped = kworker(service.folder, "stop")
    assert stopped.returncode == 75
    assert "3 records that were not finished and committed in time will be" in stopped.stderr
    service.says('"records_left":3')


def test_stop_works_without_a_socket(service: Service):
    service.serve()
    (service.folder / "control.sock").unlink()
    stopped = kworker(service.folder, "stop")
    assert stopped.returncode == 0
    assert "sent a signal instead" in stopped.stderr
    assert service.exit_code(1) == 0


@pytest.mark.parametrize("verb", [["status"], ["stop"], ["scale", "2"], ["restart"]])
def test_without_a_service_each_verb_exits_3_with_a_line(tmp_path: Path, verb: list[str]):
    refused = kworker(tmp_path, *verb)
    assert refused.returncode == 3
    assert refused.stderr == "kworker: orders is not running: `kworker start` starts it\n"


def launched(service: Service, timeout_s: float) -> str:
    done = python("-m", "tests.support.daemon_driver", service.folder, timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_daemon_reports_ready_and_has_no_terminal(service: Service):
    assert launched(service, 20) == f"DaemonReady(pid={service.status()['pid']})"
    daemon = psutil.Process(service.status()["pid"])
    assert daemon.terminal() is None
    assert os.getsid(daemon.pid) != daemon.pid  # no leader, so it can never get one
    assert len(service.running()) == 2
    assert '"supervisor started"' in (service.folder / "kworker.log").read_text()
    assert list(service.client.follow("stop"))[-1]["exit_code"] == 0
    daemon.wait(5)


def test_a_daemon_that_waits_is_left_waiting(service: Service):
    service.write(preflight={"unreachable": ["kafka: no broker answers"]})
    assert launched(service, 1.5) == "DaemonWaiting()"
    eventually(lambda: service.status()["state"] == "waiting")
    service.write(preflight={})
    eventually(lambda: len(service.running()) == 2)  # nobody listens for readiness any more
    assert list(service.client.follow("stop"))[-1]["exit_code"] == 0


def test_a_daemon_that_ends_early_reports_its_error_and_code(service: Service):
    service.write(preflight={"problems": ["handler: no module named nope"]})
    result = launched(service, 20)
    assert result.startswith("DaemonExited(exit_code=78")
    assert "handler: no module named nope" in result


def test_start_says_what_is_wrong_without_a_traceback(tmp_path: Path):
    """A handler that will not import: 78 and a line, and no loop."""
    (tmp_path / "kworker.toml").write_text(smallest(handler="nope:notify"))
    failed = python("-c", MAIN, "start", "--config", tmp_path / "kworker.toml")
    assert failed.returncode == 78, failed.stderr
    assert "nope" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_log_is_json_with_time_level_and_worker(service: Service):
    service.serve()
    lines = [json.loads(line) for line in whole_lines(service.stderr)]
    assert {"timestamp", "level", "event", "pid"} <= set(lines[0])
    assert lines[0]["timestamp"].endswith("Z")
    assert lines[0]["event"] == "supervisor started"
