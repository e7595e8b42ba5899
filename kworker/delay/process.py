"""The delay process: its signals, its loop, its reports to the supervisor, and its exit code."""

import faulthandler
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import setproctitle
import structlog

from kworker.clients.consumer import KafkaConsumer
from kworker.clients.errors import Fenced
from kworker.clients.leaving import leave
from kworker.clients.transactions import KafkaTransactor
from kworker.clients.watch import KafkaWatch
from kworker.config.client_properties import (
    admin_properties,
    delay_consumer_properties,
    delay_producer_properties,
    transactional_id,
)
from kworker.config.model import Config
from kworker.config.topics import delay_ms, delay_pattern
from kworker.core.duration import format_duration
from kworker.core.phase import Phase
from kworker.delay.assembly import DelayPlatform, make_delay_loop
from kworker.delay.assignment import DelayAssignment
from kworker.delay.forwarder import Forwarder
from kworker.delay.group_lag import make_group_lag
from kworker.delay.loop import DelayLoop
from kworker.errors import ExitCode
from kworker.instance.scoreboard import Slot, Text
from kworker.instance.scoreboard_fields import Field
from kworker.log.daemon_file import DaemonFile
from kworker.worker.publish.in_doubt import FencedByTwin, FencePolicy, FencingJudge

_LOG = structlog.get_logger()

_TRANSACTION_S = 10.0  # for each step of one; well below the supervisor's limit for heartbeats
_REPORT_EVERY_S = 0.1
_PROBLEMS_MAX = 8


def run(config: Config, slot: Slot, lifeline_fd: int, *, began: float) -> int:
    """Runs the delay process in the forked child; returns its exit code.

    `lifeline_fd` is a pipe that reads end-of-file when the supervisor has died; this process
    then ends, too. `began` is the monotonic time at which the supervisor began.
    """
    return DelayProcess(config, slot, lifeline_fd, began).run()


class DelayProcess:
    """The delay process: one thread that calls `DelayLoop.turn` until it must end."""

    def __init__(self, config: Config, slot: Slot, lifeline_fd: int, began: float) -> None:
        self._config = config
        self._slot = slot
        self._lifeline_fd = lifeline_fd
        self._began = began
        self._loop: DelayLoop | None = None
        self._stopping = False
        self._log_file = DaemonFile()
        self._report_at = 0.0
        self._lag = make_group_lag(config)

    def run(self) -> int:
        self._install_signals()
        try:
            self._serve()
        except FencedByTwin as fenced:
            _LOG.error(
                "fenced: another process uses this instance's transactional id; the service ends",
                error=str(fenced),
            )
            return ExitCode.ALREADY_RUNNING
        except Fenced as fenced:
            # The service goes on, since this may be a late request of its own lost session.
            _LOG.error(
                "fenced: another member of the consumer group has this process's"
                " group.instance.id; the delay process starts again; if that repeats, another copy"
                " of the service runs: give each copy its own `instance`",
                error=str(fenced),
            )
            return ExitCode.FAILURE
        except Exception:  # noqa: BLE001 - the top of a process
            _LOG.exception("the delay process failed; delayed records wait for its next start")
            return ExitCode.FAILURE
        return ExitCode.OK

    def _install_signals(self) -> None:
        signal.signal(signal.SIGTERM, self._record_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        faulthandler.enable(sys.stderr)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)

    def _record_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _goes_on(self) -> bool:
        """Writes the heartbeat; returns False after SIGTERM, or when the supervisor has died."""
        self._slot.words[Field.HEARTBEAT_NS] = time.monotonic_ns()
        self._log_file.turn(time.monotonic())
        readable, _, _ = select.select([self._lifeline_fd], [], [], 0)
        return not (self._stopping or readable)

    def _still_waits(self) -> bool:
        """Called during waits: reports problems to the supervisor, and writes the heartbeat.

        Returns False if the process must end.
        """
        self._lag.turn(time.monotonic())
        if self._loop is not None and self._loop.problems:
            self._report(self._loop)
        return self._goes_on()

    def _serve(self) -> None:
        config = self._config
        consumer, loop, forwarder = _make(config, self._still_waits, self._began)
        self._loop = loop
        self._slot.words[Field.PHASE] = Phase.JOINING
        if self._goes_on():
            consumer.subscribe([delay_pattern(config)])
        while self._goes_on():
            loop.turn()
            self._lag.turn(time.monotonic())
            self._report(loop)
        self._slot.words[Field.PHASE] = Phase.LEAVING
        static = config.workers.membership == "static"
        leave(
            consumer,
            self._goes_on,
            for_good=static and bool(self._slot.words[Field.LEAVE]),
            join_s=config.workers.drain_timeout,
        )
        forwarder.close()

    def _report(self, loop: DelayLoop) -> None:
        if (now := time.monotonic()) < self._report_at:
            return
        self._report_at = now + _REPORT_EVERY_S
        words = self._slot.words
        words[Field.PARTITIONS] = len(loop.assignment.partitions)
        words[Field.IN_FLIGHT] = sum(
            len(partition.held) for partition in loop.assignment.partitions.values()
        )
        words[Field.PUBLISHED] = loop.forwarded
        words[Field.DEAD] = loop.dead
        words[Field.COMMITS] = loop.transactions
        delays = _delay_rows(self._config, loop)
        problems = tuple(loop.problems)[:_PROBLEMS_MAX]
        words[Field.RED] = bool(problems)
        text = Text(tuple(loop.assignment.partitions), problems, delays=delays)
        self._slot.write_text(self._lag.add_to(text))
        words[Field.POLLED] = 1
        if loop.assignment.joined or loop.membership.is_member:
            words[Field.PHASE] = Phase.RUNNING
        waiting = sum(count for _, count, _ in delays)
        setproctitle.setproctitle(f"kworker: delay [{self._config.name}] {waiting} waiting")


def _make(
    config: Config, goes_on: Callable[[], bool], began: float
) -> tuple[KafkaConsumer, DelayLoop, Forwarder]:
    producer = delay_producer_properties(config)
    name = transactional_id(config, "delay")
    made: list[KafkaConsumer] = []

    def consumer(assignment: DelayAssignment) -> KafkaConsumer:
        made.append(KafkaConsumer(delay_consumer_properties(config), assignment))
        return made[0]

    fences = FencingJudge(name, FencePolicy(int(producer["transaction.timeout.ms"]) / 1000), began)
    platform = DelayPlatform(
        consumer,
        lambda: KafkaTransactor(producer, name, _TRANSACTION_S),
        KafkaWatch(admin_properties(config)),
        fences,
        goes_on,
    )
    loop, forwarder = make_delay_loop(config, platform)
    return made[0], loop, forwarder


def _delay_rows(config: Config, loop: DelayLoop) -> tuple[tuple[str, int, int | None], ...]:
    rows = [(delay_ms(config, topic), *row) for topic, row in loop.waiting().items()]
    return tuple((format_duration(ms / 1000), count, due_ms) for ms, count, due_ms in sorted(rows))
