"""What Redis's client says, sorted by what a person does next, and without the address."""

import pytest
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from kworker.clients.redis_connection import client, errors_converted
from kworker.errors import ClientRejected, Unreachable

CANARY = "canary-5f1e"
URL = f"rediss://ann:{CANARY}@redis:6379/0"
UNTRUSTED = (
    "Error 1 connecting to redis:6379. [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed:"
    " unable to get local issuer certificate (_ssl.c:1006)."
)


def told(error: Exception) -> Unreachable:
    with pytest.raises(Unreachable) as raised, errors_converted(client(URL, 1.0)):
        raise error
    return raised.value


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            AuthenticationError("invalid username-password pair or user is disabled."),
            "Redis refuses the login (invalid username-password pair or user is disabled.)",
        ),
        (
            NoPermissionError("this user has no permissions to run the 'evalsha' command"),
            "Redis refuses a command (this user has no permissions to run the 'evalsha' command)",
        ),
        (
            ConnectionError(UNTRUSTED),
            "Redis shows a certificate that this client does not trust (certificate verify failed:"
            " unable to get local issuer certificate)",
        ),
    ],
)
def test_a_redis_that_turns_a_client_away_is_told_with_the_key(
    error: RedisError, problem: str
) -> None:
    """To start it, as for one that does not answer, would not help."""
    found = told(error)
    assert isinstance(found, ClientRejected)
    assert (found.key, found.problem) == ("idempotency.redis", problem)


@pytest.mark.parametrize(
    "error", [TimeoutError("Timeout"), ResponseError("LOADING"), ConnectionError("refused")]
)
def test_any_other_error_is_waited_for(error: RedisError) -> None:
    found = told(error)
    assert not isinstance(found, ClientRejected)
    assert str(found) == str(error)


@pytest.mark.parametrize("option", [f"no_such_option={CANARY}", f"socket_timeout={CANARY}"])
def test_a_wrong_option_is_refused_at_once_without_its_value(option: str) -> None:
    """Not at the first command, on a thread that knows only Redis's errors."""
    with pytest.raises(ValueError, match=r"option|socket_timeout") as refused:
        client(f"{URL}?{option}", 1.0)
    assert CANARY not in str(refused.value)
