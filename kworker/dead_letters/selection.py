"""Dead letters that a command selects: by position, reason, exception, time or key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kworker.core.headers import SourcePosition
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterPosition


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on dead letters; a selected dead letter meets every one of them.

    `places` and `sources` are one condition: a dead letter meets it by its own position or by that
    of its source record.
    """

    reason: str | None = None
    exception: str | None = None  # dotted or bare
    since_ms: int | None = None  # failed then or later
    key: str | None = None  # as text, or in hex where the key is no UTF-8
    places: frozenset[DeadLetterPosition] = frozenset()
    sources: frozenset[SourcePosition] = frozenset()

    def __bool__(self) -> bool:
        """Returns True if any condition is given."""
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


_SHOWN_MAX = 10  # names, in the hint for a mistyped one


class SeenNames:
    """The reasons and exceptions of the dead letters read, to find mistyped ones in a selection."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.exceptions: set[str] = set()

    def record(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """Yields the dead letters, and adds their reasons and exceptions to those seen."""
        for letter in letters:
            self.reasons.add(letter.reason)
            self.exceptions.add(letter.exception)
            yield letter

    def unmatched(self, selection: Selection) -> list[str]:
        """Returns a line for each selected reason or exception that no dead letter had."""
        found = []
        if selection.reason is not None and selection.reason not in self.reasons:
            found.append(_not_found("reason", selection.reason, self.reasons))
        wanted = selection.exception
        if wanted is not None and not any(_is_called(wanted, each) for each in self.exceptions):
            found.append(_not_found("exception", wanted, self.exceptions))
        return found


def _not_found(what: str, wanted: str, seen: Iterable[str]) -> str:
    names = sorted(filter(None, seen))
    more = ", …" if len(names) > _SHOWN_MAX else ""
    there = f"there are: {', '.join(names[:_SHOWN_MAX])}{more}" if names else "there is none"
    return f'--select: no dead letter has the {what} "{wanted}"; {there}'


def spans(places: Iterable[DeadLetterPosition]) -> dict[int, range]:
    """Returns, for each partition, the range from its first offset in `places` to its last one."""
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
