"""One worker process: its threads, its signals, its exit.

One file over 300 lines, since the main thread and the poll thread share one phase.
"""

import ctypes
import faulthandler
import gc
import os
import select
import signal
import sys
import threading
import time
from functools import partial
from math import inf
from typing import Any

import setproctitle
import structlog

from kworker.clients.consumer import KafkaConsumer, Listener
from kworker.clients.errors import Fenced
from kworker.clients.leaving import CLOSE_S, LEAVE_S, leave
from kworker.clients.watch import KafkaWatch
from kworker.config.client_properties import admin_properties, consumer_properties
from kworker.config.model import Config
from kworker.config.topics import written_topics
from kworker.core.failure import Failure
from kworker.core.phase import Phase
from kworker.errors import ConfigError, ExitCode
from kworker.instance.group_note import GroupNote
from kworker.instance.proc import has_handler_for, rss_bytes
from kworker.instance.scoreboard import Slot, Text
from kworker.instance.scoreboard_fields import Field
from kworker.log.daemon_file import DaemonFile
from kworker.worker.assembly import Role, make_intake, make_poll_loop
from kworker.worker.collection_pace import CollectionPace
from kworker.worker.handlers import loader
from kworker.worker.handlers.fork_guard import ForkGuard
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.pool_factory import make_encoder, make_pool, runs_at_once
from kworker.worker.handlers.tracing import UNTRACED, Tracing
from kworker.worker.poll_loop import PollLoop
from kworker.worker.publish.in_doubt import FencedByTwin
from kworker.worker.reporter import ProcessTitle, StatusReporter
from kworker.worker.topic_limits import TopicLimits
from kworker.worker.tracing.assembly import make_tracing

_LOG = structlog.get_logger()

_TITLE_EVERY_S = 1.0
_RECORDED = (signal.SIGTERM, signal.SIGUSR2)
# An arena a thread keeps what each once used; under the interpreter's lock two are as fast.
_M_ARENA_MAX, _ARENAS = -8, 2
_BUILD_AGAIN_S = (1.0, 30.0)  # a handler's __init__ or open that raised: first, longest wait
_ASK_EVERY_S = 2.0
_TURN_S = 0.005
_SETTLE_SHARE = 0.2  # of drain_timeout, at most _SETTLE_MOST_S: kept for publish and commit
_SETTLE_MOST_S = 5.0
_ABORT_S = 2.0  # for a transaction that is still open then
_MARKS_S = 2.0  # at least, for what Redis is still to be told


def run(config: Config, slot: Slot, lifeline_fd: int, *, began: float) -> int:
    """Runs a worker after the fork; returns its exit code.

    `lifeline_fd` reads end-of-file when the supervisor has ended: then the worker drains. `began`
    is the supervisor's start, in monotonic seconds.
    """
    return Worker(config, slot, lifeline_fd, began).run()


