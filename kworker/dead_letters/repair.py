"""The records to write for dead letters that a person repairs, and the pace of writing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kworker.core import headers as names
from kworker.core.headers import Envelope
from kworker.core.message import HeaderList
from kworker.core.outcome import Output
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterIdentity
from kworker.dead_letters.resolutions import How, Resolutions
from kworker.dead_letters.selection import Selection

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 8 << 20


class RepairStep(NamedTuple):
    """A dead letter to resolve, and the record to write for it.

    `output` is None if no record is to be written, but only the resolution.
    """

    identity: DeadLetterIdentity
    output: Output | None


@dataclass(slots=True)
class Tally:
    """Counts of the selected dead letters by what was done with them; printed as JSON.

    `before` counts those that were resolved already, `unreadable` those that kworker did not write,
    and `oversized` those that are too large for the topic to which they should go.
    """

    done: int = 0
    before: int = 0  # resolved already
    unreadable: int = 0  # not written by kworker, so their sources are unknown
    oversized: int = 0  # larger than the topic's limit

    @property
    def left(self) -> int:
        """The number of dead letters that could not be repaired."""
        return self.unreadable + self.oversized


class Requeue(NamedTuple):
    """The requeue topic, from which the workers read records again."""

    topic: str
    partitions: int

    def output(self, letter: DeadLetter) -> Output:
        """Returns the requeue record for a dead letter that kworker wrote."""
        assert letter.envelope
        return self.record(letter.envelope, letter.key, letter.value, letter.headers)

    def record(
        self, envelope: Envelope, key: bytes | None, value: bytes | None, headers: HeaderList
    ) -> Output:
        """Returns a requeue record with this content.

        When the workers run it, that counts as the first attempt.
        """
        source = envelope.source
        own: HeaderList = [
            *names.carried(headers),
            (names.SOURCE, str(source).encode()),
            (names.ATTEMPT, b"1"),
            (names.REDRIVEN, b"%d" % min(envelope.redriven + 1, names.COUNT_MAX)),
            # What a replay repeats stays apart from what is live.
            *([(names.REPLAY, envelope.replay)] if envelope.replay else []),
        ]
        return Output(self.topic, key, value, own, partition=source.partition % self.partitions)


class OtherTopic(NamedTuple):
    """A topic other than the requeue topic, for records of dead letters.

    It gets each record as the original producer wrote it.
    """

    topic: str

    def output(self, letter: DeadLetter) -> Output:
        return Output(self.topic, letter.key, letter.value, letter.headers)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of records written in a second; a `rate` of None is no limit."""

    rate: float | None = None

    @property
    def batch_max(self) -> int:
        """The most records in one transaction: those of a second, from 1 to BATCH_RECORDS_MAX."""
        if self.rate is None:
            return BATCH_RECORDS_MAX
        return max(1, min(int(self.rate), BATCH_RECORDS_MAX))

    def rest_s(self, done: int) -> float:
        """Returns the seconds to wait after a batch of `done` records."""
        return 0.0 if self.rate is None else done / self.rate


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """A decision on selected dead letters: how they are resolved, and what is written for them."""

    how: How
    selection: Selection
    to: Requeue | OtherTopic | None = None  # None: only the resolution is written
    bytes_max: int | None = None  # of a record in that topic; None: no limit
    limit: int | None = None
    pace: RateLimit = RateLimit()

    def choose(
        self, letters: Iterable[DeadLetter], resolutions: Resolutions, tally: Tally
    ) -> Iterator[DeadLetter]:
        """Yields at most `limit` dead letters: selected, not resolved yet, and repairable.

        Counts in `tally` the selected dead letters that it skips.
        """
        meant = unresolved(letters, self.selection, resolutions, tally)
        return islice(filter(lambda letter: self._is_fit(letter, tally), meant), self.limit)

    def _is_fit(self, letter: DeadLetter, tally: Tally) -> bool:
        if self.to is None:
            return True
        if letter.envelope is None:
            tally.unreadable += 1
            return False
        if self.bytes_max is not None and self.to.output(letter).size > self.bytes_max:
            tally.oversized += 1
            return False
        return True

    def step(self, letter: DeadLetter) -> RepairStep:
        """Returns the step that repairs a dead letter which `choose` yielded."""
        return RepairStep(letter.identity, self.to.output(letter) if self.to else None)


def unresolved(
    letters: Iterable[DeadLetter], selection: Selection, resolutions: Resolutions, tally: Tally
) -> Iterator[DeadLetter]:
    """Yields selected dead letters that are not resolved; counts the resolved ones in `tally`."""
    for letter in letters:
        if letter not in selection:
            continue
        if letter.identity in resolutions:
            tally.before += 1
        else:
            yield letter


def skip_resolved(
    steps: Iterable[RepairStep], resolutions: Resolutions, tally: Tally
) -> Iterator[RepairStep]:
    """Yields steps whose dead letters are not resolved; counts the other steps in `tally`."""
    for step in steps:
        if step.identity in resolutions:
            tally.before += 1
        else:
            yield step


def batches(steps: Iterable[RepairStep], records_max: int) -> Iterator[list[RepairStep]]:
    """Yields the steps in batches of `records_max` records and `BATCH_BYTES_MAX` bytes at most."""
    batch: list[RepairStep] = []
    size = 0
    for step in steps:
        added = step.output.size if step.output else 0
        if batch and (len(batch) == records_max or size + added > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(step)
        size += added
    if batch:
        yield batch
