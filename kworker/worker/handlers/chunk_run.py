"""The run of a chunk: its records one after the other, without a `Record` for those that end well.

To end well is to return no result, or one for the results topic. A run that ends otherwise breaks
its chunk up: the rest runs as single records do.
"""

import math
import time
from collections.abc import Callable
from sys import getrefcount
from typing import NamedTuple

from kworker.core.chunk import Chunk
from kworker.core.outcome import Failed
from kworker.core.record import Record
from kworker.instance.hand import Hand
from kworker.log.running import ThreadCall
from kworker.message import DeliveredMessage
from kworker.worker.handlers.completions import HandlerTimes
from kworker.worker.handlers.invocation import UNSHARED, limits_of
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.results import ResultEncoder, without_results

SLOW_NS = 1_000_000  # a record that takes longer is counted by itself, and not with the run's mean
# The start of a run on the scoreboard, which costs more than a comparison. No more than SLOW_NS: to
# compare a time with that of the next note tells cheaply that no record was slow.
NOTE_EVERY_NS = 100_000


class ChunkEnd(NamedTuple):
    """The end of a thread's work on a chunk.

    `done` records ran. `last` is the one that broke the chunk up, or that ran while the poll thread
    did; None for a chunk that is whole.
    """

    done: int
    last: Record | None


RunChunk = Callable[[Chunk, Hand, HandlerTimes, ThreadCall], ChunkEnd]


class ChunkRun:
    """Runs chunks. Called with what has not begun of a chunk; the outcome of `last` is set."""

    def __init__(
        self,
        handlers: Handlers,
        encoder: ResultEncoder,
        timeout_s: float,
        attempts: float = math.inf,
    ) -> None:
        """For the parameters see `make_invoke`."""
        self._handlers = handlers
        self._encoder = encoder
        self._limits = limits_of(timeout_s, attempts)

    def __call__(
        self, chunk: Chunk, hand: Hand, times: HandlerTimes, thread: ThreadCall
    ) -> ChunkEnd:
        offsets, place = chunk.columns.offsets, chunk.partition.scoreboard_word
        words, since_at, place_at = hand.words, hand.since_at, hand.place_at
        clock_ns, new_message = time.monotonic_ns, self._new_message
        add_plain = self._encoder.for_chunk(chunk)
        done = counted = note_at = 0  # of `done`, `times` has the `counted`, which were slow
        now_ns = others_ns = clock_ns()  # the others would have begun then, had only they run
        waited_ns = now_ns - chunk.columns.taken_ns
        raw = message = returned = value = raised = None
        try:
            handler = self._handlers.only or self._handlers.of(chunk.partition.topic)
            message = new_message(thread)
            for raw in chunk.unbegun:
                if now_ns > note_at:
                    words[since_at] = now_ns
                    note_at = now_ns + NOTE_EVERY_NS
                words[place_at] = place + offsets[done]
                if getrefcount(message) != UNSHARED:
                    message = new_message(thread)
                message._raw = raw
                message._began_ns = now_ns
                done += 1
                returned = handler(message)
                value = None if returned is None else add_plain(done - 1, raw, returned)
                before_ns, now_ns = now_ns, clock_ns()
                if now_ns > note_at and now_ns - before_ns > SLOW_NS:
                    times.runs.add(1, now_ns - before_ns)
                    counted += 1
                    others_ns += now_ns - before_ns
                if value is None and returned is not None and not without_results(returned):
                    break
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
            raised, now_ns = error, clock_ns()
        if done > counted:
            times.runs.add(done - counted, now_ns - others_ns)
        if done:
            times.waits.add(done, done * waited_ns)
        if raised is None and (value is not None or without_results(returned)):
            last = chunk.finish(value)
        else:
            last = self._broken(chunk, returned, raised)
        # A handler may keep an exception, and so this frame.
        del chunk, raw, message, returned, value, raised
        return ChunkEnd(done, last)

    def _broken(self, chunk: Chunk, returned: object, raised: BaseException | None) -> Record:
        """Breaks the chunk up; returns the record of the last run, with its outcome."""
        record = chunk.break_up()[0]
        try:
            encode = self._encoder.encode
            record.outcome = encode(record, returned) if raised is None else Failed(raised)
        except BaseException as error:  # noqa: BLE001 - the value may be one that raises anything
            record.outcome = Failed(error)
        return record

    def _new_message(self, thread: ThreadCall) -> DeliveredMessage:
        message = thread.running = DeliveredMessage()  # for its log lines
        message._attempt = 1
        message._limits = self._limits
        return message
