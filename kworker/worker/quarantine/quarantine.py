"""The quarantine: suspects of a crash run in an isolated process, which may die of them.

One class and over 300 lines, since it controls that process and tracks all records given to it.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count
from math import inf
from pathlib import Path

import structlog

from kworker.config.model import Config
from kworker.core.duration import format_duration
from kworker.core.failure import Described, Failure
from kworker.core.outcome import Failed, Succeeded
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
from kworker.instance.hand import Held
from kworker.instance.scoreboard import hands_of
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
_IDLE_S = 30.0  # after which a process without suspects ends
_FIRST_S, _LONGEST_S, _CALM_S = 1.0, 30.0, 60.0  # between processes whose end blames no record


class Quarantine:
    """Runs the suspects of one worker in an isolated process, which may die of them.

    A suspect is a record that was running when a worker died. Owned by the poll thread, which picks
    the suspects out of the records that may run now. No call blocks. The process is started for the
    first suspect and kept for the next ones.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        limits: TopicLimits,
        shared: SharedSuspects | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`folder` is `suspects` in `state_dir`; `limits` must be complete by the first `turn`."""
        self._config = config
        self._known = KnownSuspects(folder, shared)
        self._limits = limits
        self._command = command
        self._trial = Trial(TrialPolicy(config.dead_letter.crash_limit))
        self._numbers = count()
        self._records: dict[int, Record] = {}
        self._decided: list[Record] = []
        self._process: IsolatedProcess | None = None
        self._started = self._start_at = self._idle_since = 0.0
        self._backoff = Backoff(_FIRST_S, _LONGEST_S, _CALM_S)
        self._problem = ""
        self._accepting = True
        self._isolate_s = 0.0  # from the first assignment on
        self._isolate_until = -inf
        self._isolates_all = False

    # -- known suspects ---------------------------------------------------------------

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Reads the crash journal if it has changed. Looks for a change at most every 0.2 s.

        With `force`, as at each assignment, reads the journal at once. Then the claims thread also
        reads the suspects of other instances from Redis, if suspects are shared.
        """
        self._known.refresh(now, force=force)
        if force and self._isolate_s:
            self._isolate_until, self._isolate_s = now + self._isolate_s, 0.0
        self._isolates_all = now < self._isolate_until

    def isolate_all(self, seconds: float) -> None:
        """Isolates all records, suspects or not, for `seconds` from the first assignment on."""
        self._isolate_s = seconds

    @property
    def isolates_any(self) -> bool:
        """True if any record must be isolated. Only then must `isolates` be called for records."""
        return self._isolates_all or bool(self._known)

    def isolates(self, record: Record) -> bool:
        """Returns True if the record must run here, and not in the worker's pool."""
        return self._isolates_all or record in self._known

    def is_suspect(self, record: Record) -> bool:
        """Returns True if the record itself may have ended a worker."""
        return record in self._known

    def settled(self, records: Iterable[Record]) -> None:
        """Removes these records from the suspects, because all their outputs are durable."""
        if self._known:
            self._known.settled(records)

    # -- suspects in hand -------------------------------------------------------------

    def add(self, records: Iterable[Record]) -> None:
        """Accepts suspects that may run now.

        Each of them is returned once: by `turn`, `withdraw`, `abandon` or `close`.
        """
        for record in records:
            number = next(self._numbers)
            self._records[number] = record
            self._trial.add(number, self._known.of(record))

    @property
    def count(self) -> int:
        """The number of suspects accepted and not yet returned, running or not."""
        return len(self._records)

    @property
    def is_running(self) -> bool:
        """True if any suspect runs in the isolated process."""
        return bool(self._trial.running)

    @property
    def problem(self) -> str:
        """The reason why suspects wait, as a text for the status; empty if there is none."""
        return f"suspects wait: {self._problem}" if self._problem and self._records else ""

    def turn(self, now: float) -> list[Record]:
        """Reads from the isolated process, and starts, feeds or ends this process as needed.

        Returns the records that have an outcome now.
        """
        if self._process:
            self._attend(self._process, now)
        if not self._trial.running:
            self._go_on(now)
        decided, self._decided = self._decided, []
        return decided

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Removes and returns the suspects that belong to partitions in `going`.

        Suspects that are running stay.
        """
        waiting = [n for n in self._records if n not in self._trial.running]
        return [self._forget(n) for n in waiting if self._records[n].partition in going]

    def abandon(self) -> list[Record]:
        """Kills the process. Returns all records that have no outcome yet.

        After that, no suspect is run any more.
        """
        self._accepting = False
        if self._process:
            self._process.kill()
        return [self._forget(number) for number in [*self._records]]

    def close(self, partition: Partition) -> list[Record]:
        """Removes and returns the suspects of a closed partition.

        Kills the process if it runs any of them.
        """
        gone = [n for n, record in self._records.items() if record.partition is partition]
        if self._process and any(number in self._trial.running for number in gone):
            self._process.kill()
        self._decided = [r for r in self._decided if r.partition is not partition]
        return [self._forget(number) for number in gone]

    def _forget(self, number: int) -> Record:
        self._trial.ended(number)
        return self._records.pop(number)

    def _decide(self, number: int, outcome: Succeeded | Failure) -> None:
        record = self._forget(number)
        if isinstance(outcome, Failure):
            record.outcome = Failed(Described(outcome))
        else:
            record.outcome = outcome
        self._decided.append(record)

    # -- while the process lives ------------------------------------------------------

    def _go_on(self, now: float) -> None:
        """Starts the process, gives it the next suspect, or ends it if it was idle for a while.

        Called when no suspect runs.
        """
        process, wanted = self._process, self._accepting and self._trial.waiting
        if process is None:
            if wanted and now >= self._start_at:
                self._start(now)
        elif process.ready and not process.ending:
            if wanted:
                self._begin(process, now)
            elif now - self._idle_since > _IDLE_S:
                process.finish(now)

    def _start(self, now: float) -> None:
        limits, hands = self._limits, hands_of(self._config.workers)
        setup = Setup(self._config, {topic: limits.max_bytes(topic) for topic in limits.topics})
        self._started = now
        try:
            self._process = IsolatedProcess(setup, hands, self._command)
        except OSError as error:
            self._wait(f"their process cannot be started ({error.strerror})", now)
            return
        _LOG.info(
            "isolated process started, to run records that may have ended a worker",
            isolated_pid=self._process.pid,
            suspects=self.count,
        )

    def _begin(self, process: IsolatedProcess, now: float) -> None:
        run = self._trial.begin(used=process.used)
        if run is Fresh.PROCESS:
            process.finish(now)
            return
        for number in run:
            process.give(_request(number, self._records[number]))

    def _attend(self, process: IsolatedProcess, now: float) -> None:
        exited = process.reaped()
        self._receive(process, now, to_the_end=exited is not None)
        if exited is not None:
            self._after_exit(process, exited, now)
            return
        process.turn(now)
        if process.ending:
            return
        if not process.ready and now - self._started > _BOOT_S:
            self._problem = f"their process was not ready after {_BOOT_S:g} s"
            process.kill()
        elif overdue := self._overdue(process, now):
            self._end_stuck(process, overdue, now)

    def _receive(self, process: IsolatedProcess, now: float, *, to_the_end: bool) -> None:
        try:
            for message in process.receive(to_the_end=to_the_end):
                self._handle(message, now)
        except ProtocolError as error:
            process.kill()
            self._wait(f"their process sent an invalid message ({error})", now)

    def _handle(self, message: HandlersReady | LoadFailed | RunEnded, now: float) -> None:
        self._idle_since = now
        match message:
            case HandlersReady():
                self._problem = ""
            case LoadFailed(problem):
                self._problem = f"the handler cannot be loaded in their process: {problem}"
            case RunEnded(number, outcome, trace) if number in self._records:
                self._backoff.forget()
                if self._config.tracing.enabled and trace:
                    self._records[number].continue_trace(trace)
                self._decide(number, outcome)

    def _overdue(self, process: IsolatedProcess, now: float) -> list[Held]:
        limit_s = self._config.workers.handler_timeout
        return [held for held in process.in_hand() if now - held.since_ns / 1e9 > limit_s]

    def _end_stuck(self, process: IsolatedProcess, overdue: list[Held], now: float) -> None:
        _LOG.error(
            f"a record ran longer than workers.handler_timeout = {self._timeout} in the isolated"
            f" process {process.pid}; the stacks of this process are dumped, and the process is"
            " ended",
            isolated_pid=process.pid,
            suspects=[f"{held.topic}:{held.partition}:{held.offset}" for held in overdue],
        )
        process.end_stuck(now)

    @property
    def _timeout(self) -> str:
        return format_duration(self._config.workers.handler_timeout)

    # -- after it has exited ----------------------------------------------------------

    def _after_exit(self, process: IsolatedProcess, exited: ExitedProcess, now: float) -> None:
        end = process.end_of(exited)
        in_hand = self._in_hand(process, end, now)
        process.close()
        self._process = None
        if not process.ready:
            self._wait(self._problem or f"their process ended at its start ({end.how})", now)
            return
        counted = self._trial.died(in_hand, end)
        if counted:
            self._count_death(counted, end)
        elif in_hand and end.blame is not Blame.NOBODY:
            _LOG.warning(
                f"the isolated process died ({end.how}) while running {len(in_hand)} record(s);"
                " they run again later, in smaller groups or alone, to find the one at fault"
            )
        if end.blame is Blame.UNSURE or (end.blame is not Blame.NOBODY and not in_hand):
            self._wait(f"their process ended ({end.how})", now)

    def _in_hand(self, process: IsolatedProcess, end: ProcessEnd, now: float) -> list[int]:
        """Returns the number of each suspect that the dead process ran, or may have run.

        This is the `number` of the `RunRequest` for the suspect. After a time-out, these are the
        suspects over it now: the one that holds the interpreter's lock began after those that it
        keeps from going on, so it was not the first.
        """
        timed_out = end.blame is Blame.TIMEOUT
        held = self._overdue(process, now) if timed_out else process.in_hand()
        positions = {(each.topic, each.partition, each.offset) for each in held}
        running = list(self._trial.running)
        found = [n for n in running if self._records[n].source.place in positions]
        if found or timed_out or not process.begun:
            return found
        # It died between a handler's end and the message with its outcome.
        return running

    def _count_death(self, counted: CountedDeath, end: ProcessEnd) -> None:
        suspect = counted.suspect
        self._known.record_death(suspect)
        name = "{}:{}:{}".format(*suspect.place)
        limit = self._config.dead_letter.crash_limit
        if not counted.convicted:
            _LOG.warning(
                f"record {name} ended the isolated process in which it ran alone ({end.how}): death"
                f" {suspect.deaths}; it becomes a dead letter after {limit}"
                f"{', or a few more, since a cause is uncertain' if suspect.unsure else ''};"
                " until then it runs again later"
            )
            return
        _LOG.error(
            f"record {name} ran alone in {suspect.deaths} isolated processes, and each one"
            " crashed or timed out; the record becomes a dead letter",
            last_end=end.how,
        )
        self._decide(counted.number, self._failure(suspect, end))

    def _failure(self, suspect: Suspect, end: ProcessEnd) -> Failure:
        if suspect.why == "timeout":
            text = f"over workers.handler_timeout = {self._timeout}"
            return Failure("timeout", exception="TimedOut", message=text)
        return Failure("crashed", exception="Crashed", message=end.how)

    def _wait(self, why: str, now: float) -> None:
        delay_s = self._backoff.failed(now - self._started)
        self._start_at = now + delay_s
        self._problem = why
        _LOG.warning(
            f"suspects wait: {why}; next isolated process in {delay_s:g} s", suspects=self.count
        )


def _request(number: int, record: Record) -> RunRequest:
    raw = record.raw
    headers = tuple(raw.headers() or ())
    key, value = raw.key(), raw.value()
    return RunRequest(number, record.source, key, value, headers, record.attempt, record.replay)
