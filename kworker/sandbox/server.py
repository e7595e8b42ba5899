"""The interface of the sandbox's servers, brokers and Redis, and the reading of their logs."""

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
        """Writes its configuration. Raises `KworkerError` with the server's last output."""

    def command(self) -> list[str]: ...

    def answers(self) -> bool:
        """True if it serves a real request; blocks for a few seconds at most."""

    def last_output(self) -> str:
        """Its output since `prepare`, from `indented`."""


_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def indented(*texts: str, lines_max: int = 12) -> str:
    """The last lines of some texts for a person, without the frames of Java stacks."""
    lines = [line.rstrip() for text in texts for line in text.splitlines()]
    said = [line for line in lines if line and not _FRAME.match(line)]
    return "".join(f"\n  {line[:300]}" for line in said[-lines_max:]) or " nothing"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, since: int = 0, bytes_max: int = 65536) -> str:
    """The end of a log, at most from the position `since`; from its begin if it is shorter."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        end = size(path)
        file.seek(max(since if since <= end else 0, end - bytes_max))
        return file.read().decode(errors="replace")
