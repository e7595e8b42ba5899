"""Dead letters as the commands see them: what one says, which are meant, how they group."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kworker.core import headers as names
from kworker.core.failure import Failure
from kworker.core.headers import Envelope, Forged, Source, SourcePosition, without_foreign
from kworker.core.message import HeaderList, RawMessage, headers_of


class DeadLetterPosition(NamedTuple):
    """A position in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        """As it is typed."""
        return f"{self.partition}:{self.offset}"


_FIELDS = frozenset(
    {
        names.SOURCE,
        names.ATTEMPT,
        names.FAILED_AT,
        names.REASON,
        names.EXCEPTION,
        names.MESSAGE,
        names.STACKTRACE,
        names.REDRIVEN,
        names.ERROR,
        names.REPLAY,
    }
)
FOREIGN = "foreign"
"""The reason that stands for a record which kworker did not write."""
_UNREAD = "its headers cannot be read"
_DIGITS_MAX = 18  # of a time, or it is none


class DeadLetterIdentity(NamedTuple):
    """What tells a dead letter from any other, in a topic that was made again, too."""

    partition: int
    offset: int
    timestamp: int  # ms, of its writing


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of the dead-letter topic.

    `headers` are the record's own, as its producer wrote them. One that kworker did not write
    has no `envelope`, and all its headers are its own.
    """

    identity: DeadLetterIdentity
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    envelope: Envelope | None
    fields: Mapping[str, str]  # what kworker's headers say, by their names
    failed_at: int  # ms

    @classmethod
    def of(cls, raw: RawMessage) -> "DeadLetter":
        """Reads a record; never raises for what its headers hold."""
        [headers], unreadable = headers_of([raw])
        found = headers or []
        written = raw.timestamp()[1]
        identity = DeadLetterIdentity(raw.partition(), raw.offset(), written)
        try:
            envelope = Envelope.open(found)
        except Forged as error:
            why = Failure.unreadable(unreadable[0], _UNREAD).message if unreadable else str(error)
            fields = {names.REASON: FOREIGN, names.MESSAGE: why}
            return cls(identity, raw.key(), raw.value(), found, None, fields, written)
        fields = {name: _text(value) for name, value in found if name in _FIELDS}
        failed_at = _whole(fields.get(names.FAILED_AT, ""), written)
        own = names.restored(without_foreign(envelope.carried))
        return cls(identity, raw.key(), raw.value(), own, envelope, fields, failed_at)

    @property
    def place(self) -> DeadLetterPosition:
        return DeadLetterPosition(self.identity.partition, self.identity.offset)

    @property
    def source(self) -> Source | None:
        """Where the record comes from first."""
        return self.envelope.source if self.envelope else None

    @property
    def reason(self) -> str:
        return self.fields.get(names.REASON, "")

    @property
    def exception(self) -> str:
        """The dotted name of the exception's type."""
        return self.fields.get(names.EXCEPTION, "")

    @property
    def message(self) -> str:
        return self.fields.get(names.MESSAGE, "")

    @property
    def attempt(self) -> int:
        """Of its last run."""
        return self.envelope.attempt if self.envelope else 0

    @property
    def redriven(self) -> int:
        """How often it was, before it became this dead letter."""
        return self.envelope.redriven if self.envelope else 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _whole(text: str, default: int) -> int:
    fit = len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fit else default


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant: those that meet all that is given.

    `places` and `sources` are one condition: a dead letter is named by its own position or by
    that of its record.
    """

    reason: str | None = None
    exception: str | None = None  # dotted or bare
    since_ms: int | None = None  # failed then or later
    key: str | None = None  # as text, or in hex where the key is none
    places: frozenset[DeadLetterPosition] = frozenset()
    sources: frozenset[SourcePosition] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything is given."""
        return self != Selection()

    def __contains__(self, letter: DeadLetter) -> bool:
        return (
            self._names(letter)
            and self.reason in (None, letter.reason)
            and (self.exception is None or _is_called(self.exception, letter.exception))
            and (self.since_ms is None or letter.failed_at >= self.since_ms)
            and (self.key is None or _is_key(self.key, letter.key))
        )

    def _names(self, letter: DeadLetter) -> bool:
        if not self.places and not self.sources:
            return True
        return letter.place in self.places or (
            letter.source is not None and letter.source.place in self.sources
        )


_SHOWN_MAX = 10  # names, where a person has mistyped one


class Met:
    """The reasons and exceptions of the dead letters that were read."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.exceptions: set[str] = set()

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Lets them pass."""
        for letter in letters:
            self.reasons.add(letter.reason)
            self.exceptions.add(letter.exception)
            yield letter

    def misses(self, selection: Selection) -> list[str]:
        """A line for each name in the selection that none of them has, once all are read."""
        found = []
        if selection.reason is not None and selection.reason not in self.reasons:
            found.append(_missed("reason", selection.reason, self.reasons))
        wanted = selection.exception
        if wanted is not None and not any(_is_called(wanted, each) for each in self.exceptions):
            found.append(_missed("exception", wanted, self.exceptions))
        return found


def _missed(what: str, wanted: str, met: Iterable[str]) -> str:
    names = sorted(filter(None, met))
    more = ", …" if len(names) > _SHOWN_MAX else ""
    there = f"there are: {', '.join(names[:_SHOWN_MAX])}{more}" if names else "there is none"
    return f'--select: no dead letter has the {what} "{wanted}"; {there}'


def spans(places: Iterable[DeadLetterPosition]) -> dict[int, range]:
    """The offsets from the first to the last of `places` in each partition."""
    found: dict[int, range] = {}
    for partition, offset in places:
        known = found.get(partition, range(offset, offset + 1))
        found[partition] = range(min(known.start, offset), max(known.stop, offset + 1))
    return found


def _is_called(wanted: str, exception: str) -> bool:
    return wanted in (exception, exception.rpartition(".")[2])


def _is_key(wanted: str, key: bytes | None) -> bool:
    if key is None:
        return False
    try:
        return key.decode() == wanted
    except UnicodeDecodeError:
        return key.hex() == wanted.lower()


@dataclass(slots=True)
class DeadLetterGroup:
    """The dead letters of one reason and exception, told one by one."""

    reason: str
    exception: str
    count: int = 0
    resolved: int = 0  # of those
    oldest_ms: int = 0  # when it failed
    newest_ms: int = 0
    message: str = ""  # of the newest
    example: DeadLetterPosition = field(default=DeadLetterPosition(0, 0))  # the newest

    def add(self, letter: DeadLetter, resolved: bool) -> None:
        if not self.count or letter.failed_at < self.oldest_ms:
            self.oldest_ms = letter.failed_at
        if not self.count or letter.failed_at >= self.newest_ms:
            self.newest_ms = letter.failed_at
            self.message, self.example = letter.message, letter.place
        self.count += 1
        self.resolved += resolved


def grouped(letters: Iterable[tuple[DeadLetter, bool]]) -> list[DeadLetterGroup]:
    """Dead letters, each with whether it is resolved, by reason and exception: most first."""
    groups: dict[tuple[str, str], DeadLetterGroup] = {}
    for letter, resolved in letters:
        name = letter.reason, letter.exception
        groups.setdefault(name, DeadLetterGroup(*name)).add(letter, resolved)
    return sorted(groups.values(), key=lambda group: (-group.count, group.reason, group.exception))
