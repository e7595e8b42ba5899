"""What the sandbox asks of anything it starts: a broker and Redis are both one of these."""

import re
from pathlib import Path
from typing import Protocol


class SandboxServer(Protocol):
    """One server of a sandbox, whether it runs or not."""

    name: str
    folder: Path
    port: int
    port_option: str
    log: Path

    def prepare(self) -> None:
        """Writes its configuration. Raises `KworkerError` with the server's own words."""

    def command(self) -> list[str]: ...

    def answers(self) -> bool:
        """True when it serves a real request; blocks for a few seconds at most."""

    def last_words(self) -> str:
        """What it said since `prepare`, as `indented` makes it."""


_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def indented(*texts: str, lines_max: int = 12) -> str:
    """The last lines that a person can use: without the frames of Java's stacks."""
    lines = [line.rstrip() for text in texts for line in text.splitlines()]
    said = [line for line in lines if line and not _FRAME.match(line)]
    return "".join(f"\n  {line[:300]}" for line in said[-lines_max:]) or " nothing"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, since: int = 0, bytes_max: int = 65536) -> str:
    """The end of a log, from the position `since`; all of it when it was begun anew."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        end = size(path)
        file.seek(max(since if since <= end else 0, end - bytes_max))
        return file.read().decode(errors="replace")
