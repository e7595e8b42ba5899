"""Redis as the checks see it: the only file that imports its library."""

from redis import Redis
from redis.exceptions import RedisError

from kworker.errors import Unreachable


def ping(url: str, *, timeout_s: float = 5.0) -> None:
    """Returns when Redis answers; raises `Unreachable` with its words, never with the URL.

    Raises ValueError for a URL that is none.
    """
    client = Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    try:
        client.ping()
    except RedisError as error:
        raise Unreachable(str(error)) from None
    finally:
        client.close()
