"""Finds, in the topics of a service, the records that show what became of a source record."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from kworker.core import headers as names
from kworker.core.audit import LetterState, Trace, TraceKind
from kworker.core.headers import Envelope, Forged, Source
from kworker.core.message import HeaderList, RawMessage, headers_of
from kworker.core.offset_map import Settled
from kworker.core.times import TimeRange
from kworker.dead_letters.dead_letter import DeadLetter
from kworker.dead_letters.resolutions import Resolutions

Found = Iterator[tuple[Source, Trace]]
_BATCH = 500
_NUMBER_MAX = 9  # digits of an index or an attempt


class TraceFinder:
    """Finds the traces of source records with timestamps in a range, one topic after the other.

    A trace is a record that shows what became of a source record.
    """

    def __init__(self, time_range: TimeRange, number_of: Callable[[str], int]) -> None:
        """`number_of(topic)` returns the index that stands for a topic's name in traces."""
        self._time_range = time_range
        self._number_of = number_of

    def sources(self, raws: Iterable[RawMessage], settled: Mapping[int, Settled]) -> Found:
        """Yields a trace for each record of a source topic with a timestamp in the range."""
        for raw in raws:
            stamp = raw.timestamp()[1]
            if self._time_range.contains(stamp):
                topic, partition, offset = raw.topic(), raw.partition(), raw.offset()
                done = settled[partition].has(offset)
                place = (self._number_of(topic), partition, offset)
                source = Source(topic, partition, offset, stamp)
                yield source, Trace(TraceKind.SOURCE, *place, done)

    def results(self, raws: Iterable[RawMessage]) -> Found:
        """Yields a trace for each result of source records in the range, except in replays."""
        for raw, headers in _with_headers(raws):
            own, _ = names.parted(headers)
            source = _source(own)
            if source is None or names.REPLAY in own or not self._is_audited(source):
                continue
            index, attempt = _number(own, names.INDEX, 0), _number(own, names.ATTEMPT, 1)
            place = self._place(raw)
            yield source, Trace(TraceKind.RESULT, *place, result_index=index, attempt=attempt)

    def copies(
        self, raws: Iterable[RawMessage], kind: TraceKind, settled: Mapping[int, Settled]
    ) -> Found:
        """Yields a trace of this `kind` for each record of a delay topic or the requeue topic.

        Leaves out records whose source record is not in the range of time, and records that were
        redriven from a dead letter of a replay.
        """
        for raw, headers in _with_headers(raws):
            try:
                envelope = Envelope.open(headers)
            except Forged:
                continue
            if self._is_audited(envelope.source) and not envelope.replay:
                done = settled[raw.partition()].has(raw.offset())
                trace = Trace(
                    kind,
                    *self._place(raw),
                    done,
                    attempt=envelope.attempt,
                    redriven=envelope.redriven,
                    due_ms=envelope.due_ms,
                )
                yield envelope.source, trace

    def dead_letters(self, raws: Iterable[RawMessage], resolutions: Resolutions) -> Found:
        """Yields a trace for each dead letter of source records in the range, except in replays."""
        for raw in raws:
            letter = DeadLetter.of(raw)
            source = letter.source
            if source is None or letter.replay or not self._is_audited(source):
                continue
            trace = Trace(
                TraceKind.DEAD,
                *self._place(raw),
                attempt=letter.attempt,
                redriven=letter.redriven,
                letter=_state(letter, resolutions),
            )
            yield source, trace

    def _is_audited(self, source: Source) -> bool:
        return self._time_range.contains(source.timestamp)

    def _place(self, raw: RawMessage) -> tuple[int, int, int]:
        return self._number_of(raw.topic()), raw.partition(), raw.offset()


def _state(letter: DeadLetter, resolutions: Resolutions) -> LetterState:
    resolution = resolutions.of(letter.identity)
    if resolution is None:
        return LetterState.OPEN
    return LetterState.DISCARDED if resolution.how == "discarded" else LetterState.SENT_BACK


def _with_headers(raws: Iterable[RawMessage]) -> Iterator[tuple[RawMessage, HeaderList]]:
    """Yields each record that has readable headers, together with its headers."""
    each = iter(raws)
    while batch := list(islice(each, _BATCH)):
        for raw, headers in zip(batch, headers_of(batch)[0], strict=True):
            if headers:
                yield raw, headers


def _source(own: Mapping[str, bytes]) -> Source | None:
    if names.SOURCE not in own:
        return None
    try:
        return Source.parse(own[names.SOURCE])
    except Forged:
        return None


def _number(own: Mapping[str, bytes], name: str, default: int) -> int:
    text = own.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= _NUMBER_MAX else default
