"""Tells from a folder's modification time whether files in it were added, replaced or removed."""

import time
from pathlib import Path

_STABLE_NS = 1_000_000_000  # until then, one more change may leave the folder's time as it is


class FolderWatch:
    """Watches a folder: each `changed` calls `stat` once. A missing folder counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns: int | None = 0

    def changed(self) -> bool:
        """Returns True if the folder may have changed since the last call."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        if changed_ns == self._seen_ns:
            return False
        stable = time.time_ns() - changed_ns > _STABLE_NS
        self._seen_ns = changed_ns if stable else None
        return True

    def forget(self) -> None:
        """Makes the next `changed` return True; used after the folder could not be read."""
        self._seen_ns = None
