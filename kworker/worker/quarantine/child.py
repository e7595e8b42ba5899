"""The isolated process: `python -m kworker.worker.quarantine.child` runs suspects of a crash.

A worker starts it, and it ends with the worker. Its standard streams are the worker's; its
arguments are the worker's pid, and the descriptors of two pipes and of a scoreboard.
"""

import argparse
import ctypes
import faulthandler
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence

import structlog
from setproctitle import setproctitle

from kworker import log
from kworker.core.batch import NotAttempted
from kworker.core.failure import Failure
from kworker.core.headers import Envelope, carried, trace_of
from kworker.core.message import Fields
from kworker.core.outcome import Failed, PlainResult, Results, Succeeded, Unpublishable
from kworker.core.record import Partition, Record, records_of
from kworker.errors import ExitCode
from kworker.instance.proc import raise_oom_score
from kworker.instance.scoreboard import Scoreboard, Slot, Text, hands_of
from kworker.log.daemon_file import DaemonFile
from kworker.worker.handlers import loader
from kworker.worker.handlers.fork_guard import ForkGuard
from kworker.worker.handlers.pool import Pool
from kworker.worker.handlers.pool_factory import make_encoder, make_pool
from kworker.worker.quarantine.pipe import (
    Frames,
    HandlersReady,
    LoadFailed,
    PipeMessage,
    RunEnded,
    RunRequest,
    Setup,
    frame,
)
from kworker.worker.topic_limits import TopicLimits
from kworker.worker.tracing.assembly import make_tracing

_LOG = structlog.get_logger()
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 20
_TURN_S = 0.005
# 20 % of all memory. With more, it would be killed for what others used up, however small it is.
_OOM_MORE = 200


