"""What workers tell the supervisor: shared memory, written without a system call, never torn."""

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

from kworker.config.model import WorkersSettings
from kworker.core.phase import Phase
from kworker.core.record import PLACE_BITS
from kworker.instance import fitted_json

SLOTS_MIN = 16
_TEXT_BYTES = 64 << 10
_TEXT_ROOM = _TEXT_BYTES - 8 - 16  # but for its length, and what stands around its four parts
_PROBLEM_MAX = 1_000  # characters of one: for people, who find the rest in the log
_HAND_WORDS = 8  # three are used; a cache line, so that threads do not share one
_EMPTY = -1


class Field(IntEnum):
    """One word of a slot. Times are monotonic nanoseconds, which all processes share."""

    PID = 0
    PHASE = auto()
    STARTED_NS = auto()
    HEARTBEAT_NS = auto()  # the poll thread's last turn
    BASELINE_BYTES = auto()  # the resident size at the first poll
    POLLED = auto()  # 1 after the first poll: from here a death is no failed start
    IN_HAND = auto()  # records taken and not settled
    IN_FLIGHT = auto()  # of those, without an outcome
    IN_FLIGHT_BYTES = auto()
    HELD = auto()  # records of keys that wait in memory for another run
    SUSPECTS = auto()  # records that wait for the cell, or run in it
    PARTITIONS = auto()
    LAG_RECORDS = auto()  # beyond what was taken
    UNFINISHED = auto()  # at or beyond the committed position
    AGE_MS = auto()  # of the oldest unfinished record, by its timestamp
    RED = auto()  # 1 while a reason stands in the text
    DRAIN = auto()  # the supervisor's, with SIGTERM, which a handler's code may have had ignored
    LEAVE = auto()  # the supervisor's, set before SIGTERM: 1 when nobody takes this slot's place
    STALLED_MS = auto()  # for so long the pool has ended nothing of what it had, or could have had
    ACCEPT = auto()  # set by the supervisor, cleared by the worker: let die what the breaker holds
    # Counters, folded into the totals when the worker is reaped.
    CONSUMED = auto()
    DONE = auto()
    FAILED = auto()  # runs of a handler that raised
    RETRIED = auto()
    DEAD = auto()
    DUPLICATES = auto()
    DROPPED = auto()
    UNGUARDED = auto()  # ran without Redis: possible duplicates
    REMEMBERED = auto()  # came again, and did not run: done before, as an offset map told
    MAPS_IGNORED = auto()  # foreign or damaged
    PUBLISHED = auto()
    COMMITS = auto()
    REBALANCES = auto()
    TEXT_SEQ = auto()  # how often the text was written; its parity tells the buffer


COUNTERS = tuple(Field)[Field.CONSUMED : Field.TEXT_SEQ]
_HEAD_WORDS = 48  # room for more; whole cache lines


@dataclass(frozen=True, slots=True)
class Held:
    """A record in a handler's hand, by its source position, and since when."""

    topic: str
    partition: int
    offset: int
    since_ns: int
    thread: int = 0  # the system's number of the handler's thread; 0 where many share one


@dataclass(frozen=True, slots=True)
class Text:
    """The part of a slot that is words: what the worker owns, and what is wrong."""

    partitions: tuple[tuple[str, int], ...] = ()
    problems: tuple[str, ...] = ()
    # Every partition that this process ever had: a hand names one by its index.
    known: tuple[tuple[str, int], ...] = ()
    # Of the delay process: each delay, how many records wait, and when the first is due (ms).
    delays: tuple[tuple[str, int, int | None], ...] = ()
    # And of the whole group, by topic: how far it is behind in each partition (None: not
    # known), and the numbers of those that other instances have.
    behind: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Hand:
    """What one handler thread holds. Written by that thread alone, read by the supervisor.

    Two words: since when, and then which record. Whoever reads them the other way round
    sees no record as older than it is. A thread with cheap records stores them itself,
    because here a call costs more than what it does.
    """

    def __init__(self, words: memoryview, base: int) -> None:
        self.words = words
        self.place_at = base
        self.since_at = base + 1
        self._thread_at = base + 2

    @property
    def thread(self) -> int:
        """Whose hand it is, by the system's number; 0 until it was told."""
        return self.words[self._thread_at]

    def belong(self, thread: int) -> None:
        """This is the hand of that thread alone."""
        self.words[self._thread_at] = thread

    @property
    def used(self) -> bool:
        """Whether it ever held something in this life."""
        return self.words[self.since_at] != 0

    def forget(self) -> None:
        """Between two lives: nothing was ever held, by nobody."""
        self.clear()
        self.words[self.since_at] = self.words[self._thread_at] = 0

    def detach(self, words: memoryview) -> None:
        """From here on it is shown in these words, and in the board's no more."""
        self.words = words

    def take(self, place: int, now_ns: int) -> None:
        """The thread begins with a record: its partition's `place` and its offset, added."""
        self.words[self.since_at] = now_ns
        self.words[self.place_at] = place

    def clear(self) -> None:
        """The thread holds nothing."""
        self.words[self.place_at] = _EMPTY

    def read(self) -> tuple[int, int, int] | None:
        """(known, offset, since_ns), or None when empty."""
        place = self.words[self.place_at]
        if place == _EMPTY:
            return None
        return place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1), self.words[self.since_at]


