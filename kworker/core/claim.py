"""The states of an event in Redis, and the contents of one call to Redis."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from kworker.core.message import HeaderList
from kworker.core.outcome import NO_RESULTS, Output, Results, Succeeded, outputs_of

OUTCOME_BYTES_MAX = 64 * 1024  # of keys, values and headers that are handed over


# -- states -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """The state of an event that the worker `owner` has claimed.

    Only this worker may run the handler for the event. `source` is the position of the record for
    which the handler runs.
    """

    owner: str
    source: str

    def __str__(self) -> str:
        return f"c{self.owner} {self.source}"


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """The outcome of a handler's run, kept for a worker that can publish it.

    A worker that gets the record at the position `source` takes the outcome up and publishes it. If
    that record does not come for a while, a worker with another record of the event may take it up.
    `owner` is the worker that has taken the outcome up; it is "" while no worker has.
    """

    source: str
    outcome: str
    owner: str = ""

    def __str__(self) -> str:
        return f"e{self.owner} {self.source}\n{self.outcome}"

    @property
    def claim(self) -> Claimed:
        """The claim of the worker that has taken this outcome up."""
        return Claimed(self.owner, self.source)


@dataclass(frozen=True, slots=True)
class ClaimDone:
    """The event is done: all its outputs are durable."""

    def __str__(self) -> str:
        return "d"


ClaimState = Claimed | KeptOutcome | ClaimDone


def state_of(text: str) -> ClaimState:
    """Parses the text that `str` makes of a claim's state. Raises ValueError for other texts."""
    kind, rest = text[:1], text[1:]
    if text == "d":
        return ClaimDone()
    place, line_feed, outcome = rest.partition("\n")
    if kind == "e" and line_feed and " " in place:
        owner, source = place.split(" ", 1)
        return KeptOutcome(source, outcome, owner)
    if kind == "c" and " " in rest:
        return Claimed(*rest.split(" ", 1))
    raise ValueError(
        f"Redis has {text[:200]!r} for an event, which kworker never writes: does"
        " another program use keys that begin with idempotency.prefix?"
    )


# -- one call ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandOver:
    """A request to replace a run's claim by the run's outcome, if Redis still has that claim.

    If Redis has a kept outcome that the claim's owner has taken up, that outcome is replaced.
    """

    id: str
    claim: Claimed
    outcome: str


@dataclass(frozen=True, slots=True)
class Release:
    """A request to end a claim, if Redis still has that claim.

    If Redis has a kept outcome that the claim's owner has taken up, it is deleted if `ended_too` is
    True. If `ended_too` is False, it stays, and another worker may take it up.
    """

    id: str
    claim: Claimed
    ended_too: bool = True


@dataclass(frozen=True, slots=True)
class Takeover:
    """A request to take over a claim from an owner that seems to be dead.

    If that owner had taken up a kept outcome, the request only frees it: a worker may take it up.
    `beat` is the last heartbeat seen of that owner. Redis refuses the request if the owner has sent
    another heartbeat since. `gone` is True if the owner is known to have ended; then Redis does not
    look at heartbeats.
    """

    held: Claimed | KeptOutcome
    beat: int | None
    gone: bool = False  # the owner is known to have ended, whatever its beat


@dataclass(slots=True)
class Exchange:
    """The requests of one call to Redis: updates first, then claims. Safe to repeat."""

    done: Sequence[str] = ()
    ended: Sequence[HandOver] = ()
    released: Sequence[Release] = ()
    ids: Sequence[str] = ()  # to claim; each occurs once
    sources: Sequence[str] = ()  # the source position of each
    takeovers: Mapping[int, Takeover] = field(default_factory=dict)  # by index in `ids`
    watched: Sequence[str] = ()  # owners whose beat is requested


@dataclass(frozen=True, slots=True)
class Answer:
    """Redis's answer to an `Exchange`.

    `refused` has the stored state of each id that this call could not claim, by the id's index in
    `Exchange.ids`. `beats` has the last heartbeat of each owner in `Exchange.watched`.
    """

    refused: Mapping[int, ClaimState]
    beats: Mapping[str, int | None]


# -- outcomes handed over ---------------------------------------------------------------


def pack(results: Succeeded) -> str | None:
    """Returns results as text to keep in Redis; None if they have more than 64 KiB."""
    outputs = outputs_of(results)
    if sum(map(_bytes_of, outputs)) > OUTCOME_BYTES_MAX:
        return None
    packed = [
        (output.topic, _text(output.key), _text(output.value), _texts(output.headers))
        for output in outputs
    ]
    return orjson.dumps(packed or None).decode()


def unpack(text: str) -> Results:
    """Parses the text that `pack` makes."""
    outputs = [
        Output(topic, _bytes(key), _bytes(value), [(name, _bytes(own)) for name, own in headers])
        for topic, key, value, headers in orjson.loads(text) or ()
    ]
    return Results(outputs) if outputs else NO_RESULTS


def _bytes_of(output: Output) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in output.headers)
    return len(output.key or b"") + len(output.value or b"") + headers


def _texts(headers: HeaderList) -> list[tuple[str, str | None]]:
    return [(name, _text(value)) for name, value in headers]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
