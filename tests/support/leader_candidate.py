"""A candidate for the lead in a process of its own, for tests that stop or kill it.

`python -m tests.support.leader_candidate '<consumer>' '<admin>' <topic>`, with properties as JSON,
tells in lines of JSON what each turn found; it ends with its standard input.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kworker.clients.leader import Leadership

ROOT = Path(__file__).parents[2]
PACE_S = 0.05


class Turn(NamedTuple):
    """What one turn found; times are those of the clock that all processes share."""

    at: float
    before: bool  # whether it led, asked before the turn
    leads: bool


class Candidate:
    """The process, and what it has told."""

    def __init__(
        self, consumer: Mapping[str, Any], admin: Mapping[str, Any], topic: str, told: Path
    ) -> None:
        self._told = told
        arguments = (json.dumps(consumer), json.dumps(admin), topic)
        with told.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def turns(self) -> list[Turn]:
        lines = self._told.read_text().rpartition("\n")[0].splitlines()
        return [Turn(*json.loads(line)) for line in lines]

    @property
    def leads(self) -> bool:
        """As of its last turn."""
        turns = self.turns()
        return bool(turns) and turns[-1].leads

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """Kills it, whatever it does."""
        self._process.kill()
        self._process.communicate()


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main(consumer: str, admin: str, topic: str) -> None:
    leadership = Leadership(json.loads(consumer), json.loads(admin), topic)
    while not select.select([sys.stdin], [], [], PACE_S)[0]:
        before = leadership.leads
        leadership.turn()
        # The time first: what is true of it now was true then, or has just become so.
        print(json.dumps(Turn(now(), before, leadership.leads)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
