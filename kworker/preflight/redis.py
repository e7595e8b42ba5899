"""Checks of the Redis that [idempotency] names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kworker.config.model import Config
from kworker.errors import ExitCode, Unreachable
from kworker.preflight.findings import Finding
from kworker.preflight.kafka import BROKER_TIMEOUT_S

if TYPE_CHECKING:
    from kworker.clients.redis import RedisServerInfo


def check_redis(config: Config) -> list[Finding]:
    """Whether Redis answers, where it is configured, and keeps what it is given."""
    if config.idempotency is None:
        return []
    from kworker.clients.redis import describe

    key = "idempotency.redis"
    try:
        server = describe(config.idempotency.redis, timeout_s=BROKER_TIMEOUT_S)
    except Unreachable as error:
        return [Finding(key, str(error), "start Redis, or correct it", ExitCode.UNREACHABLE)]
    except ValueError as error:
        return [Finding(key, str(error), "correct it")]
    return [*_unfit(key, server)]


def _unfit(key: str, server: "RedisServerInfo") -> Iterator[Finding]:
    """A Redis that forgets lets effects be repeated."""
    if server.eviction != "noeviction":
        yield Finding(
            key,
            f"maxmemory-policy is {server.eviction}: with its memory full, it would forget what"
            " is done, and effects would be repeated",
            "set it to noeviction (redis-cli config set maxmemory-policy noeviction, and in its"
            " configuration), or give kworker a Redis of its own",
        )
    if server.cluster:
        yield Finding(key, "it is a Redis Cluster, which is not supported", "name a single Redis")
    if server.keeps is False:
        yield Finding(
            key,
            "it keeps nothing on disk: restarted, it has forgotten what is done",
            "turn on appendonly, if effects must not be repeated then",
            ExitCode.OK,
        )
