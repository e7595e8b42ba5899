"""The probes of a real service: each has a fault that turns it red, and back when it is over."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kworker.sandbox import Sandbox
from tests.support.console import ConsoleClient
from tests.support.kafka import create_topic
from tests.support.service import Service, frozen, service

TURNS_S = 60.0  # a group whose broker was frozen may have to form anew

# Its `__init__` connects to what is closed at first.
HANDLERS = """
from pathlib import Path

class handle:
    def __init__(self):
        if not Path(__file__).with_name("open").exists():
            raise ConnectionError("the warehouse is closed")

    def __call__(self, message):
        return message.value
"""


Codes = Mapping[str, int]
"""The status with which `/livez`, `/readyz` and `/startupz` answer."""

GREEN: Codes = {"live": 200, "ready": 200, "startup": 200}
NOT_STARTED: Codes = {"live": 200, "ready": 503, "startup": 503}
NOT_READY: Codes = {"live": 200, "ready": 503, "startup": 200}
NOT_LIVE: Codes = {"live": 503, "ready": 503, "startup": 200}


class Probes:
    """The probes of one service, over HTTP and as commands."""

    def __init__(self, probed: Service, console: ConsoleClient) -> None:
        self._probed = probed
        self._console = console
        self._codes = self._ask()

    def turn(self, wanted: Codes, reason: str = "", *, after: str) -> None:
        """Waits until they answer so, for this reason; those that do already do so meanwhile.

        `after` says of what this is the effect.
        """
        steady = wanted.items() & self._codes.items()

        def turned() -> bool:
            self._codes = self._ask()
            assert steady <= self._codes.items()
            # What turns one of them red turns this one red, too.
            return self._codes == wanted and (not reason or reason in self.told("ready")["reasons"])

        self._probed.until(turned, f"{reason or 'green'} after {after}", TURNS_S)

    def told(self, kind: str) -> dict[str, Any]:
        """The answer over HTTP."""
        document: dict[str, Any] = self._console.get(f"/{kind}z").json
        return document

    def told_by_command(self, kind: str) -> dict[str, Any]:
        """The answer of `kworker health`, whose exit code agrees with it."""
        done = self._probed.command("health", kind, "--json", "--timeout", "2s")
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == int(not document["ok"]), done
        return document

    def _ask(self) -> Codes:
        return {kind: self._console.get(f"/{kind}z").status for kind in GREEN}


def agree(probes: Probes, wanted: Codes, state: str, reason: str = "") -> None:
    """Both ways: the red ones give the reason, the green ones none."""
    for kind, code in wanted.items():
        for told in (probes.told(kind), probes.told_by_command(kind)):
            assert (told["ok"], told["name"], told["state"]) == (code == 200, "orders", state), kind
            assert reason in told["reasons"] if code == 503 else told["reasons"] == [], told


def test_each_probe_has_a_fault_that_turns_it_red_and_back(
    tmp_path: Path, own_sandbox: Callable[..., Sandbox], free_port: Callable[[], int]
) -> None:
    """Each asks for another act: to wait, to look at the brokers, to restart the service."""
    sandbox, port = own_sandbox(redis=False), free_port()
    source = create_topic(sandbox.bootstrap, "source", 2)
    settings: dict[str, dict[str, Any]] = {
        "console": {"listen": f"127.0.0.1:{port}"},
        "workers": {"processes": 2},
    }
    folder = tmp_path / "service"
    with service(
        folder, sandbox.bootstrap, [source], handlers=HANDLERS, settings=settings, name="orders"
    ) as probed:
        probed.start()
        console = ConsoleClient(port)
        console.comes("/livez")
        probes = Probes(probed, console)
        closed = "the handler's __init__ or open() failed: ConnectionError: the warehouse is closed"
        probes.turn(NOT_STARTED, closed, after="the start")
        agree(probes, NOT_STARTED, "red", closed)
        (folder / "open").touch()
        probes.turn(GREEN, after="the warehouse opened")
        agree(probes, GREEN, "running")
        with frozen(sandbox.broker_pid(1)):
            silent = "no broker answers; what is in hand waits"
            probes.turn(NOT_READY, silent, after="the broker froze")
            agree(probes, NOT_READY, "red", silent)
        probes.turn(GREEN, after="the broker thawed")
        agree(probes, GREEN, "running")
        with frozen(probed.pid):
            hangs = f"orders: the supervisor (pid {probed.pid}) does not answer"
            probes.turn(NOT_LIVE, hangs, after="the supervisor froze")
            for kind, code in NOT_LIVE.items():
                why = [hangs] if code == 503 else []
                expected = {"ok": not why, "name": "orders", "state": None, "reasons": why}
                assert probes.told(kind) == expected
                # The command has no memory of the start.
                assert probes.told_by_command(kind)["reasons"] == [hangs]
        probes.turn(GREEN, after="the supervisor thawed")
        agree(probes, GREEN, "running")
        probed.ends_well()
