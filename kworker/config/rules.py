"""Rules that the model cannot express: over several keys, or over the text of a value. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from kworker.config import topic_pattern
from kworker.config.client_properties import (
    CONSUMER_DEFAULTS,
    PRODUCER_DEFAULTS,
    speaks_new_protocol,
)
from kworker.config.kafka_rules import group_protocol, properties, sasl, transactions
from kworker.config.keys import Key, nearest
from kworker.config.model import Settings
from kworker.config.topics import of_a_service
from kworker.config.validation import Problem
from kworker.config.value_types import format_size
from kworker.core.address import Address

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_EXCEPTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_BREAKER = re.compile(r"(\d{1,3})% of (\d{1,9})")
_TOKEN_LENGTH = 16
_IDEMPOTENCY_KEY = re.compile(r"json:.+|header:.+|key|" + _HANDLER.pattern)
_REDIS = re.compile(r"(redis|rediss|unix)://.+")
# Leaves room for `.retry.<delay>` and `.spark.<table>`.
_NAME_LENGTH = 150


def names(config: Settings) -> Iterator[Problem]:
    """Checks that the service's names are legal in names of topics, groups and group members."""
    if not _is_topic(config.name) or len(config.name) > _NAME_LENGTH:
        yield Problem(
            ("name",),
            f"expected at most {_NAME_LENGTH} letters, digits, dots, - or _, since it names the"
            f' group and topics, got "{config.name[:200]}"',
        )
    if not _is_topic(config.instance):
        yield Problem(
            ("instance",),
            "expected letters, digits, dots, - or _, since it becomes part of group.instance.id,"
            f' got "{config.instance}"',
        )


def source_topics(config: Settings) -> Iterator[Problem]:
    """Checks that the source topics are names, or one regular expression."""
    key: Key = ("source", "topics")
    topics = config.source.topics
    patterns = [topic for topic in topics if topic.startswith("^")]
    if patterns and len(topics) > 1:
        yield Problem(
            key, f'a regular expression must be the only entry, got "{patterns[0]}" beside others'
        )
    for pattern in patterns:
        if reason := topic_pattern.mistake(pattern):
            text = f'expected a POSIX extended regular expression, got "{pattern}": {reason}'
            yield Problem(key, text)
        elif speaks_new_protocol(config) and not topic_pattern.reaches_the_end(pattern):
            text = (
                'expected .* or $ at its end, since with group.protocol = "consumer" brokers'
                f' compare it with whole names, got "{pattern}"'
            )
            yield Problem(key, text, (("kafka",),))
    yield from _bad_topics(key, [topic for topic in topics if topic not in patterns])
    yield from _repeated(key, topics)


def handlers(config: Settings) -> Iterator[Problem]:
    """Checks that every source topic has a handler, and every handler a source topic."""
    topics = config.source.topics
    # With a pattern, topics may appear that `[handlers]` does not name.
    unserved = [topic for topic in topics if topic not in config.handlers]
    if not config.handler and unserved:
        yield Problem(
            ("handler",),
            f'missing for topic "{unserved[0]}"; give handler = "module:function"',
            (("source", "topics"), ("handlers",)),
        )
    if config.handler and not _HANDLER.fullmatch(config.handler):
        yield _not_a_handler(("handler",), config.handler)
    for topic, handler in config.handlers.items():
        if not _HANDLER.fullmatch(handler):
            yield _not_a_handler(("handlers", topic), handler)
        if not config.source.pattern and topic not in topics:
            text = f"not one of source.topics{nearest(topic, topics)}"
            yield Problem(("handlers", topic), text, (("source", "topics"),))


def _not_a_handler(key: Key, got: str) -> Problem:
    return Problem(key, f'expected "module:function" or "module:Class", got "{got}"')


def outputs(config: Settings) -> Iterator[Problem]:
    """Checks that the topics that kworker writes have legal names, and none is a source topic."""
    source: Key = ("source", "topics")
    written = {
        ("delivery", "results"): [config.delivery.results],
        ("delivery", "topics"): config.delivery.topics,
        ("dead_letter", "topic"): [config.dead_letter.topic],
    }
    for key, topics in written.items():
        yield from _bad_topics(key, topics)
        for topic in topics:
            if _is_source(config, topic):
                text = f'"{topic}" is a source topic: the service would read its own output'
                yield Problem(key, text, (source, ("name",)))
    if config.delivery.results == config.dead_letter.topic:
        yield Problem(("dead_letter", "topic"), "the same topic as delivery.results; use another")
    yield from _repeated(("delivery", "topics"), config.delivery.topics)


def _is_source(config: Settings, topic: str) -> bool:
    pattern = config.source.pattern
    if not pattern:
        return topic in config.source.topics
    if of_a_service(topic) or topic_pattern.mistake(pattern):
        return False
    return re.match(pattern, topic) is not None


def retries(config: Settings) -> Iterator[Problem]:
    """Checks that the exception types in `retry.never` are names or dotted paths."""
    for name in config.retry.never:
        if not _EXCEPTION.fullmatch(name):
            text = f'expected an exception\'s name or dotted path, got "{name}"'
            yield Problem(("retry", "never"), text)


def breaker(config: Settings) -> Iterator[Problem]:
    """Checks that the dead-letter limit is written like "50% of 200", or is "" for off."""
    text = config.dead_letter.breaker
    match = _BREAKER.fullmatch(text)
    if text and not (match and 1 <= int(match[1]) <= 100 and int(match[2]) >= 1):
        expected = f'expected "P% of N" such as "50% of 200", or "" for off, got "{text}"'
        yield Problem(("dead_letter", "breaker"), expected)


