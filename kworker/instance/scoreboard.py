"""Shared memory for workers' reports to the supervisor: no system calls, no torn reads."""

import json
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kworker.config.model import WorkersSettings
from kworker.core.message import PartitionId
from kworker.core.phase import Phase
from kworker.core.record import NAMELESS
from kworker.instance import fitted_json
from kworker.instance.hand import HAND_WORDS, Hand, Held
from kworker.instance.scoreboard_fields import COUNTERS, Field

SLOTS_MIN = 16
_TEXT_BYTES = 256 << 10  # memory is only taken for what is written
_LENGTH_BYTES = 8
_PROBLEM_MAX = 1_000  # characters of one line; the log has the rest
_ERROR_MAX = 300
_ROW_MAX = 100  # partitions in a row of the text, of which only whole rows are cut
_HEAD_WORDS = 128  # room for more; whole cache lines
_WORD: Final = "l"  # 8 bytes, signed, on 64-bit Linux; a store takes 24 ns, and 35 as "q"


class RecentLetter(NamedTuple):
    """A dead letter that a worker wrote lately: its record's source position, and why."""

    record: str  # topic:partition:offset
    reason: str
    error: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Text:
    """The lists that a worker, or the delay process, reports in its slot as JSON text.

    `known` has all partitions that the process ever had. From the delay process: `delays` has each
    delay, its number of waiting records and the first due time (ms since 1970); by topic, `behind`
    has the lag of each partition, and `others` the partitions that other instances have.
    """

    partitions: tuple[PartitionId, ...] = ()
    problems: tuple[str, ...] = ()
    # Every partition that this process ever had: a Hand names one by its index.
    known: tuple[PartitionId, ...] = ()
    # From the delay process: each delay, its number of waiting records, the next due time (ms).
    delays: tuple[tuple[str, int, int | None], ...] = ()
    # And for the whole group, by topic: the lag of each partition (None: not known), and the
    # partitions that other instances have.
    behind: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()
    letters: tuple[RecentLetter, ...] = ()
    partitions_cut: bool = False  # as read: True if there was no room for all of `partitions`


class Slot:
    """A worker's part of the scoreboard. The supervisor clears this part for the next worker."""

    def __init__(self, number: int, words: memoryview, text: memoryview, hands: int) -> None:
        self.number = number
        self.words = words  # the poll thread stores counters here by Field, without a call
        self._text = text
        self._hands = [Hand(words, _HEAD_WORDS + i * HAND_WORDS) for i in range(hands)]
        for hand in self._hands:
            hand.clear()

    def begin(self, pid: int, now_ns: int) -> None:
        """Clears the slot for the next worker; `pid` is 0 while that worker is not forked.

        Called by the supervisor.
        """
        for word in range(_HEAD_WORDS):
            self.words[word] = 0
        for hand in self._hands:
            hand.reset()
        self.words[Field.STARTED_NS] = self.words[Field.HEARTBEAT_NS] = now_ns
        self.words[Field.PID] = pid

    def detach(self) -> None:
        """Replaces the shared memory by a private copy, in a process that a handler forked."""
        self.words = memoryview(bytearray(self.words)).cast(_WORD)
        self._text = memoryview(bytearray(self._text))
        for hand in self._hands:
            hand.detach(self.words)

    @property
    def phase(self) -> Phase:
        return Phase(self.words[Field.PHASE])

    @property
    def hands(self) -> int:
        """The number of records that the worker's handlers may run at once."""
        return len(self._hands)

    def hand(self, index: int) -> Hand:
        return self._hands[index]

    def write_text(self, text: Text) -> None:
        """Replaces the slot's text. Shortens the longest lists in `text` if it is too long."""
        data = _encoded(text)
        seq = self.words[Field.TEXT_SEQ] + 1
        at = (seq & 1) * _TEXT_BYTES
        begin = at + _LENGTH_BYTES
        self._text[at:begin] = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._text[begin : begin + len(data)] = data
        self.words[Field.TEXT_SEQ] = seq

    def read_text(self) -> Text:
        """Returns the last text that was written completely."""
        while True:
            seq = self.words[Field.TEXT_SEQ]
            if seq == 0:
                return Text()
            at = (seq & 1) * _TEXT_BYTES
            begin = at + _LENGTH_BYTES
            length = int.from_bytes(self._text[at:begin], "little")
            data = bytes(self._text[begin : begin + length])
            if self.words[Field.TEXT_SEQ] - seq < 2:
                break
        return _decoded(data)

    def held(self) -> list[Held]:
        """Returns the records that this worker's handlers run, or ran when it died."""
        known = self.read_text().known[:NAMELESS]
        found = [(*held, hand.thread) for hand in self._hands if (held := hand.read())]
        return [
            Held(*known[k], offset, since, thread)
            for k, offset, since, thread in found
            if k < len(known)
        ]

    def busy_s(self, now: float) -> float:
        """Returns the sum of the times for which this worker's handlers have run, up to `now`.

        Includes the runs that have not ended; a batch is one run. `now` is in monotonic seconds.
        """
        begun = {held[2] for hand in self._hands if (held := hand.read())}  # a batch has one start
        running_s = sum(max(0.0, now - since_ns / 1e9) for since_ns in begun)
        return self.words[Field.RUNS_US] / 1e6 + running_s

    @property
    def begun(self) -> bool:
        """True if a handler has begun a record since this worker began."""
        return any(hand.used for hand in self._hands)

    def oldest_since_ns(self) -> int | None:
        """Returns the start of the handler run that has lasted longest; None if no handler runs."""
        return min((held[2] for hand in self._hands if (held := hand.read())), default=None)

    def counters(self) -> dict[str, int]:
        return {field.name.lower(): self.words[field] for field in COUNTERS}