class Parent:
    """The pipes between this isolated process and the worker that started it."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._frames = Frames()
        self.gone = False

    def receive(self, wait_s: float | None) -> list[PipeMessage]:
        """Waits up to `wait_s` seconds for messages, or without limit if None; returns them.

        Sets `gone` once the worker has closed its pipe.
        """
        if not select.select([self._reads], [], [], wait_s)[0]:
            return []
        data = os.read(self._reads, _READ_BYTES)
        self.gone = not data
        return self._frames.add(data)

    def send(self, message: PipeMessage) -> None:
        """Writes a message to the pipe, and returns when all of it is written.

        This does not take long, since the worker reads the pipe often. If the worker has closed the
        pipe, sets `gone` instead.
        """
        try:
            data = memoryview(frame(message))
            while data:
                data = data[os.write(self._writes, data) :]
        except BrokenPipeError:
            self.gone = True


class IsolatedRunner:
    """Runs records in this isolated process, in a pool of threads like that of the worker.

    One thread gives the records to the pool, and sends the outcomes to the worker.
    """

    def __init__(self, pool: Pool, slot: Slot) -> None:
        """`pool` has been started. It notes in `slot` which records it runs.

        `slot` is a part of the scoreboard.
        """
        self._slot = slot
        self._pool = pool
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._ready: deque[Record] = deque()
        self._numbers: dict[Record, int] = {}
        self._log_file = DaemonFile()

    def serve(self, parent: Parent) -> None:
        """Serves requests until the worker has ended or has closed the pipe."""
        while not parent.gone:
            self.turn(parent)

    def turn(self, parent: Parent) -> None:
        """Reads requests, feeds the pool, and sends the outcomes of the runs that have ended."""
        for message in parent.receive(0.0 if self._numbers else None):
            if isinstance(message, RunRequest):
                record = self._record(message)
                self._numbers[record] = message.number
                self._ready.append(record)
        now = time.monotonic()
        self._log_file.turn(now)
        self._ready.extendleft(reversed(self._pool.reclaim(now)))
        if self._ready:
            self._pool.feed(self._take)
        for record in self._pool.completed.take(_TURN_S if self._numbers else 0.0):
            self._send_outcome(parent, record)

    def _send_outcome(self, parent: Parent, record: Record) -> None:
        match record.outcome:
            case NotAttempted():
                record.outcome = None
                self._ready.appendleft(record)
            case Failed(error):
                _send_end(parent, self._numbers.pop(record), record, Failure.in_full(error))
            case Results() | PlainResult() as outcome:
                _send_end(parent, self._numbers.pop(record), record, outcome)

    def _take(self, most: int) -> deque[Record]:
        return deque(self._ready.popleft() for _ in range(min(most, len(self._ready))))

    def _record(self, run: RunRequest) -> Record:
        """Makes a record from a request, as if the source topic had delivered the record."""
        source = run.source
        at = source.topic, source.partition
        if at not in self._partitions:
            self._partitions[at] = Partition(*at, 1, len(self._partitions), None, b"")
            self._slot.write_text(Text(known=tuple(self._partitions)))
        raw = Fields(source.place, source.timestamp, run.key, run.value, run.headers)
        [record] = records_of(self._partitions[at], (source.offset,), (None,), (len(raw),), (raw,))
        record.attempt = run.attempt
        if run.replay:
            own = carried(run.headers)
            record.envelope = Envelope(source, run.attempt, 0, 0, own, run.replay)
            record.scoreboard_word = record.partition.scoreboard_word + source.offset
        return record


def _send_end(parent: Parent, number: int, record: Record, outcome: Succeeded | Failure) -> None:
    """Sends the outcome of a run to the worker, and the trace that the record is part of.

    If the outcome is too large for the pipe, sends a failure that says so instead.
    """
    trace = trace_of(record.raw.headers() or ())
    try:
        parent.send(RunEnded(number, outcome, trace))
    except OverflowError as error:
        too_large = Unpublishable(f"the results are too large for a pipe: {error}")
        parent.send(RunEnded(number, Failure.in_full(too_large), trace))


def main(arguments: Sequence[str]) -> int:
    """Runs the isolated process until its worker needs it no more; returns the exit code."""
    given = _parsed(arguments)
    if not _die_with(given.parent):
        return ExitCode.FAILURE
    _prepare_to_die()
    for fd in (given.reads, given.writes):
        os.set_inheritable(fd, False)
    parent = Parent(given.reads, given.writes)
    messages: list[PipeMessage] = []
    while not messages and not parent.gone:
        messages = parent.receive(None)
    if not messages or not isinstance(messages[0], Setup):
        return ExitCode.OK
    return _serve(messages[0], parent, given.board)


def _serve(setup: Setup, parent: Parent, board_fd: int) -> int:
    config = setup.config
    setproctitle(f"kworker: isolated [{config.name}]")
    log.configure(config.log)
    log.identify(isolated=True)
    log.capture_prints(config.log)
    slot = Scoreboard(1, hands_of(config.workers), board_fd).slots[0]
    os.close(board_fd)
    limits = TopicLimits([*setup.limits])
    limits.update(setup.limits, {})
    try:
        tracing = make_tracing(config, "isolated")
        handlers = loader.load(config)
        handlers.open(config.workers.handler_timeout).result()
    except Exception as error:  # noqa: BLE001 - __init__ and open may raise anything
        parent.send(LoadFailed(str(Failure.of(error))))
        return ExitCode.FAILURE
    parent.send(HandlersReady())
    pool = make_pool(config, slot, handlers, make_encoder(config, limits), tracing=tracing)
    ForkGuard(slot).install(pool)
    pool.start()
    IsolatedRunner(pool, slot).serve(parent)
    try:
        pool.stop()
        handlers.close()
    except Exception as error:  # noqa: BLE001 - the user's code; every outcome is sent
        _LOG.warning(
            "the handler's close() raised an exception; the isolated process exits",
            error=str(Failure.of(error)),
        )
    tracing.close()
    return ExitCode.OK


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kworker.worker.quarantine.child")
    for name in ("parent", "reads", "writes", "board"):
        parser.add_argument(name, type=int)
    return parser.parse_args(arguments)


def _die_with(parent: int) -> bool:
    """Makes the kernel kill this process when its parent ends.

    Returns False if the parent has ended already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def _prepare_to_die() -> None:
    """Prepares this process for being ended, by signals or by the OOM killer.

    The OOM killer will kill this process rather than its worker. From now on, the process writes
    its stacks to stderr when it receives SIGUSR1.
    """
    raise_oom_score(_OOM_MORE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that a handler left behind must not keep this process.
    os._exit(code)
