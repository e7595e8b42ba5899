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
# The time for which a kept outcome waits for its own record; then any record of the event takes it.
OWN_RECORD_S = 120.0

# One script, so that one round trip carries marks and claims, in this order. Keys are not
# declared: thousands of them as arguments cost more than all the rest, and a cluster, which
# would want them, could not run the script anyway. JSON is what both sides read fastest.
_EXCHANGE = """
local prefix, beats_prefix = KEYS[1], KEYS[2]
local owner, number = ARGV[1], tonumber(ARGV[2])
local ttl, claim_ttl, own_record = ARGV[3], ARGV[4], tonumber(ARGV[5])
local ask = cjson.decode(ARGV[6])

-- A kept outcome is 'e', the owner that has taken it up or nothing, a blank, its source, a line
-- feed, and the outcome. Returns owner, source, and the rest; nothing for any other state.
local function kept(state)
  if state and state:sub(1, 1) == 'e' then return state:match('^e(%S*) ([^\\n]*)(.*)$') end
end

-- Returns the claim in a state, or the state itself: who has taken up an outcome has a claim to it.
local function claim_of(state)
  local holder, source = kept(state)
  return holder and 'c' .. holder .. ' ' .. source or state
end

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
  if claim_of(redis.call('GET', key)) == claim then
    redis.call('SET', key, ended, 'PX', claim_ttl)
  end
end
for _, release in ipairs(ask.released) do
  local key, claim, ended_too = prefix .. release[1], release[2], release[3]
  local state = redis.call('GET', key)
  if claim_of(state) == claim then
    local holder, source, outcome = kept(state)
    if holder and not ended_too then
      redis.call('SET', key, 'e ' .. source .. outcome, 'PX', claim_ttl)
    else
      redis.call('DEL', key)
    end
  end
end

local refused = {}
if #ask.ids > 0 then
  local keys = {}
  for i, id in ipairs(ask.ids) do keys[i] = prefix .. id end
  local states = redis.call('MGET', unpack(keys))
  for i, state in ipairs(states) do
    local key, mine = keys[i], owner .. ' ' .. ask.sources[i]
    if not state then  -- as nearly always
      redis.call('SET', key, 'c' .. mine, 'PX', claim_ttl)
    else
      local over, taken = ask.takeovers[tostring(i)], false
      if over and state == over.held then
        taken = over.gone or (redis.call('GET', beats_prefix .. over.owner) or '') == over.beat
      end
      local holder, source, outcome = kept(state)
      if holder then
        local waited = holder == '' and claim_ttl - redis.call('PTTL', key) >= own_record
        if waited or source == ask.sources[i] then
          state = 'e' .. mine .. outcome
          redis.call('SET', key, state, 'PX', claim_ttl)
        elseif taken then
          state = 'e ' .. source .. outcome
          redis.call('SET', key, state, 'PX', claim_ttl)
        end
      end
      if not holder and (state == 'c' .. mine or taken) then
        redis.call('SET', key, 'c' .. mine, 'PX', claim_ttl)
      else
        refused[#refused + 1] = i - 1
        refused[#refused + 1] = state
      end
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
        self,
        url: str,
        *,
        prefix: str,
        owner: str,
        ttl_s: float,
        own_record_s: float = OWN_RECORD_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Does not connect yet. Raises ValueError for an invalid URL.

        Redis keeps the outcome of a run for a worker that can publish it: for `own_record_s`
        seconds a worker with the record of that run, then one with any record of the event.
        """
        self._redis = client(url, timeout_s)
        self._script = self._redis.register_script(_EXCHANGE)
        self._keys = [prefix, own_key("beat", prefix)]
        self._owner = owner
        self._number = 0
        times_s = (ttl_s, max(ttl_s, CLAIM_S), own_record_s)
        self._times_ms = [round(each * 1000) for each in times_s]

    def exchange(self, ask: Exchange) -> Answer:
        """Marks events as done, keeps outcomes, releases and makes claims, in one round trip.

        Blocks until Redis answers. Raises `Unreachable` after the time-out, or if Redis refuses.
        Redis may then have done all, some or none of that, and the caller may repeat the call.
        """
        self._number += 1
        numbers = [self._number, *self._times_ms]
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
    """The settings of a Redis server, as far as it reports them.

    `eviction` is its maxmemory-policy. `keeps` is True if the server stores its data on disk, and
    None if it does not report that. `told` is False if this user is forbidden to read the settings.
    """

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
            "released": [(mark.id, str(mark.claim), mark.ended_too) for mark in ask.released],
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
