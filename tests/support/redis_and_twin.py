"""Two ways to the same face: a real Redis and its twin in memory, as the contract needs them."""

import itertools
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from redis import Redis

from kworker.clients.memory.redis import MemoryRedis, MemoryRedisClaims, MemoryRedisTexts
from kworker.clients.redis import OWN_RECORD_S, RedisClaims, RedisTexts
from kworker.sandbox.redis import Redis as Server
from kworker.worker.idempotency.claim_thread import Claims
from kworker.worker.quarantine.shared_suspects import Storage
from tests.support.waiting import eventually

TTL_S = 60.0


class Store(Protocol):
    """What one contract test asks of Redis."""

    def claims(
        self, owner: str, ttl_s: float = TTL_S, own_record_s: float = OWN_RECORD_S
    ) -> Claims: ...
    def texts(self, kind: str) -> Storage: ...
    def flush(self) -> None: ...
    def trouble(self, kind: str) -> "contextmanager[None]": ...


class TwinStore:
    """In memory."""

    def __init__(self) -> None:
        self.redis = MemoryRedis()

    def claims(
        self, owner: str, ttl_s: float = TTL_S, own_record_s: float = OWN_RECORD_S
    ) -> MemoryRedisClaims:
        return MemoryRedisClaims(
            self.redis, prefix="test:", owner=owner, ttl_s=ttl_s, own_record_s=own_record_s
        )

    def texts(self, kind: str) -> MemoryRedisTexts:
        return MemoryRedisTexts(self.redis, kind=kind, prefix="test:")

    def flush(self) -> None:
        self.redis.flush()

    @contextmanager
    def trouble(self, kind: str) -> Iterator[None]:
        setattr(self.redis, kind, True)
        yield
        setattr(self.redis, kind, False)


class RealStore:
    """A server that a test may break; each test has a prefix of its own."""

    def __init__(self, server: "OwnServer") -> None:
        self._server = server
        self.prefix = f"test-{uuid.uuid4().hex[:8]}:"
        self._clients: list[RedisClaims | RedisTexts] = []
        self._names = itertools.count()

    def claims(
        self, owner: str, ttl_s: float = TTL_S, own_record_s: float = OWN_RECORD_S
    ) -> RedisClaims:
        made = RedisClaims(
            self._server.url,
            prefix=self.prefix,
            owner=owner,
            ttl_s=ttl_s,
            own_record_s=own_record_s,
            timeout_s=0.5,
        )
        self._clients.append(made)
        return made

    def texts(self, kind: str) -> RedisTexts:
        made = RedisTexts(self._server.url, kind=kind, prefix=self.prefix, timeout_s=0.5)
        self._clients.append(made)
        return made

    def flush(self) -> None:
        """As a restart without persistence: the scripts are gone, too."""
        self._server.admin.flushall()
        self._server.admin.script_flush()

    def trouble(self, kind: str) -> "contextmanager[None]":
        return {
            "away": self._server.stopped,
            "readonly": self._server.readonly,
            "full": self._server.full,
        }[kind]()

    def end(self) -> None:
        for client in self._clients:
            client.close()


class OwnServer:
    """A Redis process of the tests' own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        server = Server(folder, port)
        server.prepare()
        self._process = subprocess.Popen(server.command(), stdout=subprocess.DEVNULL)
        self.admin = Redis.from_url(self.url)
        eventually(server.answers, what="redis answers")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It keeps its connections, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)
        yield
        os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def readonly(self) -> Iterator[None]:
        """A replica, of nobody."""
        self.admin.replicaof("127.0.0.1", "1")
        yield
        self.admin.replicaof("NO", "ONE")

    @contextmanager
    def full(self) -> Iterator[None]:
        self.admin.config_set("maxmemory", "1")
        yield
        self.admin.config_set("maxmemory", "0")

    def end(self) -> None:
        self.admin.close()
        self._process.terminate()
        self._process.wait(30)