class Scoreboard:
    """Shared memory with a slot for each worker: a memfd, which workers inherit at their fork.

    For a program started by exec, the caller makes the memfd and passes it as `fd`.
    """

    def __init__(self, slots: int, hands: int, fd: int | None = None) -> None:
        words = -(-(_HEAD_WORDS + hands * HAND_WORDS) // 512) * 512  # whole pages
        stride = words * 8 + 2 * _TEXT_BYTES
        own = os.memfd_create("kworker-scoreboard", os.MFD_CLOEXEC) if fd is None else os.dup(fd)
        os.ftruncate(own, slots * stride)
        self._map = mmap.mmap(own, slots * stride)
        os.close(own)
        view = memoryview(self._map)
        self.slots: Sequence[Slot] = [
            Slot(
                number,
                view[number * stride : number * stride + words * 8].cast(_WORD),
                view[number * stride + words * 8 : (number + 1) * stride],
                hands,
            )
            for number in range(slots)
        ]

    @classmethod
    def for_workers(cls, processes: int, hands: int) -> "Scoreboard":
        """Makes four slots for each configured process, so that `kworker scale` can add workers."""
        return cls(max(SLOTS_MIN, 4 * processes), hands)


def hands_of(workers: WorkersSettings) -> int:
    """Returns the number of records that one process may run at once, in threads or coroutines."""
    return max(workers.threads, workers.concurrency)


def _encoded(text: Text) -> bytes:
    parts: list[Sequence[object]] = [
        _rows(text.partitions),
        [len(text.partitions)],
        [_short(problem, _PROBLEM_MAX) for problem in text.problems],
        _rows(text.known),
        text.delays,
        # One row, which is kept or cut as a whole: each of the two misleads without the other.
        [] if text.behind is None else [(text.behind, text.others)],
        [each._replace(error=_short(each.error, _ERROR_MAX)) for each in text.letters],
    ]
    return fitted_json.encode(parts, _TEXT_BYTES - _LENGTH_BYTES)


def _decoded(data: bytes) -> Text:
    rows, [count], problems, known, delays, group, letters = json.loads(data)
    partitions = _partitions(rows)
    behind, others = group[0] if group else (None, [])
    return Text(
        partitions,
        tuple(problems),
        _partitions(known),
        tuple((name, waiting, due_ms) for name, waiting, due_ms in delays),
        None if behind is None else _numbers(behind),
        _numbers(others),
        tuple(RecentLetter(*letter) for letter in letters),
        partitions_cut=len(partitions) < count,
    )


def _short(line: str, most: int) -> str:
    """Returns the line, cut to `most` characters. Escapes characters that UTF-8 cannot encode."""
    text = line.encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _numbers(rows: list[tuple[str, list[int]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((topic, tuple(numbers)) for topic, numbers in rows)


def _rows(partitions: Iterable[PartitionId]) -> list[tuple[str, list[int]]]:
    """Returns the partitions in their order, with neighbours of one topic together in a row.

    This form has room for thousands of partitions.
    """
    rows: list[tuple[str, list[int]]] = []
    for topic, number in partitions:
        if not rows or rows[-1][0] != topic or len(rows[-1][1]) == _ROW_MAX:
            rows.append((topic, []))
        rows[-1][1].append(number)
    return rows


def _partitions(rows: list[tuple[str, list[int]]]) -> tuple[PartitionId, ...]:
    return tuple((topic, number) for topic, numbers in rows for number in numbers)
