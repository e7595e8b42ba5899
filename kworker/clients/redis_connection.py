"""The connection to Redis: its client, and what the client's errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from kworker.errors import ClientRejected, Unreachable

_KEY = "idempotency.redis"
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in the words of Python's TLS


def client(url: str, timeout_s: float) -> "Redis":
    """Creates a client that never retries by itself, because its callers handle failures.

    Raises ValueError for an invalid URL, without quoting the URL.
    """
    redis = Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    pool = redis.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)  # it connects at its first command
    except TypeError:
        raise ValueError("the URL has an option that Redis's Python client does not know") from None
    return redis


@contextmanager
def errors_converted(redis: "Redis") -> Iterator[None]:
    """Raises `Unreachable` in place of the library's errors.

    Raises `ClientRejected` instead if Redis answers, but does not let this client in.
    """
    try:
        yield
    except (RedisError, ValueError) as error:
        # An answer still on its way must not be taken for the next one; and a replica
        # that has become read-only is found again under the name of the new master.
        redis.connection_pool.disconnect()
        words = " ".join(str(error).split()) or type(error).__name__
        raise _rejection(error, words) or Unreachable(words) from None


def _rejection(error: Exception, words: str) -> ClientRejected | None:
    """Returns a ClientRejected if Redis answers, but does not let this client in; else None."""
    if isinstance(error, AuthenticationError):
        step = "correct the user and the password in it"
        return ClientRejected(f"Redis refuses the login ({words})", _KEY, step)
    if isinstance(error, NoPermissionError):
        step = "grant its user the commands and keys that SECURITY.md lists"
        return ClientRejected(f"Redis refuses a command ({words})", _KEY, step)
    if _UNTRUSTED in words:
        reason = words[words.index(_UNTRUSTED) + len(_UNTRUSTED) + 2 :].partition(" (_ssl.c")[0]
        problem = f"Redis shows a certificate that this client does not trust ({reason})"
        step = "add ssl_ca_certs=FILE to its options, and name Redis as its certificate does"
        return ClientRejected(problem, _KEY, step)
    return None
