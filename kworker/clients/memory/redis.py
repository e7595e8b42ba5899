"""Redis in memory: the twin of `clients/redis.py`, for tests with no server running."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kworker.clients.redis import CLAIM_S, OWN_RECORD_S, own_key
from kworker.core.claim import (
    Answer,
    ClaimDone,
    Claimed,
    ClaimState,
    Exchange,
    HandOver,
    KeptOutcome,
    Release,
    Takeover,
)
from kworker.errors import Unreachable


class MemoryRedis:
    """A Redis server in memory. A test sets its attributes to simulate faults.

    With `away` it refuses connections, with `readonly` or `full` it refuses writes. With `deaf` it
    executes requests and sends no answer.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._ids: dict[str, tuple[ClaimState, float]] = {}  # with when it expires
        self._beats: dict[str, int] = {}
        self.texts: dict[str, dict[str, str]] = {}  # by key, then by name
        self.away = self.readonly = self.full = self.deaf = False
        self.calls = 0

    def flush(self) -> None:
        """Deletes everything."""
        self._ids.clear()
        self._beats.clear()
        self.texts.clear()

    def state(self, name: str) -> ClaimState | None:
        """Returns the state stored under an event's key; None if there is none, or it expired."""
        state, until = self._ids.get(name, (None, 0.0))
        return state if self._now_s() < until else None

    def write(self, name: str, state: ClaimState, life_s: float) -> None:
        self._ids[name] = (state, self._now_s() + life_s)

    def left_s(self, name: str) -> float:
        """Returns the seconds until the state of an event expires."""
        return self._ids[name][1] - self._now_s()

    def delete(self, name: str) -> None:
        self._ids.pop(name, None)

    def beat(self, owner: str) -> int | None:
        return self._beats.get(owner)

    def renew(self, owner: str, number: int) -> None:
        """Stores the sequence number of an owner's call.

        Raises `Unreachable` if the number of a later call is stored already.
        """
        if (last := self._beats.get(owner, 0)) > number:
            raise Unreachable(
                f"LATE: request {number} of this process is refused,"
                f" because its later request {last} is done already"
            )
        self._beats[owner] = number

    def begin(self) -> None:
        """Counts a request. Raises `Unreachable` if the server refuses it."""
        self.calls += 1
        if self.away:
            raise Unreachable("Connection refused")
        if self.readonly:
            raise Unreachable("You can't write against a read only replica.")
        if self.full:
            raise Unreachable("command not allowed when used memory > 'maxmemory'.")

    def end(self) -> None:
        """Ends a request. Raises `Unreachable` if the server sends no answer."""
        if self.deaf:
            raise Unreachable("Timeout reading from socket")


class MemoryRedisClaims:
    """The twin of `RedisClaims` for tests, on a `MemoryRedis`."""

    def __init__(
        self,
        redis: MemoryRedis,
        *,
        prefix: str,
        owner: str,
        ttl_s: float,
        own_record_s: float = OWN_RECORD_S,
    ) -> None:
        self._redis = redis
        self._prefix = prefix
        self._owner = owner
        self._number = 0
        self._ttl_s = ttl_s
        self._claim_s = max(ttl_s, CLAIM_S)
        self._own_record_s = own_record_s

    def exchange(self, ask: Exchange) -> Answer:
        self._number += 1
        redis = self._redis
        redis.begin()
        redis.renew(self._prefix + self._owner, self._number)
        for id_ in ask.done:
            redis.write(self._prefix + id_, ClaimDone(), self._ttl_s)
        for mark in ask.ended:
            self._hand_over(mark)
        for release in ask.released:
            self._release(release)
        wanted = enumerate(zip(ask.ids, ask.sources, strict=True))
        states = [(i, self._claim(*each, ask.takeovers.get(i))) for i, each in wanted]
        beats = {owner: redis.beat(self._prefix + owner) for owner in ask.watched}
        redis.end()
        return Answer({i: state for i, state in states if state is not None}, beats)

    def close(self) -> None:
        """Does nothing, because there is no connection."""

    def _hand_over(self, mark: HandOver) -> None:
        name = self._prefix + mark.id
        if _claim_of(self._redis.state(name)) == mark.claim:
            self._redis.write(name, KeptOutcome(mark.claim.source, mark.outcome), self._claim_s)

    def _release(self, release: Release) -> None:
        name = self._prefix + release.id
        state = self._redis.state(name)
        if _claim_of(state) != release.claim:
            return
        if isinstance(state, KeptOutcome) and not release.ended_too:
            self._redis.write(name, replace(state, owner=""), self._claim_s)
        else:
            self._redis.delete(name)

    def _claim(self, id_: str, source: str, over: Takeover | None) -> ClaimState | None:
        """Claims an event id; returns None, or the stored state that prevents the claim."""
        name, mine = self._prefix + id_, Claimed(self._owner, source)
        state = self._redis.state(name)
        taken = over is not None and self._still(over, state)
        if isinstance(state, KeptOutcome):
            return self._take_up(name, source, state, taken=taken)
        if state in (None, mine) or taken:
            self._redis.write(name, mine, self._claim_s)
            return None
        return state

    def _take_up(self, name: str, source: str, kept: KeptOutcome, *, taken: bool) -> KeptOutcome:
        """Lets the record at `source` take up an event's kept outcome, if that is permitted.

        The record that the outcome names as its source is permitted. Another record is permitted
        once nobody has taken up the outcome for `own_record_s`. `taken` is True if the outcome's
        owner is dead; the dead owner is removed even if the record is not permitted. Returns the
        outcome with its present owner.
        """
        age_s = self._claim_s - self._redis.left_s(name)
        if source == kept.source or (not kept.owner and age_s >= self._own_record_s):
            kept = KeptOutcome(source, kept.outcome, self._owner)
            self._redis.write(name, kept, self._claim_s)
        elif taken:
            kept = replace(kept, owner="")
            self._redis.write(name, kept, self._claim_s)
        return kept

    def _still(self, over: Takeover, state: ClaimState | None) -> bool:
        beat = self._redis.beat(self._prefix + over.held.owner)
        return state == over.held and (over.gone or beat == over.beat)


def _claim_of(state: ClaimState | None) -> ClaimState | None:
    return state.claim if isinstance(state, KeptOutcome) else state


class MemoryRedisTexts:
    """The twin of `RedisTexts` for tests, on a `MemoryRedis`."""

    def __init__(self, redis: MemoryRedis, *, kind: str, prefix: str) -> None:
        self._redis = redis
        self._key = own_key(kind, prefix)

    def put(self, texts: Mapping[str, str]) -> None:
        self._redis.begin()
        self._all().update(texts)
        self._redis.end()

    def get(self) -> dict[str, str]:
        self._redis.begin()
        return dict(self._all())

    def remove(self, names: Iterable[str]) -> None:
        self._redis.begin()
        for name in names:
            self._all().pop(name, None)
        self._redis.end()

    def close(self) -> None:
        """Does nothing, because there is no connection."""

    def _all(self) -> dict[str, str]:
        return self._redis.texts.setdefault(self._key, {})
