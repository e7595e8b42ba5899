"""Reports the state of a worker: scoreboard, lag, process title."""

import time
from collections.abc import Mapping

from kworker.clients.watch import KafkaWatch
from kworker.clock import now_ms
from kworker.core.message import PartitionId
from kworker.instance.scoreboard import Slot, Text
from kworker.instance.scoreboard_fields import (
    DEAD_BY_REASON,
    REDIS_CALLS,
    RUN_TIMES,
    TRANSACTIONS,
    WAIT_TIMES,
    Field,
)
from kworker.worker.poll_loop import PollLoop, WorkerStats
from kworker.worker.topic_limits import TopicLimits

_TELL_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005  # while records settle: what is not counted is lost with a killed worker
_LAG_EVERY_S = 2.0
_FACTS_EVERY_S = 60.0
_FIELDS = {name: Field[name.upper()] for name in WorkerStats._fields}


class StatusReporter:
    """Writes the poll loop's state to shared memory; asks the brokers for lag and topic limits.

    Used by the poll thread.
    """

    def __init__(self, slot: Slot, loop: PollLoop, watch: KafkaWatch, limits: TopicLimits) -> None:
        self._slot = slot
        self._loop = loop
        self._watch = watch
        self._limits = limits
        self._text = Text()
        loop.assignment.announce = self._report_text
        self._ends: Mapping[PartitionId, int] = {}
        self._tell_at = self._count_at = self._lag_at = 0.0
        self._counted = 0
        self._facts_at = time.monotonic() + _FACTS_EVERY_S

    def turn(self) -> bool:
        """Writes a heartbeat in each turn of the poll loop.

        When it is time, also writes the state, asks the brokers for lag and topic limits, and
        returns True.
        """
        if told := self.beat():
            self._ask(time.monotonic())
        return told

    def beat(self) -> bool:
        """Writes a heartbeat, and the state if it is time; returns True if it wrote the state."""
        now_ns = time.monotonic_ns()
        self._slot.words[Field.HEARTBEAT_NS] = now_ns
        now = now_ns / 1e9
        if now < self._tell_at:
            if now >= self._count_at and self._loop.settlement.counters.settled != self._counted:
                self._count_at = now + _COUNT_EVERY_S
                self._write_counters()
            return False
        self._tell_at = now + _TELL_EVERY_S
        self.report()
        return True

    def report(self) -> None:
        """Writes the whole state of the poll loop to shared memory now."""
        self._slot.words[Field.POLLED] = 1
        self._write_counters()
        self._write_times()
        self._report_lag()
        self._report_text()

    def _write_counters(self) -> None:
        loop, words = self._loop, self._slot.words
        self._counted = loop.settlement.counters.settled
        for name, value in loop.stats()._asdict().items():
            words[_FIELDS[name]] = value
        for reason, number in loop.settlement.counters.dead_by_reason.items():
            words[DEAD_BY_REASON[reason]] = number

    def _write_times(self) -> None:
        """Writes the durations of runs, of waits for a run, of transactions and of Redis calls.

        The durations of runs and waits must be added up over all threads. As that takes longer than
        to write the counters, it is done less often.
        """
        loop, words = self._loop, self._slot.words
        for fields, numbers in (
            (RUN_TIMES, loop.dispatch.run_times),
            (WAIT_TIMES, loop.dispatch.wait_times),
            (TRANSACTIONS, loop.transactions.totals),
            (REDIS_CALLS, loop.dispatch.redis_calls.totals),
        ):
            for field, number in zip(fields, numbers, strict=True):
                words[field] = number

    def _report_text(self) -> None:
        assignment = self._loop.assignment
        text = Text(
            tuple(sorted(assignment.partitions)),
            tuple(self._loop.problems),
            tuple(assignment.known),
            letters=tuple(self._loop.dispatch.recent_letters),
        )
        if text != self._text:
            self._text = text
            self._slot.words[Field.PARTITIONS] = len(text.partitions)
            self._slot.words[Field.RED] = bool(text.problems)
            self._slot.write_text(text)

    def _report_lag(self) -> None:
        lag = unfinished = 0
        oldest_ms: int | None = None
        for at, partition in self._loop.assignment.partitions.items():
            ledger = partition.ledger
            end = self._ends.get(at)
            # An empty position means that nothing was read yet, so nothing is known.
            if end is not None and ledger.end is not None:
                lag += max(0, end - ledger.end)
            unfinished += ledger.unsettled
            if (written := ledger.oldest_ms()) is not None:
                oldest_ms = written if oldest_ms is None else min(oldest_ms, written)
        age_ms = 0 if oldest_ms is None else max(0, now_ms() - oldest_ms)
        words = self._slot.words
        words[Field.LAG_RECORDS], words[Field.UNFINISHED] = lag, unfinished + lag
        words[Field.AGE_MS] = age_ms

    def _ask(self, now: float) -> None:
        if (ends := self._watch.ends()) is not None:
            self._ends = ends
            self._loop.take_end_offsets(ends, self._watch.rejection)
        if (ids := self._watch.ids()) is not None:
            if not self._loop.assignment.partitions:
                self._loop.note_brokers(answer=bool(ids), rejection=self._watch.rejection)
            self._loop.check_topic_ids(ids)
        if (facts := self._watch.facts()) is not None:
            self._limits.update(*facts)
        if now >= self._lag_at:
            self._lag_at = now + _LAG_EVERY_S
            partitions = self._loop.assignment.partitions
            self._watch.ask_ends(partitions)
            topics = self._loop.topics_to_check
            # Without partitions, of what it would write: that brokers answer is what counts.
            self._watch.ask_ids(topics if partitions else topics.union(self._limits.topics))
        if now >= self._facts_at or self._limits.stale:
            self._facts_at = now + _FACTS_EVERY_S
            self._limits.stale = False
            self._watch.ask_facts(self._limits.topics)


class ProcessTitle:
    """Makes the process title, such as "kworker: worker 2 [orders] 3 partitions, 412/s"."""

    def __init__(self, slot: Slot, name: str) -> None:
        self._slot = slot
        self._name = name
        self._done = 0
        self._at = time.monotonic()

    def text(self, now: float) -> str:
        """Returns the title, with the records per second since the last call."""
        words = self._slot.words
        done, seconds = words[Field.DONE], max(now - self._at, 1e-3)
        rate = (done - self._done) / seconds
        self._done, self._at = done, now
        count = words[Field.PARTITIONS]
        noun = "partition" if count == 1 else "partitions"
        what = f"{count} {noun}, {rate:.0f}/s" if words[Field.POLLED] else "starting"
        return f"kworker: worker {self._slot.number} [{self._name}] {what}"