def idempotency(config: Settings) -> Iterator[Problem]:
    """Checks the spelling of Redis's address and of the key that identifies an event."""
    if config.idempotency is None:
        return
    if not _is_redis_address(config.idempotency.redis):
        # The value is not shown: it may hold a password, of which a part may look like a port.
        text = (
            "expected redis://host:port/db, rediss://… or unix://…; in a user or password, write"
            " each special character as % and its code, such as %2F for /"
        )
        yield Problem(("idempotency", "redis"), text)
    if not _IDEMPOTENCY_KEY.fullmatch(config.idempotency.key):
        yield Problem(
            ("idempotency", "key"),
            "expected json:PATH, header:NAME, key or module:function,"
            f' got "{config.idempotency.key}"',
        )


def _is_redis_address(url: str) -> bool:
    """Returns True for a Redis URL from which the client reads the whole user and password.

    An unescaped special character in them, such as `/` or `#`, would end them too early.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    rest = parts.fragment if parts.scheme == "unix" else parts.path + parts.query + parts.fragment
    return bool(_REDIS.fullmatch(url)) and port != 0 and "@" not in rest


def console(config: Settings) -> Iterator[Problem]:
    """Checks the console's address, and that a token guards it where other hosts reach it."""
    text, token = config.console.listen, config.console.token
    if token and not (len(token) >= _TOKEN_LENGTH and token.isascii() and token.isprintable()):
        expected = f"expected at least {_TOKEN_LENGTH} characters, all of them printable ASCII"
        yield Problem(("console", "token"), expected)
    if not text:
        return
    try:
        address = Address.parse(text)
    except ValueError:
        expected = (
            'expected an IP address (or localhost) and a port, such as "127.0.0.1:8321",'
            f' or "" for off, got "{text}"'
        )
        yield Problem(("console", "listen"), expected)
        return
    if not address.ip.is_loopback and not token:
        yield Problem(
            ("console", "token"),
            f"must be set, since other hosts reach {text}, for example token ="
            ' { file = "/etc/kworker/console-token" }; or listen on 127.0.0.1',
            (("console", "listen"),),
        )


def log_levels(config: Settings) -> Iterator[Problem]:
    """Checks that `log.levels` names neither the root logger nor kworker's own loggers."""
    for name in config.log.levels:
        if name in ("", "root") or name.split(".")[0] == "kworker":
            yield Problem(
                ("log", "levels", name),
                "expected the name of a logger of your code or of a library; log.level is the level"
                f' of all others, and of kworker itself, got "{name}"',
                (("log", "level"),),
            )


WORKER_BYTES = 120_000_000
"""Memory of a worker without records: interpreter, libraries, and handlers of usual size."""


class Ceiling(NamedTuple):
    """The most memory that one worker can use.

    `total` is the number of bytes. `parts` shows as text how `total` is added up.
    """

    total: int
    parts: str


def memory_ceiling(config: Settings) -> Ceiling | None:
    """Returns the most bytes that one worker can use; None if a client's queue size is no number.

    With `retry.mode = "hold"`, records wait for their retry in memory. For these records, the
    result includes `retry.held_bytes`, which limits them.
    """
    kafka = config.kafka
    consumer = {**CONSUMER_DEFAULTS, **kafka.common, **kafka.consumer}
    producer = {**PRODUCER_DEFAULTS, **kafka.common, **kafka.producer}
    try:
        prefetch = int(consumer["queued.max.messages.kbytes"]) * 1024
        queue = int(producer["queue.buffering.max.kbytes"]) * 1024
    except ValueError:
        return None
    held = config.retry.held_bytes if config.retry.mode == "hold" else 0
    taken = config.workers.in_flight_bytes
    total = WORKER_BYTES + 2 * (taken + held + prefetch) + queue
    parts = [f"in_flight_bytes {format_size(taken)}", f"prefetch {format_size(prefetch)}"]
    parts[1:1] = [f"held_bytes {format_size(held)}"] if held else []
    queued = f"the producer's queue {format_size(queue)}"
    return Ceiling(total, f"120 MB + 2 × ({' + '.join(parts)}) + {queued}")


def memory(config: Settings) -> Iterator[Problem]:
    """Checks that a worker cannot need more than `workers.memory`, above which it is replaced."""
    ceiling = memory_ceiling(config)
    if ceiling and ceiling.total > config.workers.memory:
        yield Problem(
            ("workers", "memory"),
            f"{format_size(config.workers.memory)} is less than the"
            f" {-(-ceiling.total // (1 << 20))}MiB that a worker may need"
            f" ({ceiling.parts});"
            " raise workers.memory, or lower workers.in_flight_bytes",
            (("workers", "in_flight_bytes"), ("kafka",), ("retry",)),
        )


def _is_topic(name: str) -> bool:
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def _bad_topics(key: Key, topics: list[str]) -> Iterator[Problem]:
    for topic in topics:
        if not _is_topic(topic):
            text = f'expected a topic\'s name (letters, digits, dots, - or _), got "{topic}"'
            yield Problem(key, text, (("name",),))


def _repeated(key: Key, items: list[str]) -> Iterator[Problem]:
    for item, count in Counter(items).items():
        if count > 1:
            yield Problem(key, f'"{item}" is listed {count} times; keep one')


RULES: tuple[Callable[[Settings], Iterator[Problem]], ...] = (
    names,
    source_topics,
    handlers,
    outputs,
    properties,
    sasl,
    group_protocol,
    retries,
    breaker,
    idempotency,
    console,
    log_levels,
    memory,
    transactions,
)
