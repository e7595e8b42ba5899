"""Checks of the Redis that [idempotency] names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kworker.config.model import Config
from kworker.errors import ClientRejected, ExitCode, Unreachable
from kworker.preflight.findings import Finding
from kworker.preflight.kafka import BROKER_TIMEOUT_S

if TYPE_CHECKING:
    from kworker.clients.redis import RedisServerInfo


def check_redis(config: Config) -> list[Finding]:
    """Checks that Redis, if configured, answers and is set to keep its data."""
    if config.idempotency is None:
        return []
    from kworker.clients.redis import describe

    key = "idempotency.redis"
    try:
        server = describe(config.idempotency.redis, timeout_s=BROKER_TIMEOUT_S)
    except ClientRejected as error:
        return [Finding(error.key, error.problem, error.next_step, ExitCode.UNREACHABLE)]
    except Unreachable as error:
        step = "start Redis, or correct its address in idempotency.redis"
        return [Finding(key, str(error), step, ExitCode.UNREACHABLE)]
    except ValueError as error:
        return [
            Finding(
                key, str(error), "correct the address of Redis in idempotency.redis: it is invalid"
            )
        ]
    return [*_unfit(key, server)]


def _unfit(key: str, server: "RedisServerInfo") -> Iterator[Finding]:
    if not server.told:
        yield Finding(
            key,
            "Redis does not tell this user its settings, so a start does not notice if they let it"
            " forget which events are done",
            "grant the user +info",
            ExitCode.OK,
        )
    if server.eviction != "noeviction":
        yield Finding(
            key,
            f"maxmemory-policy is {server.eviction}: when its memory is full, Redis forgets"
            " which events are done, and their effects are repeated",
            "set it to noeviction (redis-cli config set maxmemory-policy noeviction, and in its"
            " configuration), or give kworker a Redis of its own",
        )
    if server.cluster:
        yield Finding(key, "a Redis Cluster is not supported", "name a single Redis")
    if server.keeps is False:
        yield Finding(
            key,
            "Redis keeps nothing on disk: after a restart it has forgotten which events are done",
            "turn on appendonly, if their effects must not be repeated then",
            ExitCode.OK,
        )
