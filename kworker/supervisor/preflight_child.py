"""The preflight check, in a child that ends, so that the supervisor never holds a client."""

import json
import os
import selectors
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from setproctitle import setproctitle

from kworker.config.model import Config
from kworker.instance.child import exit_text, fork, kill_group

_REPORT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What a preflight check found, sorted by what the supervisor does about it."""

    problems: list[str] = field(default_factory=list)  # the configuration: exit 78
    taken: list[str] = field(default_factory=list)  # by another copy: exit 73
    unreachable: list[str] = field(default_factory=list)  # wait, and check again
    warnings: list[str] = field(default_factory=list)  # go on, but say so
    # Other hosts' members with our names: dead ones for so long, or taken.
    elsewhere: list[str] = field(default_factory=list)
    session_s: float = 0.0
    cluster: str = ""  # on which the instance is to be locked

    @property
    def fine(self) -> bool:
        return not (self.problems or self.taken or self.unreachable)


Preflight = Callable[[Config], PreflightReport]


class Check:
    """One run of the preflight check. Owned by the supervisor, whose selector reads its report."""

    def __init__(
        self,
        preflight: Preflight,
        config: Config,
        selector: selectors.BaseSelector,
        now: float,
        limit_s: float,
    ) -> None:
        self.report: PreflightReport | None = None  # once it has ended
        self.pid: int | None = None
        self._selector = selector
        self._received = bytearray()
        self._limit_s = limit_s
        self._end_at = now + limit_s
        self._late = False
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        selector.register(self._pipe, selectors.EVENT_READ, self._read)
        try:
            self.pid = fork(lambda: _write_report(preflight, config, theirs), keep=(theirs,))
        except OSError as error:
            self._close()
            self.report = PreflightReport(unreachable=[f"the preflight check: {error.strerror}"])
        os.close(theirs)

    def turn(self, now: float) -> PreflightReport | None:
        """The report once there is one; ends a child whose time is over."""
        if now >= self._end_at and self.pid:
            self._late = True
            kill_group(self.pid)
        return self.report

    def on_exit(self, pid: int, code: int) -> None:
        """A child was reaped, ours or another's; what ours wrote is all there is."""
        if pid == self.pid:
            self._read()
            self._close()
            self.report = self._judge(code)

    def cancel(self) -> None:
        """Nobody wants the report any more."""
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
        self._unregister()  # at its end a pipe is readable for ever

    def _unregister(self) -> None:
        if self._pipe in self._selector.get_map():
            self._selector.unregister(self._pipe)

    def _judge(self, code: int) -> PreflightReport:
        if self._late:
            why = f"the preflight check took over {self._limit_s:g} s"
            return PreflightReport(
                unreachable=[f"{why}: does the handler's module block on import?"]
            )
        if code < 0 and code != -signal.SIGKILL:
            why = f"the preflight check crashed ({exit_text(code)})"
            return PreflightReport(problems=[f"{why}: the handler's module cannot be imported"])
        if code != 0:
            return PreflightReport(
                unreachable=[f"the preflight check failed ({exit_text(code)}): see the log"]
            )
        return PreflightReport(**json.loads(self._received))


def _write_report(preflight: Preflight, config: Config, fd: int) -> int:
    """In the child."""
    os.setsid()  # it starts processes of its own, which end with it
    setproctitle(f"kworker: preflight [{config.name}]")
    data = json.dumps(asdict(preflight(config))).encode()
    with open(fd, "wb") as pipe:
        pipe.write(data)
    return 0
