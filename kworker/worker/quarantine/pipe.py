"""The messages between a worker and its isolated process, and their frames in a pipe."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kworker.config.model import Config
from kworker.core.failure import Failure
from kworker.core.headers import Source
from kworker.core.message import Headers
from kworker.core.outcome import Succeeded

FRAME_BYTES_MAX = 256 << 20  # no run of a handler has more results
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to an isolated process: the configuration, and topics' limits in bytes."""

    config: Config
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to run the handler for one record; the `RunEnded` for it has the same `number`.

    `replay` is the id of the replay that the results carry, if any.
    """

    number: int
    source: Source
    key: bytes | None
    value: bytes | None
    headers: Headers
    attempt: int
    replay: bytes = b""


@dataclass(frozen=True, slots=True)
class HandlersReady:
    """By this message an isolated process tells its worker that the handlers are loaded."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """By this message an isolated process tells its worker that the handlers cannot be loaded.

    The process exits after the message.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The message with the outcome of the run that had this `number` in its `RunRequest`.

    `trace` is the record's header `traceparent`, which names the run's span if runs are traced.
    """

    number: int
    outcome: Succeeded | Failure
    trace: bytes = b""


PipeMessage = Setup | RunRequest | HandlersReady | LoadFailed | RunEnded


class ProtocolError(Exception):
    """The data in the pipe is not a valid message."""


def frame(message: PipeMessage) -> bytes:
    """Returns a message as bytes for the pipe. Raises OverflowError if it is too large."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > FRAME_BYTES_MAX:
        raise OverflowError(
            f"a message for the pipe has {len(data)} bytes; the limit is {FRAME_BYTES_MAX} bytes"
        )
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


class Frames:
    """Reassembles messages that arrive in pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, data: bytes) -> list[Any]:
        """Adds received bytes, and returns the messages that are complete now.

        Raises ProtocolError if the bytes are not a valid message.
        """
        received, messages = self._received, []
        received += data
        while len(received) >= _LENGTH_BYTES:
            length = int.from_bytes(received[:_LENGTH_BYTES], "little")
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(
                    f"the pipe announces a message of {length} bytes, but the limit is"
                    f" {FRAME_BYTES_MAX} bytes; has a handler written into the pipe?"
                )
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
