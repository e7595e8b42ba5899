"""A dead letter: one record of the dead-letter topic, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kworker.core import headers as names
from kworker.core.failure import Failure
from kworker.core.headers import Envelope, Forged, Source, without_foreign
from kworker.core.message import HeaderList, RawMessage, headers_of


class DeadLetterPosition(NamedTuple):
    """A position in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        """Returns `partition:offset`, as a person types it."""
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
"""The reason of a record that kworker did not write."""
_UNREAD = "its headers cannot be read"
_DIGITS_MAX = 18  # of a timestamp


class DeadLetterIdentity(NamedTuple):
    """A dead letter's identity, which is unique even if the dead-letter topic was recreated."""

    partition: int
    offset: int
    timestamp: int  # ms, of its writing


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of the dead-letter topic.

    `headers` are those of the original record, as its producer wrote them. `envelope` holds what
    kworker's own headers say; it is None if kworker did not write the record.
    """

    identity: DeadLetterIdentity
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    envelope: Envelope | None
    fields: Mapping[str, str]  # the text of kworker's headers, by name
    failed_at: int  # ms

    @classmethod
    def of(cls, raw: RawMessage) -> "DeadLetter":
        """Parses a record of the dead-letter topic. Never raises, whatever its headers hold."""
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
        """The position of the original record in its source topic."""
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
        """The number of the attempt that failed; 0 if kworker did not write the record."""
        return self.envelope.attempt if self.envelope else 0

    @property
    def replay(self) -> str:
        """The id of the replay in which the record failed; "" if it failed in a worker."""
        return self.fields.get(names.REPLAY, "")

    @property
    def redriven(self) -> int:
        """The number of times that the record was sent back to the workers before."""
        return self.envelope.redriven if self.envelope else 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _whole(text: str, default: int) -> int:
    fit = len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if fit else default
