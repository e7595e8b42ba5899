"""The ward: suspects run apart, in a cell that may die of them, and come back with an outcome."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path

import structlog

from kworker.config.model import Config
from kworker.core.duration import format_duration
from kworker.core.failure import Described, Failure
from kworker.core.outcome import Failed, Results
from kworker.core.record import Partition, Record
from kworker.core.restart import Backoff
from kworker.core.suspects import (
    Blame,
    CountedDeath,
    Fresh,
    ProcessEnd,
    Suspect,
    Trial,
    TrialPolicy,
)
from kworker.instance.scoreboard import Held, hands_of
from kworker.worker.quarantine.isolated_process import COMMAND, ExitedProcess, IsolatedProcess
from kworker.worker.quarantine.known_suspects import KnownSuspects
from kworker.worker.quarantine.pipe import (
    HandlersReady,
    LoadFailed,
    ProtocolError,
    RunEnded,
    RunRequest,
    Setup,
)
from kworker.worker.quarantine.shared_suspects import SharedSuspects
from kworker.worker.topic_limits import TopicLimits

_LOG = structlog.get_logger()
_BOOT_S = 300.0  # as for a worker: a slow import is no reason to kill
_IDLE_S = 30.0  # after which a cell without suspects ends
_FIRST_S, _LONGEST_S, _CALM_S = 1.0, 30.0, 60.0  # between cells whose end says nothing


class Quarantine:
    """The suspects that one worker has in hand.

    Owned by the poll thread, which takes them out of the records that may run now. No call
    waits for anything. The cell is started for the first suspect and kept for the next.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        limits: TopicLimits,
        shared: SharedSuspects | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`folder` is the state folder's `suspects`; `limits` are known by the first `turn`."""
        self._config = config
        self._known = KnownSuspects(folder, shared)
        self._limits = limits
        self._command = command
        self._trial = Trial(TrialPolicy(config.dead_letter.crash_limit))
        self._numbers = count()
        self._records: dict[int, Record] = {}
        self._decided: list[Record] = []
        self._cell: IsolatedProcess | None = None
        self._started = self._start_at = self._idle_since = 0.0
        self._backoff = Backoff(_FIRST_S, _LONGEST_S, _CALM_S)
        self._problem = ""
        self._taking = True

    # -- who is suspected -------------------------------------------------------------

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Reads the journal again if it has changed; to be forced at each assignment."""
        self._known.refresh(now, force=force)

    @property
    def has_suspects(self) -> bool:
        """Whether there are suspects at all: while there are none, no record need be asked for."""
        self._known.hear()
        return bool(self._known)

    def is_suspect(self, record: Record) -> bool:
        """Whether this record must not run in the pool."""
        return record in self._known

    def settled(self, records: Iterable[Record]) -> None:
        """All that they led to is durable: they are suspects no more."""
        self._known.settled(records)

    # -- what it has in hand ----------------------------------------------------------

    def add(self, records: Iterable[Record]) -> None:
        """These are suspects and may run now: each comes back from one of the calls below."""
        for record in records:
            number = next(self._numbers)
            self._records[number] = record
            self._trial.add(number, self._known.of(record))

    @property
    def count(self) -> int:
        """Suspects in hand, running or not."""
        return len(self._records)

    @property
    def is_running(self) -> bool:
        """Whether some of them run."""
        return bool(self._trial.running)

    @property
    def problem(self) -> str:
        """Why suspects wait, for the status; "" while all is well."""
        return f"suspects wait: {self._problem}" if self._problem and self._records else ""

    def turn(self, now: float) -> list[Record]:
        """Goes on; the records that have an outcome now, a conviction included."""
        if self._cell:
            self._attend(self._cell, now)
        if not self._trial.running:
            self._go_on(now)
        decided, self._decided = self._decided, []
        return decided

    def shed(self) -> list[Record]:
        """Hands back what does not run; from now on nothing begins.

        What runs comes back from `turn` for as long as `is_running`, the rest from `abandon`.
        """
        self._taking = False
        return self.withdraw(lambda _: True)

    def withdraw(self, wanted: Callable[[Record], bool]) -> list[Record]:
        """Hands back those of the wanted that do not run."""
        waiting = [n for n in self._records if n not in self._trial.running]
        return [self._forget(number) for number in waiting if wanted(self._records[number])]

    def abandon(self) -> list[Record]:
        """Hands back everything that has no outcome, and ends the cell."""
        self._taking = False
        if self._cell:
            self._cell.kill()
        return [self._forget(number) for number in [*self._records]]

    def close(self, partition: Partition) -> None:
        """A partition is given up: what it has here is another's to run, and ends now."""
        gone = [n for n, record in self._records.items() if record.partition is partition]
        if self._cell and any(number in self._trial.running for number in gone):
            self._cell.kill()
        for number in gone:
            self._forget(number)
        self._decided = [r for r in self._decided if r.partition is not partition]

    def _forget(self, number: int) -> Record:
        self._trial.ended(number)
        return self._records.pop(number)

    def _decide(self, number: int, outcome: Results | Failure) -> None:
        record = self._forget(number)
        if isinstance(outcome, Failure):
            record.outcome = Failed(Described(outcome))
        else:
            record.outcome = outcome
        self._decided.append(record)

    # -- the cell lives ---------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        """Nothing runs: begins the next run, in the cell that it needs."""
        cell, wanted = self._cell, self._taking and self._trial.waiting
        if cell is None:
            if wanted and now >= self._start_at:
                self._start(now)
        elif cell.ready and not cell.ending:
            if wanted:
                self._begin(cell, now)
            elif now - self._idle_since > _IDLE_S:
                cell.finish(now)

    def _start(self, now: float) -> None:
        limits, hands = self._limits, hands_of(self._config.workers)
        orders = Setup(self._config, {topic: limits.max_bytes(topic) for topic in limits.topics})
        self._started = now
        try:
            self._cell = IsolatedProcess(orders, hands, self._command)
        except OSError as error:
            self._wait(f"their process cannot be started ({error.strerror})", now)
            return
        _LOG.info("a cell is started", cell=self._cell.pid, suspects=self.count)

    def _begin(self, cell: IsolatedProcess, now: float) -> None:
        run = self._trial.begin(used=cell.used)
        if run is Fresh.CELL:
            cell.finish(now)
            return
        for number in run:
            cell.give(_run(number, self._records[number]))

    def _attend(self, cell: IsolatedProcess, now: float) -> None:
        gone = cell.reaped()
        self._hear(cell, now, to_the_end=gone is not None)
        if gone is not None:
            self._bury(cell, gone, now)
            return
        cell.turn(now)
        if cell.ending:
            return
        if not cell.ready and now - self._started > _BOOT_S:
            self._problem = f"the cell was not ready after {_BOOT_S:g} s"
            cell.kill()
        elif overdue := self._overdue(cell, now):
            self._end_stuck(cell, overdue, now)

    def _hear(self, cell: IsolatedProcess, now: float, *, to_the_end: bool) -> None:
        try:
            for word in cell.hear(to_the_end=to_the_end):
                self._understand(word, now)
        except ProtocolError as garbled:
            cell.kill()
            self._wait(f"the cell cannot be understood ({garbled})", now)

    def _understand(self, word: HandlersReady | LoadFailed | RunEnded, now: float) -> None:
        self._idle_since = now
        match word:
            case HandlersReady():
                self._problem = ""
            case LoadFailed(problem):
                self._problem = f"the handler cannot be loaded in their process: {problem}"
            case RunEnded(number, outcome) if number in self._records:
                self._backoff.forget()
                self._decide(number, outcome)

    def _overdue(self, cell: IsolatedProcess, now: float) -> list[Held]:
        limit_s = self._config.workers.handler_timeout
        return [held for held in cell.in_hand() if now - held.since_ns / 1e9 > limit_s]

    def _end_stuck(self, cell: IsolatedProcess, overdue: list[Held], now: float) -> None:
        _LOG.error(
            f"a suspect is over workers.handler_timeout = {self._timeout} in its cell:"
            " stacks are dumped, the cell is ended",
            cell=cell.pid,
            suspects=[f"{held.topic}/{held.partition}/{held.offset}" for held in overdue],
        )
        cell.end_stuck(now, overdue)

    @property
    def _timeout(self) -> str:
        return format_duration(self._config.workers.handler_timeout)

    # -- the cell dies ----------------------------------------------------------------

    def _bury(self, cell: IsolatedProcess, gone: ExitedProcess, now: float) -> None:
        end = cell.end_of(gone)
        in_hand = self._in_hand(cell, end)
        cell.close()
        self._cell = None
        if not cell.ready:
            self._wait(self._problem or f"the cell ended at its start ({end.how})", now)
            return
        counted = self._trial.died(in_hand, end)
        if counted:
            self._count(counted, end)
        elif in_hand and end.blame is not Blame.NOBODY:
            _LOG.warning(
                f"a cell ended ({end.how}) with {len(in_hand)} suspects in hand:"
                " they run again, in halves and last"
            )
        if end.blame is Blame.UNSURE or (end.blame is not Blame.NOBODY and not in_hand):
            self._wait(f"the cell ended ({end.how})", now)

    def _in_hand(self, cell: IsolatedProcess, end: ProcessEnd) -> list[int]:
        """Which of those that run were in the dead cell's hands, or have to stand for it."""
        places = {(held.topic, held.partition, held.offset) for held in cell.blamed()}
        running = list(self._trial.running)
        found = [n for n in running if self._records[n].source.place in places]
        if found or end.blame is Blame.TIMEOUT or not cell.begun:
            return found
        # Dead after a handler's end and before its outcome was told.
        return running

    def _count(self, counted: CountedDeath, end: ProcessEnd) -> None:
        suspect = counted.suspect
        self._known.count(suspect)
        name = "/".join(map(str, suspect.place))
        limit = self._config.dead_letter.crash_limit
        if not counted.convicted:
            _LOG.warning(
                f"suspect {name} ended its process, alone ({end.how}): {suspect.deaths} of {limit}"
                f"{' and more, as it was killed' if suspect.unsure else ''}; it runs again, last"
            )
            return
        _LOG.error(f"suspect {name} is convicted after {suspect.deaths} deaths", last=end.how)
        self._decide(counted.number, self._verdict(suspect, end))

    def _verdict(self, suspect: Suspect, end: ProcessEnd) -> Failure:
        if suspect.why == "timeout":
            text = f"over workers.handler_timeout = {self._timeout}"
            return Failure("timeout", exception="TimedOut", message=text)
        return Failure("crashed", exception="Crashed", message=end.how)

    def _wait(self, why: str, now: float) -> None:
        delay_s = self._backoff.failed(now - self._started)
        self._start_at = now + delay_s
        self._problem = why
        _LOG.warning(f"suspects wait: {why}; next cell in {delay_s:g} s", suspects=self.count)


def _run(number: int, record: Record) -> RunRequest:
    """As its handler sees it."""
    raw = record.raw
    headers = tuple(raw.headers() or ())
    return RunRequest(number, record.source, raw.key(), raw.value(), headers, record.attempt)
