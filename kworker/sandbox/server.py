"""The interface of the sandbox's servers (brokers and Redis), and functions that read logs."""

import re
from pathlib import Path
from typing import Protocol


class SandboxServer(Protocol):
    """A server of a sandbox: a broker or Redis. It need not be running."""

    name: str
    folder: Path
    port: int
    port_option: str
    log: Path

    def prepare(self) -> None:
        """Writes the configuration and creates the storage. Raises `KworkerError` on failure."""

    def command(self) -> list[str]: ...

    def answers(self) -> bool:
        """True if the server answers a real request; blocks for a few seconds at most."""

    def last_output(self) -> str:
        """The end of what the server wrote since `prepare`, for an error message."""


_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def indented(*texts: str, lines_max: int = 12) -> str:
    """Returns the last lines of some texts, indented, without the lines of Java's stack traces."""
    lines = [line.rstrip() for text in texts for line in text.splitlines()]
    said = [line for line in lines if line and not _FRAME.match(line)]
    return "".join(f"\n  {line[:300]}" for line in said[-lines_max:]) or " nothing"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, since: int = 0, bytes_max: int = 65536) -> str:
    """Returns the text of a log after position `since`, but at most its last `bytes_max` bytes.

    If the log is shorter than `since`, that position counts as 0. Returns "" if there is no log.
    """
    if not path.exists():
        return ""
    with path.open("rb") as file:
        end = size(path)
        file.seek(max(since if since <= end else 0, end - bytes_max))
        return file.read().decode(errors="replace")
