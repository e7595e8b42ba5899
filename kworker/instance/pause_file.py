"""The pauses of an instance: a file under `state_dir`, so that they survive restarts."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from kworker.core.pauses import (
    NOTHING_PAUSED,
    Pause,
    PausedTopics,
    PauseOrder,
    PauseOrders,
    Resumption,
    in_force,
    merge,
)

_LOG = structlog.get_logger()
_REFRESH_EVERY_S = 0.2
_LOCK_S = 2.0  # another process has the lock for an instant, unless it is stopped meanwhile
_BY_MOST = 200  # characters of a name, which may come from another host


class PauseFile:
    """A file with the newest order, to pause or to resume, for each topic.

    All processes of an instance read it. `kworker pause` and `kworker resume` add orders, and so
    does the claims thread of each worker, when it learns of them from Redis. The file is changed
    under a lock, and replaced as a whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def content(self) -> bytes:
        """Returns the bytes of the file; b"" if it does not exist. Raises OSError."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def read(self) -> PauseOrders:
        """Returns all orders; {} if the file is damaged. Raises OSError if it cannot be read."""
        try:
            return decode(self.content())
        except ValueError:
            return {}

    def add(self, orders: PauseOrders) -> PauseOrders:
        """Adds orders that are newer than those in the file; returns all orders.

        Blocks for two seconds at most. Raises OSError if the file cannot be written, or if
        another process keeps it locked. A damaged file is replaced.
        """
        if (known := self.read()) == merge(known, orders):
            return known
        with self._locked():
            newest = merge(self.read(), orders)
            self._write(newest)
        return newest

    def _write(self, orders: PauseOrders) -> None:
        draft = self.path.with_suffix(".part")
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:
            # Root may have typed the command; only the service's user can enter the folder.
            os.fchmod(file.fileno(), 0o644)
            documents = {topic: asdict(order) for topic, order in sorted(orders.items())}
            file.write(json.dumps(documents).encode())
            file.flush()
            os.fsync(file.fileno())  # else a power failure might leave an empty file
        draft.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the folder, which exists before the file does."""
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + _LOCK_S
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0.01)
            yield
        finally:
            os.close(fd)


class WatchedPauses:
    """The pauses in force, as read from the pause file again and again.

    Used by one thread. While the file cannot be read, the pauses that it had before stay in force.
    """

    def __init__(self, file: PauseFile, wall: Callable[[], float] = time.time) -> None:
        """`wall` returns seconds since 1970."""
        self._file = file
        self._wall = wall
        self._refresh_at = float("-inf")
        self._content = b""
        self._problem = ""
        self._topics = NOTHING_PAUSED
        self.orders: PauseOrders = {}  # as of the last refresh
        self.in_force: Mapping[str, Pause] = {}  # of those; replaced as a whole

    def refresh(self, now: float, *, force: bool = False) -> PausedTopics:
        """Returns the topics that are paused at `now`, in monotonic seconds.

        Unless `force` is True, reads the file only every _REFRESH_EVERY_S seconds; in between,
        returns the same topics.
        """
        if force or now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_EVERY_S
            self._read()
            self.in_force = in_force(self.orders, int(self._wall() * 1000))
            self._topics = PausedTopics(frozenset(self.in_force))
        return self._topics

    def _read(self) -> None:
        try:
            content = self._file.content()
            if content != self._content:
                self.orders, self._content = decode(content), content
            self._problem = ""
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _LOG.warning(
                    f"{self._file.path} cannot be read; the pauses that it had before stay in"
                    " force. To end them, remove the file; then repeat `kworker pause` for the"
                    " topics that must stay paused",
                    error=self._problem,
                )


def encode(order: PauseOrder) -> str:
    """Encodes an order as JSON, for Redis."""
    return json.dumps(asdict(order))


def decode_order(text: str) -> PauseOrder | None:
    """Decodes an order; returns None for any other text."""
    try:
        return _order(json.loads(text))
    except ValueError:
        return None


def decode(content: bytes) -> dict[str, PauseOrder]:
    """Decodes the content of a pause file, without the orders that this version cannot read.

    Raises ValueError if the content is not a JSON object.
    """
    documents = json.loads(content or b"{}")
    if not isinstance(documents, dict):
        raise ValueError("a pause file must hold a JSON object")
    found = {topic: _order(document) for topic, document in documents.items()}
    return {topic: order for topic, order in found.items() if order is not None}


def _order(document: Any) -> PauseOrder | None:
    try:
        at_ms, by = int(document["at_ms"]), str(document["by"])[:_BY_MOST]
        if "since_ms" not in document:
            return Resumption(at_ms, by)
        until_ms = document["until_ms"]
        return Pause(at_ms, by, int(document["since_ms"]), until_ms and int(until_ms))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
