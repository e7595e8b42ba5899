"""The requests that kworker sends to Redis. Redis Cluster is not supported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from kworker.clients.redis_connection import client, errors_converted
from kworker.core.claim import Answer, Exchange, KeptOutcome, state_of

TIMEOUT_S = 2.0  # the longest that a call may block its thread
# A claim is taken over from a dead owner, not released by time; it only must not stay for ever.
CLAIM_S = 30 * 86_400.0

# One script, so that one round trip carries marks and claims, in this order. Keys are not
# declared: thousands of them as arguments cost more than all the rest, and a cluster, which
# would want them, could not run the script anyway. JSON is what both sides read fastest.
_EXCHANGE = """
local prefix, beats_prefix = KEYS[1], KEYS[2]
local owner, number = ARGV[1], tonumber(ARGV[2])
local ttl, claim_ttl = ARGV[3], ARGV[4]
local ask = cjson.decode(ARGV[5])

-- A call that timed out may come later than its repetition: then it is refused.
local beat = beats_prefix .. owner
local last = redis.call('GET', beat)
if last and tonumber(last) > number then
  return redis.error_reply('LATE: request ' .. number .. ' of this process is refused,'
    .. ' because its later request ' .. last .. ' is done already')
end
redis.call('SET', beat, number, 'PX', claim_ttl)

for _, id in ipairs(ask.done) do redis.call('SET', prefix .. id, 'd', 'PX', ttl) end
for _, mark in ipairs(ask.ended) do
  local key, claim, ended = prefix .. mark[1], mark[2], mark[3]
  if redis.call('GET', key) == claim then redis.call('SET', key, ended, 'PX', claim_ttl) end
