"""Files that others still write to, read line by line."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Those that are there whole: of an append, a reader may see the beginning first.

    None while there is no file.
    """
    return lines_after(path, 0)[0] if path.exists() else []


def lines_after(path: Path, offset: int) -> tuple[list[str], int]:
    """The whole lines that begin at a byte or later, and where the next one will begin."""
    with path.open("rb") as file:
        file.seek(offset)
        whole, end, _ = file.read().rpartition(b"\n")
    return whole.decode().splitlines(), offset + len(whole) + len(end)
