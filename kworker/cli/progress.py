"""The progress of a long read of a topic, on a terminal."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


class ReadingProgress:
    """Shows on a terminal the number of records read so far, and of dead letters resolved."""

    def __init__(self, progress: "Progress | None" = None, total: int = 0) -> None:
        self._progress = progress
        if progress:
            self._task = progress.add_task("", total=total, done="0")

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and counts each as read."""
        for item in items:
            if self._progress:
                self._progress.advance(self._task)
            yield item

    def done(self, count: int) -> None:
        if self._progress:
            self._progress.update(self._task, done=f"{count:,}")


@contextmanager
def reading(total: int, what: str = "") -> Iterator[ReadingProgress]:
    """Opens a progress bar for reading about `total` records.

    `what`, such as `redriven`, is shown before the number of dead letters resolved so far.
    """
    if not sys.stderr.isatty():
        yield ReadingProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = [TextColumn("read"), BarColumn(), MofNCompleteColumn()]
    done = [TextColumn(f"{what} {{task.fields[done]}}")] if what else []
    with Progress(*columns, *done, console=Console(stderr=True), transient=True) as progress:
        yield ReadingProgress(progress, total)
