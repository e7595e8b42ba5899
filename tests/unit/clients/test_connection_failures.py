"""Why no broker answers, in one line that stays the same: from words of librdkafka 2.16."""

import logging

import pytest

from kworker.clients.connection_failures import ConnectionFailures
from kworker.errors import ClientRejected, ExitCode

SERVERS = "broker:9093"
VERIFY = "error:0A000086:SSL routines::certificate verify failed"
LOGIN = (
    "SASL authentication error: Authentication failed during authentication due to invalid"
    " credentials with SASL mechanism SCRAM-SHA-512"
)
MECHANISM = (
    "SASL SCRAM-SHA-256 mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's"
    " supported mechanisms: SCRAM-SHA-512"
)
REFUSED = "Connect to ipv4#127.0.0.1:9093 failed: Connection refused"
RESET = "Disconnected: connection reset by peer"


def told(*words: str, otherwise: str = "Local: Broker transport failure") -> str:
    """The error's text, after the client has logged these failures."""
    return str(heard(*words).error(SERVERS, 5.0, otherwise))


def heard(*words: str) -> ConnectionFailures:
    failures = ConnectionFailures()
    for number, each in enumerate(words):
        log(failures, f"FAIL [rdkafka#producer-{number}] [thrd:ssl://{SERVERS}/bootstrap]", each)
    return failures


def log(
    failures: ConnectionFailures,
    begin: str,
    words: str,
    *,
    scheme: str = "ssl://",
    state: str = "SSL_HANDSHAKE",
) -> None:
    when = f"(after 5ms in state {state}, 4 identical error(s) suppressed)"
    failures.logger.log(logging.ERROR, "%s: %s%s/1: %s %s", begin, scheme, SERVERS, words, when)


@pytest.mark.parametrize(
    ("words", "key", "problem"),
    [
        (LOGIN, "kafka.sasl.password", f"refuse the login ({LOGIN})"),
        (MECHANISM, "kafka.sasl.password", f"refuse the login ({MECHANISM})"),
        (
            f"SSL handshake failed: {VERIFY}: broker certificate could not be verified, verify that"
            " ssl.ca.location is correctly configured or root CA certificates are installed",
            "kafka.ssl.ca.location",
            "show a certificate that this client does not trust (certificate verify failed)",
        ),
        (
            "Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required: SSL"
            " alert number 116",
            "kafka.ssl.certificate.location",
            "do not trust this client's certificate (alert certificate required)",
        ),
        (
            "SSL handshake failed: error:0A000412:SSL routines::sslv3 alert bad certificate: SSL"
            " alert number 42",
            "kafka.ssl.certificate.location",
            "do not trust this client's certificate (alert bad certificate)",
        ),
        (
            "SASL SCRAM-SHA-512 mechanism handshake failed: Broker: Request not valid in current"
            " SASL state: broker's supported mechanisms: ",
            "kafka.security.protocol",
            "ask for no login (Request not valid in current SASL state)",
        ),
        (
            f"SSL handshake failed: {RESET}: connecting to a PLAINTEXT broker listener?",
            "kafka.security.protocol",
            "do not answer in TLS (connecting to a PLAINTEXT broker listener)",
        ),
        (
            RESET,
            "kafka.security.protocol",
            "close the connection before an answer (Disconnected)",
        ),
    ],
)
def test_brokers_that_turn_a_client_away_are_told_with_the_key(
    words: str, key: str, problem: str
) -> None:
    """They answer; so it is not their address that must be corrected."""
    error = heard(words).error(SERVERS, 5.0, "no reason")
    assert isinstance(error, ClientRejected)
    assert (error.key, error.problem) == (key, f"the brokers at {SERVERS} {problem}")
    assert str(error) == f"{key}: {error.problem}; {error.next_step}"
    assert error.exit_code is ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("scheme", "state", "problem", "asks"),
    [
        ("", "APIVERSION_QUERY", "at the first request", "asks for TLS, set ssl or sasl_ssl;"),
        ("sasl_plaintext://", "APIVERSION_QUERY", "at the first request", "asks for TLS, set ssl"),
        ("", "UP", "without a login", "asks for SASL, set sasl_ssl or sasl_plaintext, and sasl.me"),
        ("ssl://", "UP", "without a login", "asks for SASL, set sasl_ssl or sasl_plaintext, and"),
        ("ssl://", "APIVERSION_QUERY", "before an answer", "asks for TLS or SASL, set it"),
        ("sasl_ssl://", "UP", "before an answer", "asks for TLS or SASL, set it"),
    ],
)
def test_a_closed_connection_tells_by_its_state_what_to_set(
    scheme: str, state: str, problem: str, asks: str
) -> None:
    """librdkafka 2.16 has no hint for it any more."""
    failures = ConnectionFailures()
    words = "Disconnected: connection closed by peer: receive 0 after POLLIN"
    log(failures, "FAIL [rdkafka#producer-1] [thrd:broker]", words, scheme=scheme, state=state)
    error = failures.error(SERVERS, 5.0, "no reason")
    assert isinstance(error, ClientRejected)
    close = f"the brokers at {SERVERS} close the connection {problem} (Disconnected)"
    assert (error.key, error.problem) == ("kafka.security.protocol", close)
    assert error.next_step.startswith(f"if their listener {asks}")
    assert error.next_step.endswith("; else wait for them")