end
for _, release in ipairs(ask.released) do
  local key, claim, ended = prefix .. release[1], release[2], release[3]
  local state = redis.call('GET', key)
  if state and (state == claim or (ended and state:sub(1, #ended) == ended)) then
    redis.call('DEL', key)
  end
end

local refused = {}
if #ask.ids > 0 then
  local keys = {}
  for i, id in ipairs(ask.ids) do keys[i] = prefix .. id end
  local states = redis.call('MGET', unpack(keys))
  for i, state in ipairs(states) do
    local mine = 'c' .. owner .. ' ' .. ask.sources[i]
    local over = ask.takeovers[tostring(i)]
    local free = not state or state == mine
    if over and state == over.held then
      free = over.gone or (redis.call('GET', beats_prefix .. over.owner) or '') == over.beat
    end
    if free then
      redis.call('SET', keys[i], mine, 'PX', claim_ttl)
    else
      refused[#refused + 1] = i - 1
      refused[#refused + 1] = state
    end
  end
end

local beats = {}
for i, name in ipairs(ask.watched) do beats[i] = redis.call('GET', beats_prefix .. name) end
return {refused, beats}
"""


def own_key(kind: str, prefix: str) -> str:
    """Returns a Redis key for kworker's own data of this `kind`.

    It can never be an event's key: it does not begin with `prefix`, and every event's key does.
    """
    own = f"kworker-own:{kind}:{prefix}"
    return own if not own.startswith(prefix) else f"own-{own}"


class RedisClaims:
    """Claims events for one worker process, and marks them as done, in Redis.

    Used by one thread. The process is the `owner` of its claims. It keeps a claim until it marks
    the event as done, releases the claim, or is found dead by another process. Every call to Redis
    counts as its heartbeat.
    """

    def __init__(
        self, url: str, *, prefix: str, owner: str, ttl_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Does not connect yet. Raises ValueError for an invalid URL."""
        self._redis = client(url, timeout_s)
        self._script = self._redis.register_script(_EXCHANGE)
        self._keys = [prefix, own_key("beat", prefix)]
        self._owner = owner
        self._number = 0
        self._lives_ms = (round(ttl_s * 1000), round(max(ttl_s, CLAIM_S) * 1000))

    def exchange(self, ask: Exchange) -> Answer:
        """Marks events as done, releases claims and makes new ones, all in one round trip.

        Blocks until Redis answers. Raises `Unreachable` after the time-out, or if Redis refuses.
        Redis may then have done all, some or none of that, and the caller may repeat the call.
        """
        self._number += 1
        numbers = [self._number, *self._lives_ms]
        with errors_converted(self._redis):
            return _decode_answer(
                ask, *self._script(self._keys, [self._owner, *numbers, _encode(ask)])
            )

    def close(self) -> None:
        """Ends the connection."""
        self._redis.close()


class RedisTexts:
    """Texts of one kind, by name, that all instances of a service share. Used by one thread.

    With the kind "suspects", each text describes a record that may have killed a process, and its
    name is the record's source position. The texts are in the caller's format. Each call blocks for
    a round trip, may raise `Unreachable`, and may be repeated.
    """

    def __init__(self, url: str, *, kind: str, prefix: str, timeout_s: float = TIMEOUT_S) -> None:
        """Does not connect yet. Raises ValueError for an invalid URL."""
        self._redis = client(url, timeout_s)
        self._key = own_key(kind, prefix)

    def put(self, texts: Mapping[str, str]) -> None:
        """Adds texts, or replaces those with the same names."""
        with errors_converted(self._redis):
            if fields := [word for each in texts.items() for word in each]:
                self._redis.hset(self._key, items=fields)

    def get(self) -> dict[str, str]:
        """Returns all texts by name."""
        with errors_converted(self._redis):
            found = self._redis.hgetall(self._key)
            return {_decoded(name): _decoded(text) for name, text in found.items()}

    def remove(self, names: Iterable[str]) -> None:
        """Removes the texts with these names."""
        with errors_converted(self._redis):
            if gone := list(names):
                self._redis.hdel(self._key, *gone)

    def close(self) -> None:
        """Ends the connection."""
        self._redis.close()


@dataclass(frozen=True, slots=True)
class RedisServerInfo:
    """The settings of a Redis server, as far as it reports them."""

    eviction: str  # maxmemory-policy
    cluster: bool
    keeps: bool | None  # on disk; None: not reported
    told: bool = True  # False: this user may not read the settings


def describe(url: str, *, timeout_s: float = 5.0) -> RedisServerInfo:
    """Returns the settings of a Redis server.

    Raises `Unreachable` with Redis's error text, but without the URL, which may hold a password;
    `ClientRejected` if Redis does not let this user in. Raises ValueError for an invalid URL.
    """
    redis = client(url, timeout_s)
    try:
        with errors_converted(redis):
            try:
                info: dict[str, Any] = redis.info("everything")
            except NoPermissionError:
                return RedisServerInfo("noeviction", cluster=False, keeps=None, told=False)
            return RedisServerInfo(
                eviction=str(info.get("maxmemory_policy", "noeviction")),
                cluster=bool(info.get("cluster_enabled")),
                keeps=True if info.get("aof_enabled") else _saves(redis),
            )
    finally:
        redis.close()


def _saves(redis: "Redis") -> bool | None:
    """Returns True if Redis writes snapshots, False if not.

    Returns None if Redis does not reveal the setting; hosted servers do not reveal it.
    """
    try:
        return bool(redis.config_get("save").get("save"))
    except ResponseError:
        return None


def _encode(ask: Exchange) -> bytes:
    """Encodes a request as JSON for the Lua script.

    Claims are encoded as the texts that Redis stores, because the script compares them with those.
    """
    takeovers = {
        str(index + 1): {
            "held": str(over.held),
            "owner": over.held.owner,
            "beat": "" if over.beat is None else str(over.beat),
            "gone": over.gone,
        }
        for index, over in ask.takeovers.items()
    }
    return orjson.dumps(
        {
            "done": ask.done,
            "ended": [
                (mark.id, str(mark.claim), str(KeptOutcome(mark.claim.source, mark.outcome)))
                for mark in ask.ended
            ],
            "released": [
                (
                    mark.id,
                    str(mark.claim),
                    mark.ended_too and str(KeptOutcome(mark.claim.source, "")),
                )
                for mark in ask.released
            ],
            "ids": ask.ids,
            "sources": ask.sources,
            "takeovers": takeovers,
            "watched": ask.watched,
        }
    )


def _decode_answer(
    ask: Exchange, refused: Sequence[int | bytes], beats: Sequence[bytes | None]
) -> Answer:
    """Decodes the answer of the Lua script.

    `refused` is a flat list. It has two items for each event that could not be claimed: the event's
    index in `ask.ids`, and the state that Redis has stored. `beats` has the last heartbeat of each
    owner in `ask.watched`.
    """
    states = zip(refused[::2], refused[1::2], strict=True)
    found = zip(ask.watched, beats, strict=True)
    return Answer(
        {int(index): state_of(_decoded(state)) for index, state in states},
        {owner: None if beat is None else int(beat) for owner, beat in found},
    )


def _decoded(answer: object) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
