"""Translates `[kafka]`, which librdkafka reads, into properties of Spark's Java client."""

import json
from collections.abc import Iterable, Mapping

from kworker.clients.java_security import Value, security_properties

# Spelled alike and meaning the same on both sides.
_SAME = (
    "bootstrap.servers",
    "client.rack",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "socket.connection.setup.timeout.ms",
)
_RENAMED = {"metadata.broker.list": "bootstrap.servers"}


def source_options(
    common: Mapping[str, Value], topic: str, starting: str = "earliest"
) -> dict[str, str]:
    """The options of Spark's Kafka source. A query without a checkpoint begins at `starting`.

    Reads certificate files. Raises ConfigError when a file cannot be read, or when Java's client
    has no counterpart of a security property. The options hold secrets, and must not get into a
    command line.
    """
    client = client_properties(common)
    return {
        "subscribe": topic,
        "startingOffsets": starting,
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        **{f"kafka.{name}": value for name, value in client.items()},
        "kafka.isolation.level": "read_committed",
    }


_EARLIEST = -2  # as Spark spells it


def starting_offsets(topic: str, start: Mapping[int, int], partitions: Iterable[int]) -> str:
    """Spark's JSON for `startingOffsets`; a partition not in `start` is read from its beginning."""
    return json.dumps({topic: {str(part): start.get(part, _EARLIEST) for part in partitions}})


def ending_offsets(topic: str, end: Mapping[int, int]) -> str:
    """Spark's option `endingOffsets`, in JSON, with the end of a batch in each partition."""
    return json.dumps({topic: {str(part): at for part, at in end.items()}})


def client_properties(common: Mapping[str, Value]) -> dict[str, str]:
    """Translates librdkafka's properties into those of Java's client.

    Leaves out the properties for which kworker knows no counterpart. Raises ConfigError if one of
    these is for security.
    """
    given = {_RENAMED.get(name, name): value for name, value in common.items()}
    same = {name: str(given[name]) for name in _SAME if name in given}
    return {**same, **security_properties(common)}