@pytest.mark.parametrize("words", [VERIFY, f"SSL handshake failed: {VERIFY}: broker certificate"])
def test_the_line_is_the_same_however_the_client_says_it(words: str) -> None:
    """It has two ways by chance: a start that waits would log a line at each check."""
    assert told(words) == told(VERIFY)


@pytest.mark.parametrize(
    "order", [(MECHANISM, RESET, REFUSED), (RESET, MECHANISM), (REFUSED, MECHANISM, RESET)]
)
def test_of_several_failures_the_one_that_names_a_key_is_told(order: tuple[str, ...]) -> None:
    """One host may have two addresses, and nobody at one of them."""
    assert told(*order) == told(MECHANISM)


def test_a_broker_that_ends_is_told_as_gone() -> None:
    """It closes its connections first."""
    line = f"no broker of {SERVERS} answers within 5 s ({REFUSED})"
    assert told(RESET, REFUSED) == told(REFUSED) == line


def test_without_a_reason_the_errors_own_is_told() -> None:
    line = f"no broker of {SERVERS} answers within 5 s (Local: Timed out)"
    assert told(otherwise="Local: Timed out") == line


def test_a_rejection_counts_until_brokers_answer() -> None:
    """The client tries again more and more rarely, so a request may end before the next try."""
    failures = heard(LOGIN)
    failures.begin()
    assert failures.rejection(SERVERS) is not None
    failures.answered()
    assert failures.rejection(SERVERS) is None


def test_an_outage_after_a_rejection_is_told_in_the_end() -> None:
    failures = heard(LOGIN, *21 * [REFUSED])
    assert failures.rejection(SERVERS) is None
    assert REFUSED in str(failures.error(SERVERS, 5.0, ""))


def test_a_connection_that_idled_out_before_a_request_does_not_count() -> None:
    """Its broker closed it, long ago."""
    failures = heard()
    failures.answered()
    log(failures, "FAIL [rdkafka#producer-1] [thrd:main]", RESET)
    failures.begin()
    assert str(failures.error(SERVERS, 5.0, "Local: Timed out")).endswith(" (Local: Timed out)")


def test_a_connection_closed_without_answer_counts_for_all_requests() -> None:
    """librdkafka logs it once, perhaps before the first request, and then not for half a minute."""
    failures = heard(RESET)
    failures.begin()
    assert isinstance(failures.error(SERVERS, 5.0, "Local: Timed out"), ClientRejected)


def test_other_lines_of_the_client_are_no_failures() -> None:
    failures = heard(REFUSED)
    log(failures, "CONFWARN [rdkafka#producer-9] [thrd:app]", "certificate verify failed")
    assert REFUSED in str(failures.error(SERVERS, 5.0, ""))
