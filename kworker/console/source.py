"""The service's status for the console: one request to the supervisor serves all who ask."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from kworker.console.journal import Change, changes, problem_kind
from kworker.errors import KworkerError
from kworker.log.daemon_file import DaemonFile

_LOG = structlog.get_logger()

FRESH_S = 1.0  # an answer that is younger is not asked for again
WAIT_S = 0.8  # for a new answer, before the last one is shown: probes wait no longer than 1 s
SAMPLE_S = 5.0
SILENT_S = 10.0  # a supervisor that has not answered for longer is not alive
_SAMPLES = 121  # ten minutes
_EVENTS = 100

Document = dict[str, Any]


class Sample(NamedTuple):
    """Some numbers of the service at the time `at`, which is in seconds since 1970.

    `rate` is in records a second. `lag` and `in_hand` are numbers of records. `age_s` is the age of
    the oldest unfinished record.
    """

    at: float
    rate: float
    lag: int | None
    in_hand: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last status document, and its age in seconds.

    `problem` says why there is no newer document; "" if this one is new. Until the supervisor has
    answered once, `document` is None, and `age_s` is the time since the console started.
    """

    document: Document | None
    age_s: float
    problem: str

    @property
    def alive(self) -> bool:
        """True if the supervisor has answered within the last SILENT_S seconds.

        Before its first answer, True if the console has started within that time.
        """
        return self.age_s <= SILENT_S


class StatusSource:
    """Asks the supervisor for its status: at most once a second, one request after the other.

    The request blocks, so it runs on a thread. Also keeps what the page shows of the past: samples
    of the last ten minutes, events, and when each problem began. Used on the event loop only.
    """

    def __init__(
        self,
        ask: Callable[[], Document],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._wall = wall
        self._began = clock()
        self._document: Document | None = None
        self._answered_at = 0.0
        self._problem = ""
        self._asking: asyncio.Task[None] | None = None
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.events: deque[Change] = deque(maxlen=_EVENTS)
        self._sample_at = 0.0
        self._since: dict[str, float | None] = {}

    async def latest(self) -> Snapshot:
        """Returns the last status if it is at most a second old; else asks for a new one.

        If the new one does not come within a short wait, returns the last one.
        """
        if self._document is None or self._age_s > FRESH_S or self._problem:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._refresh())
            await asyncio.wait({self._asking}, timeout=WAIT_S)
        problem = self._problem
        if not problem and (self._document is None or self._age_s > FRESH_S + WAIT_S):
            problem = f"the supervisor has not answered for {self._age_s:.0f} s"
        return Snapshot(self._document, self._age_s, problem)

    async def sample(self) -> None:
        """Asks for the status every SAMPLE_S seconds, so that the samples have no gaps.

        Each time, also checks if the daemon's log file was renamed: then the console's output goes
        to the file that has the log's name now. Runs until cancelled.
        """
        log_file = DaemonFile()
        while True:
            log_file.turn(self._clock())
            await self.latest()
            await asyncio.sleep(SAMPLE_S)

    def since(self, problem: str) -> float | None:
        """Returns the time since which the service has this problem, in seconds since 1970.

        Returns None if the problem is older than this object.
        """
        return self._since.get(problem_kind(problem))

    @property
    def _age_s(self) -> float:
        """Seconds since the last answer; before the first, since this object was made."""
        return self._clock() - (self._began if self._document is None else self._answered_at)

    async def _refresh(self) -> None:
        try:
            document = await asyncio.to_thread(self._ask)
        except (KworkerError, OSError, ValueError) as error:
            self._problem = str(error)
            return
        self._keep(document)

    def _keep(self, document: Document) -> None:
        before, now = self._document, self._wall()
        self._document, self._answered_at, self._problem = document, self._clock(), ""
        try:
            self._note(before, document, now)
        except (KeyError, TypeError):  # of another version than this process
            _LOG.warning(
                "the supervisor's status has an unexpected form, so it probably runs"
                " another version of kworker; restart the service"
            )

    def _note(self, before: Document | None, document: Document, now: float) -> None:
        self.events += [Change(now, text) for text in changes(before, document)]
        kinds = [problem_kind(problem) for problem in document["reasons"]]
        began = None if before is None else now
        self._since = {kind: self._since.get(kind, began) for kind in kinds}
        if self._answered_at >= self._sample_at:
            self._sample_at = self._answered_at + SAMPLE_S - FRESH_S
            self.samples.append(_sample(document, now))


def _sample(document: Document, now: float) -> Sample:
    workers, lag = document["workers"], document["lag"]
    return Sample(
        at=now,
        rate=sum(worker["rate"] for worker in workers),
        lag=lag["records"],
        in_hand=sum(worker["in_hand"] for worker in workers),
        age_s=lag["age_s"],
    )
