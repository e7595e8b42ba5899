"""Resolutions of dead letters, as the state topic holds them."""

import json
from dataclasses import dataclass
from typing import Literal, cast, get_args

from kworker.core.outcome import Output
from kworker.dead_letters.dead_letter import DeadLetterIdentity

How = Literal["redriven", "discarded", "imported"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """A person's decision on a dead letter."""

    how: How
    by: str  # user@host
    at: int  # ms since 1970


def resolution_record(
    topic: str, dead_topic: str, identity: DeadLetterIdentity, resolution: Resolution
) -> Output:
    """Returns the record that stores a resolution in the state topic `topic`."""
    value = {
        "how": resolution.how,
        "by": resolution.by,
        "at": resolution.at,
        # A dead-letter topic that was deleted and made again has the same positions.
        "timestamp": identity.timestamp,
    }
    return Output(topic, _key(dead_topic, identity), json.dumps(value).encode(), [])


def _key(dead_topic: str, identity: DeadLetterIdentity) -> bytes:
    return f"{dead_topic}/{identity.partition}/{identity.offset}".encode()


class Resolutions:
    """The resolutions of one dead-letter topic, read from the state topic.

    Each stays as raw bytes until it is looked up, because there may be millions.
    """

    def __init__(self, dead_topic: str) -> None:
        self._dead_topic = dead_topic
        self._prefix = f"{dead_topic}/".encode()
        self._values: dict[bytes, bytes] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Adds a record of the state topic; it replaces an earlier record with the same key."""
        if key is None or not key.startswith(self._prefix):
            return
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def of(self, identity: DeadLetterIdentity) -> Resolution | None:
        """Returns a dead letter's resolution; None if there is none that can be read."""
        value = self._values.get(_key(self._dead_topic, identity))
        return None if value is None else _read(value, identity.timestamp)

    def __contains__(self, identity: DeadLetterIdentity) -> bool:
        return self.of(identity) is not None


def _read(value: bytes, timestamp: int) -> Resolution | None:
    try:
        data = json.loads(value)
        how, by, at = data["how"], data["by"], data["at"]
        same = data["timestamp"] == timestamp
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not same or how not in get_args(How) or not isinstance(at, int):
        return None
    return Resolution(cast(How, how), str(by), at)
