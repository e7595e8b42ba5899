"""Which dead letters are resolved: what the state topic holds, as it is written and read."""

import json
from dataclasses import dataclass
from typing import Literal, cast, get_args

from kworker.core.outcome import Output
from kworker.dead_letters.dead_letter import DeadLetterIdentity

How = Literal["redriven", "discarded", "imported"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a person has done about a dead letter."""

    how: How
    by: str  # user@host
    at: int  # ms since 1970


def resolved(
    topic: str, dead_topic: str, identity: DeadLetterIdentity, resolution: Resolution
) -> Output:
    """The record of the state topic `topic` that says so."""
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
    """The resolutions of one dead-letter topic, as the state topic tells them.

    Kept as they were written, because there may be millions, of which few are looked at.
    """

    def __init__(self, dead_topic: str) -> None:
        self._dead_topic = dead_topic
        self._prefix = f"{dead_topic}/".encode()
        self._told: dict[bytes, bytes] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Takes a record of the state topic: the last one of a key is what holds."""
        if key is None or not key.startswith(self._prefix):
            return
        if value is None:
            self._told.pop(key, None)
        else:
            self._told[key] = value

    def of(self, identity: DeadLetterIdentity) -> Resolution | None:
        """None also for what cannot be read: nobody's word that something was done."""
        told = self._told.get(_key(self._dead_topic, identity))
        return None if told is None else _read(told, identity.timestamp)

    def __contains__(self, identity: DeadLetterIdentity) -> bool:
        return self.of(identity) is not None


def _read(told: bytes, timestamp: int) -> Resolution | None:
    try:
        data = json.loads(told)
        how, by, at = data["how"], data["by"], data["at"]
        same = data["timestamp"] == timestamp
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not same or how not in get_args(How) or not isinstance(at, int):
        return None
    return Resolution(cast(How, how), str(by), at)
