"""Handlers that fork, on a worker's pool: `python -m tests.support.forker KIND LOOP FILE`.

FILE gets a line for each run that begins, `PID OFFSET`, and `PID held True` if the board shows that
record when its child has come back. Prints the pids of children that were ended.
"""

import os
import sys
import time
from collections import deque
from pathlib import Path

from kworker.instance.scoreboard import Scoreboard, Text
from kworker.message import Message
from kworker.worker.handlers.fork_guard import ForkGuard
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.topic_limits import TopicLimits
from tests.component.test_pools import HANDS, KINDS, SIZE, Work
from tests.support.event_loops import EVENT_LOOPS
from tests.support.records import a_partition, a_record
from tests.support.waiting import eventually

RECORDS = 12
FORKING = SIZE - 1  # the last of its batch, whose handler goes through the others itself


class Forking(Work):
    """One record forks, and its child comes back like its parent, while others are at work."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file.open("ab", buffering=0)
        self.answer = self._run

    def say(self, words: str) -> None:
        self._file.write(f"{os.getpid()} {words}\n".encode())

    def _run(self, message: Message) -> None:
        self.say(str(message.offset))
        if message.offset == FORKING and (child := os.fork()) > 0:
            os.waitpid(child, 0)
            self.say(f"held {FORKING in [held.offset for held in slot.held()]}")


kind, event_loop, path = sys.argv[1:]
slot = Scoreboard(1, HANDS).slots[0]
slot.write_text(Text(known=(("orders", 0),)))
facts = TopicLimits(["results"])
facts.update({"results": 1000}, {"results": 1})
work = Forking(Path(path))
work.release()
loop = HandlerLoop(EVENT_LOOPS[event_loop])
loop.start()
pool = KINDS[kind](work, slot, ResultEncoder("results", [], facts), loop)
guard = ForkGuard(slot)
guard.install(pool)
pool.start()
partition = a_partition()
left = deque(a_record(partition, offset) for offset in range(RECORDS))
done: list[int] = []


def all_done() -> bool:
    pool.feed(lambda most: deque(left.popleft() for _ in range(min(most, len(left)))))
    pool.reclaim(time.monotonic())
    done.extend(record.offset for record in pool.completed.take(0.01))
    return len(done) == RECORDS


eventually(all_done, what="every record has ended")
assert sorted(done) == list(range(RECORDS))
print(*eventually(guard.ended_children))
