"""Watches the workers: their progress and memory; kills one of them."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

from programs import KWORKER, Failed, Programs

STALLED_S = 60.0
LOOK_AGAIN_S = 3.0  # `status` starts a Python, so not every turn
BAR = 30


class Watch:
    """The workers seen from outside: pids from `status`, memory from /proc."""

    def __init__(self, programs: Programs, orders: int) -> None:
        self._programs = programs
        self._orders = orders
        self._pids: dict[int, int] = {}  # of living workers, by slot
        self._partitions: dict[int, list[int]] = {}
        self._victim: tuple[int, int] | None = None  # slot and pid
        self._done = 0
        self._reasons: list[str] = []
        self._told_s = self._asked_s = self._moved_s = time.monotonic()
        self.kills = 0
        self.undone_at_kill = 0
        self.peak_memory_bytes = 0

    def begin_again(self) -> None:
        """Restarts the count of finished orders for the next phase."""
        self._done, self._moved_s = 0, time.monotonic()

    def look(self, done: int) -> None:
        """Shows progress. Called several times a second with the orders done; raises on a stall."""
        now = time.monotonic()
        for pid in self._pids.values():
            self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory_bytes(pid))
        if done > self._done:
            self._done, self._moved_s = done, now
        elif now - self._moved_s > STALLED_S:
            raise Failed(f"no order was finished for {STALLED_S:.0f} s; status: {self.ask()}")
        if now - self._asked_s > LOOK_AGAIN_S:
            self.ask()
            self._asked_s = time.monotonic()
        if now - self._told_s >= 1.0:
            self._tell(now)

    def ask(self) -> dict:
        """Returns the document of `kworker status`, and keeps the workers' pids."""
        # Exit code 1 means red or waiting, as for a moment after a kill.
        said = self._programs.output(KWORKER, "status", "--json", well=(0, 1))
        status: dict = json.loads(said)
        workers = [worker for worker in status["workers"] if worker["pid"]]
        self._pids = {worker["slot"]: worker["pid"] for worker in workers}
        self._partitions = {
            worker["slot"]: [p for topic, p in worker["partitions"] if topic == "orders"]
            for worker in workers
        }
        for reason in status["reasons"]:
            if reason not in self._reasons:
                print(f"      {status['state']}: {reason}", flush=True)
        self._reasons = status["reasons"]
        return status

    def kill_one(self, undone: Counter[int]) -> None:
        """Sends SIGKILL to the worker with the most unfinished orders in its partitions.

        Uses the last answer of `status`, since a new one takes so long that the work may be over.
        Kills no process if that worker has died meanwhile; then call it again.
        """
        left = {slot: sum(undone[p] for p in owned) for slot, owned in self._partitions.items()}
        slot = max(left, key=lambda slot: left[slot])
        pid = self._pids[slot]
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            self.ask()
            return
        self._victim = (slot, pid)
        self.kills += 1
        self.undone_at_kill = left[slot]
        print(f"      kill -9 {pid}: worker {slot} dies, its partitions hold", end=" ")
        print(f"{self.undone_at_kill:,} orders without a result", flush=True)

    @property
    def replaced(self) -> bool:
        """True if the slot of the killed worker has another pid."""
        if self._victim is None:
            return False
        slot, pid = self._victim
        return self._pids.get(slot, pid) != pid

    def _tell(self, now: float) -> None:
        filled = BAR * self._done // self._orders
        pids = " and ".join(str(pid) for pid in self._pids.values())
        print(
            f"      {'#' * filled:.<{BAR}} {self._done:>6,} of {self._orders:,}, workers {pids}",
            flush=True,
        )
        self._told_s = now


def peak_memory_bytes(pid: int) -> int:
    """The peak resident memory of a process, in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in status.splitlines() if line.startswith("VmHWM:"))
    return next((int(size) * 1024 for _, size, _ in lines), 0)
