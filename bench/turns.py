"""A service of kworker that goes on in turns of a second, and is paused between them."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import psutil

from bench import ours
from bench.place import Place
from bench.topic import Group, wait_for_retries
from bench.watched import START_S, Broken

# A worker measures its use of CPUs every 0.2 s: in shorter turns it would find half of it.
TURN_S = 1.0
ASK_S = 0.02  # for the committed offsets; each question costs the broker a millisecond
LOOK_S = 0.003
# A paused worker must stay in its group.
LONG_SESSION = {"KWORKER_KAFKA__SESSION_TIMEOUT_MS": "60000"}


class Pausing:
    """A service of which all processes are paused, except between `go_on` and `pause`."""

    def __init__(self, pid: int) -> None:
        service = psutil.Process(pid)
        below = service.children(recursive=True)
        self._processes = [service, *below]
        self._workers = [each for each in below if "kworker: worker" in " ".join(each.cmdline())]
        self.pause()

    def pause(self) -> None:
        """Stops the supervisor first, which would miss its workers."""
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # was a short-lived one
                process.suspend()

    def go_on(self) -> None:
        """Lets the supervisor go on last."""
        for process in reversed(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def cpu_s(self) -> float:
        """The CPU time of its workers, since their start."""
        times = [each.cpu_times() for each in self._workers]
        return float(sum(each.user + each.system for each in times))


class Turns:
    """A service over `records`, with the time and its workers' CPU time of its turns."""

    def __init__(self, service: Pausing, group: Group, records: int, begun: float) -> None:
        self._service = service
        self._group = group
        self.records = records
        self.seconds = time.monotonic() - begun
        self.cpu_s = 0.0
        self._cpu_s_before = service.cpu_s()
        self.done = False

    def take(self) -> None:
        """Lets the service go on for a turn, or for good once no record is left."""
        began = time.monotonic()
        self._service.go_on()
        while not self.done and time.monotonic() - began < TURN_S:
            time.sleep(ASK_S)
            self.done = not self._group.left()
        self.seconds += time.monotonic() - began
        self.cpu_s = self._service.cpu_s() - self._cpu_s_before
        if not self.done:
            self._service.pause()


@contextmanager
def paused(place: Place, service: ours.Service, run: str, records: int) -> Iterator[Turns]:
    """Starts the service, for as many of the last records, and pauses it after the first call."""
    group = Group(place.kafka, run)
    records = group.begin(records)
    environment = service.environment(place, run) | LONG_SESSION
    begun = place.folder / f"{run}.begun"
    try:
        ours.command(environment, "topics", "create")
        wait_for_retries(place.kafka, run, service.retries)
        with ours.started(environment, place.folder / f"{run}.log") as process:
            _wait_for(begun, process)
            pausing = Pausing(process.pid)
            try:
                yield Turns(pausing, group, records, float(begun.read_text()))
            finally:
                pausing.go_on()
            ours.check(environment, place.kafka, run, service.handler, records)
    finally:
        group.close()


def _wait_for(begun: Path, process: Popen[bytes]) -> None:
    """Waits until a handler was called."""
    deadline = time.monotonic() + START_S
    while not begun.exists() or not begun.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Broken(f"no handler was called, exit code {process.poll()}")
        time.sleep(LOOK_S)