class Slot:
    """One worker's place. Its worker writes it while it lives, the supervisor between lives."""

    def __init__(self, number: int, words: memoryview, text: memoryview, hands: int) -> None:
        self.number = number
        self.words = words  # the poll thread stores counters here by Field, without a call
        self._text = text
        self._hands = [Hand(words, _HEAD_WORDS + i * _HAND_WORDS) for i in range(hands)]
        for hand in self._hands:
            hand.clear()

    def begin(self, pid: int, now_ns: int) -> None:
        """Called by the supervisor between two lives: everything of the last one is gone."""
        for word in range(_HEAD_WORDS):
            self.words[word] = 0
        for hand in self._hands:
            hand.forget()
        self.words[Field.STARTED_NS] = self.words[Field.HEARTBEAT_NS] = now_ns
        self.words[Field.PID] = pid

    def detach(self) -> None:
        """In a forked copy of the worker: what it writes is seen by nobody else."""
        self.words = memoryview(bytearray(self.words)).cast("q")
        self._text = memoryview(bytearray(self._text))
        for hand in self._hands:
            hand.detach(self.words)

    @property
    def phase(self) -> Phase:
        return Phase(self.words[Field.PHASE])

    @property
    def hands(self) -> int:
        """How many there are."""
        return len(self._hands)

    def hand(self, index: int) -> Hand:
        return self._hands[index]

    def write_text(self, text: Text) -> None:
        """Replaces the words; what has no room is cut, the longest part first."""
        data = _encoded(text)
        seq = self.words[Field.TEXT_SEQ] + 1
        at = (seq & 1) * _TEXT_BYTES
        self._text[at : at + 8] = len(data).to_bytes(8, "little")
        self._text[at + 8 : at + 8 + len(data)] = data
        self.words[Field.TEXT_SEQ] = seq

    def read_text(self) -> Text:
        """The words as last written whole."""
        while True:
            seq = self.words[Field.TEXT_SEQ]
            if seq == 0:
                return Text()
            at = (seq & 1) * _TEXT_BYTES
            length = int.from_bytes(self._text[at : at + 8], "little")
            data = bytes(self._text[at + 8 : at + 8 + length])
            if self.words[Field.TEXT_SEQ] - seq < 2:
                break
        partitions, problems, known, delays, behind, others = json.loads(data)
        rows = tuple((name, waiting, due_ms) for name, waiting, due_ms in delays)
        lag = _numbers(behind[0]) if behind else None
        return Text(_pairs(partitions), tuple(problems), _pairs(known), rows, lag, _numbers(others))

    def held(self) -> list[Held]:
        """The records in the hands of this worker's handlers, dead or alive."""
        known = self.read_text().known
        found = [(*held, hand.thread) for hand in self._hands if (held := hand.read())]
        return [
            Held(*known[k], offset, since, thread)
            for k, offset, since, thread in found
            if k < len(known)
        ]

    @property
    def begun(self) -> bool:
        """Whether a handler ever began with a record in this life."""
        return any(hand.used for hand in self._hands)

    def oldest_since_ns(self) -> int | None:
        """When the longest-running handler began; None when all are idle."""
        return min((held[2] for hand in self._hands if (held := hand.read())), default=None)

    def counters(self) -> dict[str, int]:
        return {field.name.lower(): self.words[field] for field in COUNTERS}


class Scoreboard:
    """The whole board: a memfd made before the first fork, so every worker inherits it.

    For a program that is executed, the caller makes the memfd and hands it on: `fd`.
    """

    def __init__(self, slots: int, hands: int, fd: int | None = None) -> None:
        words = -(-(_HEAD_WORDS + hands * _HAND_WORDS) // 512) * 512  # whole pages
        stride = words * 8 + 2 * _TEXT_BYTES
        own = os.memfd_create("kworker-scoreboard", os.MFD_CLOEXEC) if fd is None else os.dup(fd)
        os.ftruncate(own, slots * stride)
        self._map = mmap.mmap(own, slots * stride)
        os.close(own)
        view = memoryview(self._map)
        self.slots: Sequence[Slot] = [
            Slot(
                number,
                view[number * stride : number * stride + words * 8].cast("q"),
                view[number * stride + words * 8 : (number + 1) * stride],
                hands,
            )
            for number in range(slots)
        ]

    @classmethod
    def for_workers(cls, processes: int, hands: int) -> "Scoreboard":
        """Room for four times the configured processes, so that `scale` needs no new board."""
        return cls(max(SLOTS_MIN, 4 * processes), hands)


def hands_of(workers: WorkersSettings) -> int:
    """How many records the handlers of one process may have in hand at once, of either kind."""
    return max(workers.threads, workers.concurrency)


def _encoded(text: Text) -> bytes:
    parts: list[Sequence[object]] = [
        text.partitions,
        [_short(problem) for problem in text.problems],
        text.known,
        text.delays,
        [] if text.behind is None else [text.behind],  # all of it, or it is not known
        text.others,
    ]
    return fitted_json.encode(parts, _TEXT_ROOM)


def _short(problem: str) -> str:
    """Without what UTF-8 cannot say: it goes to terminals."""
    text = problem.encode(errors="backslashreplace").decode()
    return text if len(text) <= _PROBLEM_MAX else f"{text[: _PROBLEM_MAX - 1]}…"


def _numbers(rows: list[tuple[str, list[int]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By topic."""
    return tuple((topic, tuple(numbers)) for topic, numbers in rows)


def _pairs(rows: list[list[object]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(topic), int(str(partition))) for topic, partition in rows)
