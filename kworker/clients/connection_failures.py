"""Reasons why a client reaches no broker, as librdkafka logs them, and what corrects each."""

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from kworker.errors import ClientRejected, Unreachable

AUDIBLE: Mapping[str, int | bool] = {"log_level": 6, "log.connection.close": True}
"""Properties with which a client logs each failure, even if the user has silenced it."""
_LINE = re.compile(r"FAIL \[[^\]]*\] \[thrd:[^\]]*\]: (.*)", re.DOTALL)
# librdkafka puts the broker's name before its words, and its own state after them.
_WHERE_AND_WHEN = re.compile(r"^\S+/\w+: | \(after \d+ms in state .*$", re.DOTALL)
_STATE = re.compile(r" \(after \d+ms in state (\w+)")


class _Rejection(NamedTuple):
    """A way in which brokers turn clients away: librdkafka's words for it, and what to correct."""

    words: re.Pattern[str]
    problem: str
    key: str
    next_step: str


_REJECTIONS = (
    _Rejection(
        re.compile(r"Request not valid in current SASL state"),
        "ask for no login",
        "kafka.security.protocol",
        "set it to what their listener speaks, or name the port of the listener with SASL",
    ),
    _Rejection(
        re.compile(r"SASL.* (authentication error|handshake failed).*"),
        "refuse the login",
        "kafka.sasl.password",
        "correct sasl.username, sasl.password or sasl.mechanism",
    ),
    _Rejection(
        re.compile(r"certificate verify failed"),
        "show a certificate that this client does not trust",
        "kafka.ssl.ca.location",
        "name the file of the authority that signed it, and the brokers by a name in it",
    ),
    _Rejection(
        re.compile(r"alert (bad certificate|certificate \w+|unknown ca)"),
        "do not trust this client's certificate",
        "kafka.ssl.certificate.location",
        "name a certificate that the brokers trust, and its key",
    ),
    _Rejection(
        re.compile(r"connecting to a PLAINTEXT broker listener"),
        "do not answer in TLS",
        "kafka.security.protocol",
        "set it to what their listener speaks, or name the port of the listener with TLS",
    ),
)
# Brokers that end close connections, too: so another reason may take the place of these.
_CLOSED = re.compile(r"Disconnected")
_CLOSED_WITHOUT_TLS = _Rejection(
    _CLOSED,
    "close the connection at the first request",
    "kafka.security.protocol",
    "if their listener asks for TLS, set ssl or sasl_ssl; else wait for them",
)
_CLOSED_WITHOUT_LOGIN = _Rejection(
    _CLOSED,
    "close the connection without a login",
    "kafka.security.protocol",
    "if their listener asks for SASL, set sasl_ssl or sasl_plaintext, and sasl.mechanism,"
    " sasl.username and sasl.password; else wait for them",
)
_CLOSED_OTHERWISE = _Rejection(
    _CLOSED,
    "close the connection before an answer",
    "kafka.security.protocol",
    "if their listener asks for TLS or SASL, set it, such as to sasl_ssl; else wait for them",
)


def _closing(line: str) -> _Rejection:
    """Returns why brokers have closed a connection (no TLS, no login), as far as `line` tells."""
    state, scheme = _STATE.search(line), line[: max(0, line.find("://"))]
    match state and state[1]:
        case "APIVERSION_QUERY" if "ssl" not in scheme:  # the first request of all
            return _CLOSED_WITHOUT_TLS
        case "UP" if "sasl" not in scheme:  # the first request after what a login would be
            return _CLOSED_WITHOUT_LOGIN
    return _CLOSED_OTHERWISE


# After so many other failures in a row, brokers do not turn the client away any more.
_OTHERS_MAX = 20


class ConnectionFailures(logging.Handler):
    """The most telling of a client's failures to connect, from the lines that the client logs.

    librdkafka tries to connect again and again, and logs each failure in other words. If a line
    says that brokers turn the client away (a rejection), lines about other failures do not replace
    it until brokers answer, or until more than 20 lines about other failures have followed it. Used
    by the thread that polls the client.
    """

    def __init__(self) -> None:
        super().__init__()
        self._words = ""
        self._closing = _CLOSED_OTHERWISE
        self._rejected = False
        self._others = 0  # failures since the rejection
        self._answered = False  # once at least
        self.logger = logging.Logger("librdkafka.connection")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if line := _LINE.fullmatch(record.getMessage()):
            words = bare_reason(line[1])
            rejected = any(each.words.search(words) for each in _REJECTIONS)
            self._others = 0 if rejected else self._others + 1
            if rejected or not self._rejected or self._others > _OTHERS_MAX:
                self._words, self._rejected = words, rejected
                self._closing = _closing(line[1])

    def begin(self) -> None:
        """Forgets, before a request, a failure that may be long over.

        Does not forget a rejection, which stays until brokers answer. If no broker has ever
        answered, does not forget that a connection was closed, either: librdkafka logs this only
        once in a while, and a connection without any answer was not closed for being idle.
        """
        closed_at_once = not self._answered and _CLOSED.search(self._words)
        if not (self._rejected or closed_at_once):
            self._words = ""

    def answered(self) -> None:
        """Forgets all failures, since brokers have answered a request."""
        self._words, self._rejected, self._answered = "", False, True

    def rejection(self, servers: str) -> ClientRejected | None:
        """Returns the error if the brokers at `servers` have turned the client away."""
        return next(filter(None, (self._error_of(each, servers) for each in _REJECTIONS)), None)

    def error(self, servers: str, timeout_s: float, otherwise: str) -> Unreachable:
        """Returns the error for a request to `servers` without an answer in time.

        `otherwise` is the reason if the client has logged none.
        """
        reason = self._words or otherwise
        return (
            self.rejection(servers)
            or self._error_of(self._closing, servers)
            or Unreachable(f"no broker of {servers} answers within {timeout_s:g} s ({reason})")
        )

    def _error_of(self, rejection: _Rejection, servers: str) -> ClientRejected | None:
        found = rejection.words.search(self._words)
        if found is None:
            return None
        problem = f"the brokers at {servers} {rejection.problem} ({found[0]})"
        return ClientRejected(problem, rejection.key, rejection.next_step)


def bare_reason(words: str) -> str:
    """Returns librdkafka's error text without the broker's name and the connection's state."""
    return _WHERE_AND_WHEN.sub("", words)
