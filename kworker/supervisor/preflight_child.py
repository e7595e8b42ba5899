"""The preflight check in a child of its own, so that the supervisor never has a Kafka client."""

import json
import os
import selectors
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import structlog
from setproctitle import setproctitle

from kworker.config.model import Config
from kworker.errors import ExitCode
from kworker.instance.child import exit_text, fork, kill_group

_LOG = structlog.get_logger()
_REPORT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The findings of a preflight check, sorted by how the supervisor reacts to them.

    A startup ends for `problems` of the configuration, or if another copy has `taken` the instance.
    The check is repeated while servers are `unreachable`; `warnings` are only logged. `elsewhere`
    has group members on other hosts with this instance's identity: dead ones vanish within
    `session_s`.
    """

    problems: list[str] = field(default_factory=list)  # in the configuration: exit 78
    taken: list[str] = field(default_factory=list)  # another copy has the instance: exit 73
    unreachable: list[str] = field(default_factory=list)  # wait, and check again
    warnings: list[str] = field(default_factory=list)  # log them and go on
    # Members on other hosts with our identity: dead ones until their session ends, else `taken`.
    elsewhere: list[str] = field(default_factory=list)
    session_s: float = 0.0
    cluster: str = ""  # the id of the cluster on which the instance is locked

    @property
    def passed(self) -> bool:
        return not (self.problems or self.taken or self.unreachable)


Preflight = Callable[[Config], PreflightReport]


class Check:
    """One run of the preflight check in a child, whose report the supervisor's selector reads."""

    def __init__(
        self,
        preflight: Preflight,
        config: Config,
        selector: selectors.BaseSelector,
        now: float,
        limit_s: float,
    ) -> None:
        self.report: PreflightReport | None = None  # once the child has ended
        self.pid: int | None = None
        self._selector = selector
        self._received = bytearray()
        self._limit_s = limit_s
        self._end_at = now + limit_s
        self._late = False
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        selector.register(self._pipe, selectors.EVENT_READ, self._read)
        try:
            self.pid = fork(lambda: _write_report(preflight, config, write_end), keep=(write_end,))
        except OSError as error:
            self._close()
            self.report = PreflightReport(unreachable=[f"the preflight check: {error.strerror}"])
        os.close(write_end)

    def turn(self, now: float) -> PreflightReport | None:
        """Returns the report, or None while the check runs; kills a child that takes too long."""
        if now >= self._end_at and self.pid:
            self._late = True
            kill_group(self.pid)
        return self.report

    def on_exit(self, pid: int, code: int) -> None:
        """Reads the report that the child wrote, if the reaped process is this check's child."""
        if pid == self.pid:
            self._read()
            self._close()
            self.report = self._judge(code)

    def cancel(self) -> None:
        """Kills the child, whose report is not needed any more."""
        if self.pid:
            kill_group(self.pid)
            self._close()

    def _close(self) -> None:
        self.pid = None
        self._unregister()
        os.close(self._pipe)

    def _read(self) -> None:
        try:
            while data := os.read(self._pipe, 65536):
                self._received += data[: _REPORT_BYTES_MAX - len(self._received)]
        except BlockingIOError:
            return
        self._unregister()  # a pipe at its end stays readable

    def _unregister(self) -> None:
        if self._pipe in self._selector.get_map():
            self._selector.unregister(self._pipe)

    def _judge(self, code: int) -> PreflightReport:
        if self._late:
            problem = f"the preflight check took over {self._limit_s:g} s"
            return PreflightReport(
                unreachable=[f"{problem}: does the handler's module block on import?"]
            )
        if code < 0 and code != -signal.SIGKILL:
            problem = f"the preflight check crashed ({exit_text(code)})"
            return PreflightReport(problems=[f"{problem}: the handler's module cannot be imported"])
        if code != 0:
            return PreflightReport(
                unreachable=[f"the preflight check failed ({exit_text(code)}): see the log"]
            )
        return PreflightReport(**json.loads(self._received))


def _write_report(preflight: Preflight, config: Config, fd: int) -> int:
    os.setsid()  # the check starts processes, which are killed with this session
    setproctitle(f"kworker: preflight [{config.name}]")
    data = json.dumps(asdict(preflight(config))).encode()
    if len(data) > _REPORT_BYTES_MAX:
        _LOG.error(
            "the preflight check has found more than it can report; `kworker check --online` prints"
            " all of it",
            bytes=len(data),
        )
        return ExitCode.FAILURE
    with open(fd, "wb") as pipe:
        pipe.write(data)
    return 0
