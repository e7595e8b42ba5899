"""The messages between a worker and its isolated process, and their frames in a pipe."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kworker.config.model import Config
from kworker.core.failure import Failure
from kworker.core.headers import Source
from kworker.core.message import Headers
from kworker.core.outcome import Results

FRAME_BYTES_MAX = 256 << 20  # no run of a handler has more results
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to the process: the configuration, and each topic's limit in bytes."""

    config: Config
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One record as its handler gets it; its end is reported with the same `number`."""

    number: int
    source: Source
    key: bytes | None
    value: bytes | None
    headers: Headers
    attempt: int


@dataclass(frozen=True, slots=True)
class HandlersReady:
    """The handlers are loaded."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The handlers cannot be loaded; the process ends."""

    problem: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """One run is over."""

    number: int
    outcome: Results | Failure


PipeMessage = Setup | RunRequest | HandlersReady | LoadFailed | RunEnded


class ProtocolError(Exception):
    """The pipe held something that is no message."""


def frame(message: PipeMessage) -> bytes:
    """Returns a message as it is written. Raises OverflowError when it is too large."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > FRAME_BYTES_MAX:
        raise OverflowError(f"{len(data)} bytes")
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


class Frames:
    """Reassembles messages that arrive in pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, data: bytes) -> list[Any]:
        """Returns the messages that are complete now. Raises ProtocolError."""
        received, messages = self._received, []
        received += data
        while len(received) >= _LENGTH_BYTES:
            length = int.from_bytes(received[:_LENGTH_BYTES], "little")
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes")
            end = _LENGTH_BYTES + length
            if len(received) < end:
                break
            messages.append(_loaded(received[_LENGTH_BYTES:end]))
            del received[:end]
        return messages


def _loaded(data: bytearray) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - a handler may have written to our pipe, or made this
        raise ProtocolError(str(Failure.of(error))) from None