class Worker:
    """The main thread of a worker, and what its poll thread runs.

    The main thread handles signals, opens and closes the handlers, and starts the poll thread. The
    poll thread starts and ends the pool and the claims thread. Both set the worker's phase, such as
    RUNNING or DRAINING.
    """

    def __init__(self, config: Config, slot: Slot, lifeline_fd: int, began: float) -> None:
        self._config = config
        self._slot = slot
        self._lifeline_fd = lifeline_fd
        self._began = began
        self._signals: list[int] = []
        self._phase = Phase.BOOTING
        self._guard = ForkGuard(slot)
        self._log_file = DaemonFile()
        self._tracing: Tracing = UNTRACED
        self._leaving = False  # give the static place in the group back
        self._drain_by = float("inf")
        self._failure: BaseException | None = None
        self._unfinished = 0

    def run(self) -> int:
        self._install_signals()
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
        title = ProcessTitle(self._slot, self._config.name)
        setproctitle.setproctitle(title.text(time.monotonic()))
        # Asked now, answered while the handlers are imported.
        watch = KafkaWatch(admin_properties(self._config))
        limits = TopicLimits(written_topics(self._config))
        watch.ask_facts(limits.topics)
        try:
            self._tracing = make_tracing(self._config, str(self._slot.number))
            handlers = self._build_handlers()
        except ConfigError as error:
            _LOG.error("the worker cannot start, and exits", problem=str(error))
            return ExitCode.CONFIG
        if handlers is None:
            return ExitCode.OK
        gc.freeze()  # what is imported by now stays
        thread = threading.Thread(
            target=self._poll_thread, args=(handlers, watch, limits), name="poll", daemon=True
        )
        thread.start()
        self._watch(thread, title)
        code = self._exit_code(handlers)
        # After the handlers, whose close() may make spans; if the thread goes on, no time is left.
        if not thread.is_alive():
            self._tracing.close()
        return code

    # -- main thread ------------------------------------------------------------------

    def _install_signals(self) -> None:
        self._wakeup_fd, self._wakes_fd = os.pipe()
        os.set_blocking(self._wakeup_fd, False)
        os.set_blocking(self._wakes_fd, False)
        self._record_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        faulthandler.enable(sys.stderr)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)

    def _record_signals(self) -> None:
        signal.set_wakeup_fd(self._wakes_fd, warn_on_full_buffer=False)
        for number in _RECORDED:
            signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _frame: Any) -> None:
        self._signals.append(number)

    def _keep_signals(self) -> None:
        """Restores the worker's signal handlers if user code or a C library has replaced them."""
        lost = [
            signal.Signals(number).name
            for number in _RECORDED
            if signal.getsignal(number) != self._record_signal or not has_handler_for(number)
        ]
        if lost:
            self._record_signals()
            signals = " and ".join(lost)
            _LOG.warning(
                f"a handler's code had replaced the worker's signal handler of {signals};"
                " the worker has restored its own"
            )

    def _build_handlers(self) -> Handlers | None:
        """Makes and opens the handlers; if that fails, tries again after a pause.

        Returns None if a drain begins before that is done. A ConfigError is not tried again, but
        raised.
        """
        wait_s, most_s = _BUILD_AGAIN_S
        while True:
            try:
                handlers = loader.load(self._config)
                return handlers if self._open(handlers) else None
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - __init__ and open may raise anything
                failure = Failure.of(error)
            _LOG.warning(
                f"the handler's __init__ or open() failed; next try in {wait_s:g} s: {failure}"
            )
            self._say((f"the handler's __init__ or open() failed: {failure}",))
            if self._pause(wait_s):
                return None
            wait_s = min(most_s, wait_s * 2)

    def _open(self, handlers: Handlers) -> bool:
        """Has the handlers' event loop await every `open`; returns False if a drain begins.

        The loop writes the heartbeats meanwhile. They stop if an `open` blocks the loop for ever,
        and the supervisor sees that, just as it sees an `__init__` that blocks for ever.
        """
        timeout_s = self._config.workers.handler_timeout
        opening = handlers.open(timeout_s, self._write_heartbeat)
        opening.add_done_callback(lambda _: os.write(self._wakes_fd, b"\0"))
        while not opening.done():
            if self._wait(_TITLE_EVERY_S):
                return False
        opening.result()
        return True

    def _pause(self, seconds: float) -> bool:
        """Waits for `seconds`, and writes heartbeats meanwhile.

        Returns True at once if the worker begins to drain. Otherwise returns False at the end.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._write_heartbeat()
            if self._wait(min(left, _TITLE_EVERY_S)):
                return True
        return False

    def _write_heartbeat(self) -> None:
        self._slot.words[Field.HEARTBEAT_NS] = time.monotonic_ns()

    def _wait(self, seconds: float) -> bool:
        """Waits until a signal comes, the supervisor has ended, or `seconds` are over.

        Returns True if the worker is draining then.
        """
        self._keep_signals()
        self._log_file.turn(time.monotonic())
        fds = [self._wakeup_fd, self._lifeline_fd, self._guard.fd]
        readable, _, _ = select.select(fds, [], [], seconds)
        if self._wakeup_fd in readable:
            os.read(self._wakeup_fd, 4096)
        while self._signals:
            if self._signals.pop(0) == signal.SIGTERM:
                self._begin_drain("told to")
        if self._slot.words[Field.DRAIN]:
            self._begin_drain("told to")
        if self._lifeline_fd in readable:
            self._begin_drain("the supervisor is gone")
        for pid in self._guard.ended_children():
            _LOG.warning(
                "a handler forked, and the child process returned from the handler, too; the child"
                " was ended before it ran records. Let such a child end by os._exit()",
                forked=pid,
            )
        return self._phase >= Phase.DRAINING

    def _begin_drain(self, why: str) -> None:
        if self._phase < Phase.DRAINING:
            self._leaving = bool(self._slot.words[Field.LEAVE])
            self._drain_by = time.monotonic() + self._config.workers.drain_timeout
            self._enter(Phase.DRAINING)
            _LOG.info("worker begins to drain", why=why, in_hand=self._slot.words[Field.IN_HAND])

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._slot.words[Field.PHASE] = phase

    def _watch(self, thread: threading.Thread, title: ProcessTitle) -> None:
        """Waits until the poll thread has ended, or the time for the drain is over."""
        most_s = _ABORT_S + LEAVE_S + CLOSE_S  # beyond the drain
        while thread.is_alive() and time.monotonic() < self._drain_by + most_s:
            setproctitle.setproctitle(title.text(time.monotonic()))
            if self._wait(_TITLE_EVERY_S):
                # The lifeline stays readable once it is cut: wait for the thread instead.
                thread.join(0.2)

        if thread.is_alive():
            self._unfinished = max(1, self._slot.words[Field.IN_HAND])

    def _exit_code(self, handlers: Handlers) -> int:
        self._enter(Phase.GONE)
        if isinstance(self._failure, Fenced):
            _LOG.error(
                "fenced: another process has this worker's identity; the worker exits",
                error=str(self._failure),
            )
            return ExitCode.ALREADY_RUNNING
        if self._failure is not None:
            return ExitCode.FAILURE
        if self._unfinished:
            # Whoever reaps this process reads it as what was left.
            self._slot.words[Field.IN_HAND] = self._unfinished
            _LOG.warning(
                "drain timed out; unfinished and uncommitted records are delivered again",
                records_left=self._unfinished,
            )
            return ExitCode.DRAIN_TIMED_OUT
        try:
            handlers.close()
        except Exception as error:  # noqa: BLE001 - the user's code; the drain is done
            _LOG.warning("the handler's close() raised; ignored", error=str(Failure.of(error)))
        return ExitCode.OK

    # -- poll thread ------------------------------------------------------------------

    def _poll_thread(self, handlers: Handlers, watch: KafkaWatch, limits: TopicLimits) -> None:
        """Runs the poll loop; an exception that ends it becomes the failure of the worker."""
        try:
            self._poll(handlers, watch, limits)
        except Exception as error:  # noqa: BLE001 - the top of a thread
            self._failure = error
            if not isinstance(error, Fenced):
                _LOG.exception("worker exits after an error; unfinished records run again")
        finally:
            os.kill(os.getpid(), signal.SIGUSR2)  # wakes the main thread

    def _poll(self, handlers: Handlers, watch: KafkaWatch, limits: TopicLimits) -> None:
        config, slot = self._config, self._slot
        if not self._learn(limits, watch):
            return
        encoder = make_encoder(config, limits)
        pool = make_pool(config, slot, handlers, encoder, tracing=self._tracing)
        made: list[KafkaConsumer] = []

        def reader(listener: Listener) -> KafkaConsumer:
            made.append(KafkaConsumer(consumer_properties(config, slot=slot.number), listener))
            return made[0]

        intake, had = make_intake(config), GroupNote(config.state_dir).positions()
        role = Role(slot.number, reader, watch.identities, intake, had=had, began=self._began)
        loop = make_poll_loop(config, role, pool, handlers, limits)
        loop.dispatch.isolate_all(slot.words[Field.ISOLATE_S])
        reporter = StatusReporter(slot, loop, watch, limits)
        loop.assignment.beat = partial(self._beat, reporter)
        self._guard.install(pool)
        pool.start()
        loop.dispatch.start()
        slot.words[Field.HANDLERS] = runs_at_once(config.workers, handlers)
        slot.words[Field.BASELINE_BYTES] = rss_bytes(os.getpid())
        if self._phase < Phase.DRAINING:
            made[0].subscribe([*config.source.topics, config.requeue_topic])
            self._enter(Phase.JOINING)
        self._serve(loop, reporter)
        self._drain(loop, reporter)
        pool.stop()
        loop.dispatch.end(max(self._drain_by, time.monotonic() + _MARKS_S))
        self._leave(made[0], reporter)

    def _learn(self, limits: TopicLimits, watch: KafkaWatch) -> bool:
        """Waits until the brokers have told all topic limits; returns False if a drain begins."""
        ask_at = time.monotonic() + _ASK_EVERY_S
        while self._phase < Phase.DRAINING:
            self._write_heartbeat()
            if (answer := watch.facts()) is not None:
                limits.update(*answer)
                if limits.complete:
                    self._say(())
                    return True
                waiting = f"waiting for {limits.missing}: not there, or no broker answers"
                self._say((watch.rejection or waiting,))
            if (now := time.monotonic()) >= ask_at:
                ask_at = now + _ASK_EVERY_S
                watch.ask_facts(limits.topics)
            time.sleep(_TURN_S)
        return False

    def _say(self, reasons: tuple[str, ...]) -> None:
        self._slot.words[Field.RED] = bool(reasons)
        self._slot.write_text(Text(problems=reasons))

    def _beat(self, reporter: StatusReporter) -> float:
        """Writes a heartbeat during a long turn of the poll loop.

        Returns the seconds that are left for that turn. They are infinite unless the worker drains.
        """
        reporter.beat()
        if self._phase < Phase.DRAINING:
            return inf
        return self._drain_by - self._kept_s - time.monotonic()

    @property
    def _kept_s(self) -> float:
        """The seconds at the end of a drain that are reserved for publishing and committing."""
        return min(_SETTLE_MOST_S, _SETTLE_SHARE * self._config.workers.drain_timeout)

    def _serve(self, loop: PollLoop, reporter: StatusReporter) -> None:
        pace = CollectionPace(self._slot)
        while self._phase.taking:
            try:
                loop.turn()
            except FencedByTwin:
                raise
            except Fenced as fenced:
                if not loop.assignment.lost_lately:
                    raise
                _LOG.warning(
                    "Kafka fenced this worker, probably not because of another process: a commit"
                    " that the worker sent before it lost its partitions came late; the worker"
                    " joins the group again",
                    error=str(fenced),
                )
                loop.rejoin("fenced, probably by a late commit from before partitions were lost")
            if reporter.turn():
                pace.turn(time.monotonic())
            if self._slot.words[Field.ACCEPT]:
                self._slot.words[Field.ACCEPT] = 0
                loop.accept_dead()
            if self._phase is Phase.JOINING and loop.joined:
                reporter.report()  # who reads "running" reads the partitions, too
                self._enter(Phase.RUNNING)

    def _drain(self, loop: PollLoop, reporter: StatusReporter) -> None:
        """Lets running handlers end, then publishes and commits their outcomes, as time allows."""
        loop.stop_taking()
        while not loop.idle and time.monotonic() < self._drain_by - self._kept_s:
            loop.turn()
            reporter.turn()
        loop.dispatch.abandon_suspects()
        while not loop.settled and time.monotonic() < self._drain_by:
            loop.turn()
            reporter.turn()
        loop.end(self._drain_by + _ABORT_S)
        loop.hand_over()
        self._unfinished = loop.unfinished
        reporter.report()

    def _leave(self, consumer: KafkaConsumer, reporter: StatusReporter) -> None:
        """Ends this worker's membership in the consumer group.

        If the worker is a static member, the group keeps its partitions for the process that takes
        its place. If no process will take its place, the supervisor has set LEAVE in the
        scoreboard. Then a static member gives up its partitions, too.
        """
        if self._phase < Phase.LEAVING:
            self._enter(Phase.LEAVING)
        static = self._config.workers.membership == "static"
        leave(
            consumer,
            reporter.turn,
            for_good=self._leaving and static,
            join_s=self._drain_by - time.monotonic(),
        )
