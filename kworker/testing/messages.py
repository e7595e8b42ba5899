"""Messages for handlers under test."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from pydantic import BaseModel

from kworker.message import Message

TOPIC = "test"
"""The topic of a record that names none."""


def message(
    value: Any = None,
    *,
    key: str | bytes | None = None,
    headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] = (),
    topic: str = TOPIC,
    partition: int = 0,
    offset: int = 0,
    timestamp: int | None = None,
    attempt: int = 1,
    last: bool = False,
) -> Message:
    """Returns a message like those that a handler is given.

    `value` may be bytes, text, or None for a tombstone; anything else is encoded as JSON. `headers`
    is a mapping, or a list of pairs if a name occurs twice. `timestamp` is in ms since 1970, by
    default now. `attempt` is the number of the run, and `last` says that no run comes after it.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return Message(
        topic,
        partition,
        offset,
        int(time.time() * 1000) if timestamp is None else timestamp,
        _bytes(key),
        encoded(value),
        tuple((name, _bytes(content)) for name, content in pairs),
        attempt,
        last,
    )


def encoded(value: Any) -> bytes | None:
    """Returns bytes and None as they are, text as UTF-8, and models and anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, BaseModel):
        return value.model_dump_json().encode()
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def as_message(given: Any) -> Message:
    """Returns `given` if it is a message, else a message that has `given` as its value."""
    return given if isinstance(given, Message) else message(given)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
