"""What a worker and its cell say to each other, and how it passes through a pipe."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kworker.config.model import Config
from kworker.core.failure import Failure
from kworker.core.headers import Source
from kworker.core.message import Headers
from kworker.core.outcome import Results

FRAME_BYTES_MAX = 256 << 20  # no run of a handler has more to tell
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """The first word to a cell: how to run handlers, and what each topic takes, in bytes."""

    config: Config
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One record, as its handler sees it; `number` is how the worker knows it again."""

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
    """They cannot be."""

    problem: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """One run is over."""

    number: int
    outcome: Results | Failure


PipeMessage = Setup | RunRequest | HandlersReady | LoadFailed | RunEnded


class ProtocolError(Exception):
    """What came through the pipe is no frame."""


def frame(word: PipeMessage) -> bytes:
    """A word as it is written. OverflowError when it is too large."""
    data = pickle.dumps(word, pickle.HIGHEST_PROTOCOL)
    if len(data) > FRAME_BYTES_MAX:
        raise OverflowError(f"{len(data)} bytes")
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


class Frames:
    """Puts together what arrives in pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, data: bytes) -> list[Any]:
        """The words that are complete now. Raises Garbled."""
        received, words = self._received, []
        received += data
        while len(received) >= _LENGTH_BYTES:
            length = int.from_bytes(received[:_LENGTH_BYTES], "little")
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes")
            end = _LENGTH_BYTES + length
            if len(received) < end:
                break
            words.append(_loaded(received[_LENGTH_BYTES:end]))
            del received[:end]
        return words


def _loaded(data: bytearray) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - a handler may have written to our pipe, or made this
        raise ProtocolError(str(Failure.of(error))) from None
