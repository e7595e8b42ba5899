"""Starts, finds again and stops the servers of the sandbox in one folder."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kworker.errors import AlreadyRunning, KworkerError, Unreachable, UsageError
from kworker.sandbox import process
from kworker.sandbox.kafka import Broker, Cluster
from kworker.sandbox.plan import Options, Plan, SandboxState, ServerStatus, Status, load
from kworker.sandbox.redis import Redis
from kworker.sandbox.server import SandboxServer

UP_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
CONTROLLERS_ABOVE = 100


def silent(_: str) -> None:
    """Ignores a message about the progress of a command."""


class Sandbox:
    """A Kafka and a Redis on this host, with their files in one folder.

    The servers outlive this object and this process. The folder's state file says which servers
    run. Every method that changes this file holds the folder's lock, so that several processes may
    use one sandbox.
    """

    def __init__(
        self,
        folder: Path | str,
        options: Options | None = None,
        *,
        timeout_s: float = UP_TIMEOUT_S,
        say: Callable[[str], None] = silent,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._options = options or Options()
        self._timeout_s = timeout_s
        self._say = say

    @property
    def bootstrap(self) -> str:
        return self._plan().bootstrap

    @property
    def redis_url(self) -> str:
        return self._plan().redis_url

    def up(self) -> list[str]:
        """Starts the servers that do not run; returns their names once all servers answer.

        If a server does not start, stops those that this call has started, and raises
        `KworkerError` with the last output of that server.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked(), ExitStack() as undo:
            remembered = load(self._path)
            state = remembered or SandboxState()
            plan = state.plan.changed(self._options)
            self._refuse_to_change(state, plan)
            undo.callback(self._restore_plan, state, state.plan if remembered else plan.untuned())
            state.plan = plan
            if not state.running("kafka"):
                state.controllers = _controller_ports(plan)
            servers = self._servers(state)
            missing = [server for server in servers if not state.alive(server.name)]
            self._start(state, missing, servers)
            undo.pop_all()
            return [server.name for server in missing]

    def down(self, *, wipe: bool = False) -> list[str]:
        """Stops the running servers, returns their names; `wipe` also removes data and settings."""
        if not self.folder.exists():
            return []
        with self._locked():
            state = self._state()
            running = [name for name in state.processes if state.alive(name)]
            ending = [state.processes[name] for name in running]
            if wipe:
                process.kill(ending)  # an orderly stop would save what is removed anyway
                self._wipe()
            else:
                process.stop(ending, STOP_TIMEOUT_S)
            return running

    def status(self) -> Status:
        state = self._state()
        servers = [
            ServerStatus(
                name=server.name,
                port=server.port,
                pid=state.processes[server.name].pid if state.alive(server.name) else None,
                log=str(server.log),
            )
            for server in (self._servers(state) if self._path.exists() else [])
        ]
        return Status(
            folder=str(self.folder),
            running=bool(servers) and all(server.pid for server in servers),
            bootstrap=state.plan.bootstrap if state.plan.kafka else None,
            redis=state.plan.redis_url if state.plan.redis else None,
            servers=servers,
        )

    def broker_pid(self, node: int) -> int:
        """Returns a broker's process id, for tests. Raises `KworkerError` if it does not run."""
        return self._running(f"broker-{node}").pid

    def stop_broker(self, node: int, *, kill: bool = False) -> None:
        self._stop_one(f"broker-{node}", kill=kill)

    def start_broker(self, node: int, *, wait: bool = True) -> None:
        """Starts a broker. With `wait`, returns only once the broker answers.

        A broker answers only while a majority of the sandbox's brokers run.
        """
        self._start_one(f"broker-{node}", wait=wait)

    def stop_redis(self, *, kill: bool = False) -> None:
        self._stop_one("redis", kill=kill)

    @property
    def _path(self) -> Path:
        return self.folder / "sandbox.json"

    def _state(self) -> SandboxState:
        return load(self._path) or SandboxState()

    def _plan(self) -> Plan:
        """The saved plan; before the first `up`, the plan that `up` would save."""
        state = load(self._path)
        return state.plan if state else Plan().changed(self._options)

    def _restore_plan(self, state: SandboxState, plan: Plan) -> None:
        """Saves `plan` in place of the plan whose start failed, so that `up` can be tried again."""
        state.plan = plan
        state.save(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + self._timeout_s
            while not _try_lock(folder):
                if time.monotonic() > deadline:
                    raise AlreadyRunning(
                        f"another command is changing the sandbox in {self.folder}: try again later"
                    )
                time.sleep(process.POLL_S)
            yield
        finally:
            os.close(folder)

    def _servers(self, state: SandboxState) -> list[SandboxServer]:
        plan = state.plan
        cluster = Cluster(
            identity=state.cluster,
            ports=plan.kafka_ports,
            controllers=state.controllers,
            heap=plan.heap,
            properties=plan.properties,
            say=self._say,
        )
        brokers = [
            Broker(cluster, node, self.folder / f"broker-{node}")
            for node in (range(1, plan.brokers + 1) if plan.kafka else ())
        ]
        redis = [Redis(self.folder / "redis", plan.redis_port)] if plan.redis else []
        return [*brokers, *redis]

    def _refuse_to_change(self, state: SandboxState, plan: Plan) -> None:
        for part in ("kafka", "redis"):
            changes = plan.differences(state.plan, part)
            if changes and state.running(part):
                raise UsageError(
                    f"the sandbox in {self.folder} runs with other options ({', '.join(changes)}):"
                    " stop it with `kworker sandbox down` first, or choose another --dir"
                )
        if plan.brokers != state.plan.brokers and any(self.folder.glob("broker-*/data")):
            raise UsageError(
                f"{self.folder} holds the data of {state.plan.brokers} broker(s), and their number"
                " cannot change: `kworker sandbox down --wipe` first, or choose another --dir"
            )

    def _start(
        self,
        state: SandboxState,
        missing: Sequence[SandboxServer],
        awaited: Sequence[SandboxServer],
    ) -> None:
        _refuse_taken_ports(missing)
        started: list[process.Process] = []
        with ExitStack() as undo:
            undo.callback(process.stop, started, STOP_TIMEOUT_S)
            _prepare(missing)
            for server in missing:
                self._say(f"starting {server.name} on port {server.port}")
                with process.uninterrupted():
                    child = process.start(server.command(), server.folder / "console.log")
                    started.append(child)
                    state.processes[server.name] = child
                    # Saved at once: `down` finds it even when this command is killed.
                    state.save(self._path)
            self._wait(state, awaited)
            undo.pop_all()

    def _wait(self, state: SandboxState, servers: Sequence[SandboxServer]) -> None:
        deadline = time.monotonic() + self._timeout_s
        waiting = list(servers)
        while waiting := [server for server in waiting if not server.answers()]:
            for server in servers:
                if not state.alive(server.name):
                    said = server.last_output()
                    raise KworkerError(f"{server.name} does not start; its last output:{said}")
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"{waiting[0].name} does not answer within {self._timeout_s:g} s (--timeout);"
                    f" its last output:{waiting[0].last_output()}"
                )
            time.sleep(process.POLL_S)

    def _running(self, name: str) -> process.Process:
        state = self._state()
        if not state.alive(name):
            raise KworkerError(
                f"{name} of the sandbox in {self.folder} is not running;"
                " start it with: kworker sandbox up"
            )
        return state.processes[name]

    def _stop_one(self, name: str, *, kill: bool) -> None:
        with self._locked():
            running = [self._running(name)]
            process.kill(running) if kill else process.stop(running, STOP_TIMEOUT_S)

    def _start_one(self, name: str, *, wait: bool) -> None:
        with self._locked():
            state = self._state()
            servers = [each for each in self._servers(state) if each.name == name]
            missing = [each for each in servers if not state.alive(each.name)]
            self._start(state, missing, servers if wait else ())

    def _wipe(self) -> None:
        """Removes only the sandbox's own files, since the folder may hold other files."""
        for folder in (*self.folder.glob("broker-[1-9]"), self.folder / "redis"):
            shutil.rmtree(folder, ignore_errors=True)
        self._path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _try_lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _controller_ports(plan: Plan) -> list[int]:
    """Picks a free port for each broker's controller, above the ports that serve clients."""
    above = range(plan.kafka_port + CONTROLLERS_ABOVE, 65536)
    free = (port for port in above if port != plan.redis_port and process.port_is_free(port))
    return [next(free) for _ in plan.kafka_ports]


def _prepare(servers: Sequence[SandboxServer]) -> None:
    """Prepares the first server alone, and then all other servers at the same time.

    The first server may download archives, which the other servers then find.
    """
    for server in servers[:1]:
        server.prepare()
    with ThreadPoolExecutor() as pool:
        # The list consumes the results, and so raises their exceptions.
        list(pool.map(lambda server: server.prepare(), servers[1:]))


def _refuse_taken_ports(servers: Sequence[SandboxServer]) -> None:
    for server in servers:
        if not process.port_is_free(server.port):
            raise KworkerError(
                f"port {server.port} of {server.name} is taken by"
                f" {process.listener(server.port)}: choose another with {server.port_option}"
            )
