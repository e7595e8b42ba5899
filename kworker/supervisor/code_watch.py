"""`start --reload`: watches a folder for changed Python files, and a changed configuration."""

import os
from collections.abc import Iterator
from pathlib import Path

_EVERY_S = 0.5
_FILES_MAX = 5_000  # the rest is not watched: it is no folder of handlers
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class CodeWatch:
    """Finds changed Python files in a folder by their modification times, every half second.

    Also finds a changed kworker.toml. Hidden folders and installed packages are left out. Owned by
    the supervisor.
    """

    def __init__(self, config_file: Path) -> None:
        """Watches the folder of `config_file`, from which handlers are imported."""
        self._config_file = config_file
        self._times = dict(self._scan())
        self._look_at = 0.0
        self._changed: set[str] = set()

    def turn(self, now: float) -> list[str]:
        """Returns the names of changed files once a scan finds no more changes; until then, []."""
        if now < self._look_at:
            return []
        self._look_at = now + _EVERY_S
        times = dict(self._scan())
        names = {name for name, _ in times.items() ^ self._times.items()}
        self._times = times
        self._changed |= names
        if names:  # an editor may be at the next file
            return []
        found, self._changed = sorted(self._changed), set()
        return found

    def _scan(self) -> Iterator[tuple[str, int]]:
        """Yields each watched file, relative to the folder, with the time of its last change."""
        folder = self._config_file.parent
        count = 0
        for path, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not _is_skipped(name)]
            for name in names:
                file = Path(path, name)
                if (name.endswith(".py") or file == self._config_file) and count < _FILES_MAX:
                    count += 1
                    try:
                        yield str(file.relative_to(folder)), file.stat().st_mtime_ns
                    except OSError:
                        continue  # removed meanwhile, or in a closed folder


def _is_skipped(folder: str) -> bool:
    return folder.startswith(".") or folder in _SKIPPED
