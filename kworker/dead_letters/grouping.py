"""Dead letters grouped by reason and exception, for lists."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterPosition


@dataclass(slots=True)
class DeadLetterGroup:
    """Counts of the dead letters with one reason and exception; `add` counts one more."""

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


def group_by_reason(letters: Iterable[tuple[DeadLetter, bool]]) -> list[DeadLetterGroup]:
    """Groups dead letters by reason and exception, the largest group first.

    Each dead letter comes with a flag that says if it is resolved.
    """
    groups: dict[tuple[str, str], DeadLetterGroup] = {}
    for letter, resolved in letters:
        name = letter.reason, letter.exception
        groups.setdefault(name, DeadLetterGroup(*name)).add(letter, resolved)
    return sorted(groups.values(), key=lambda group: (-group.count, group.reason, group.exception))
