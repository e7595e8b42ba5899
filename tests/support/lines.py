"""Files that others still write to, read line by line."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Those that are there whole: of an append, a reader may see the beginning first.

    None while there is no file.
    """
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
