"""Every commit that a group ever made, decoded from Kafka's own topic of them."""

import struct
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from tests.support.encoding import Reader
from tests.support.kafka import TIMEOUT_S, messages_of
from tests.support.ledgers import At
from tests.support.maps import named_beyond

TOPIC = "__consumer_offsets"
KEY_VERSIONS = (0, 1)  # of an offset; greater ones are keys of other things
VALUE_VERSIONS = (3, 4)


class Commit(NamedTuple):
    """One position that the group coordinator accepted, in the order of its log."""

    at: At
    position: int
    metadata: str
    time_ms: int

    @property
    def beyond(self) -> list[range]:
        """Offsets beyond the position that its map says are done."""
        return named_beyond(self.position, self.metadata)


def history(bootstrap: str, group: str, *, isolation: str = "read_uncommitted") -> list[Commit]:
    """The commits of one group; none was compacted away, for its segment is the active one.

    With "read_committed" those of aborted transactions are not among them.
    """
    found = []
    partition = partition_of(bootstrap, group)
    for message in messages_of(bootstrap, TOPIC, partition, isolation=isolation):
        at = decode_key(message.key(), group)
        if at is not None and message.value() is not None:
            found.append(decode_value(at, message.value()))
    return found


def partition_of(bootstrap: str, group: str) -> int:
    """The partition of the topic in which all of a group is."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=TIMEOUT_S)
    return abs(java_hash(group)) % len(topics.topics[TOPIC].partitions)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, of ASCII, by which a group's coordinator is found."""
    found = 0
    for byte in text.encode("ascii"):
        found = (31 * found + byte) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def decode_key(key: bytes, group: str) -> At | None:
    """The partition that the key is about; None for another group's, or another thing's."""
    reader = Reader(key)
    if reader.number("h") not in KEY_VERSIONS or reader.text() != group:
        return None
    return reader.text(), reader.number("i")


def decode_value(at: At, value: bytes) -> Commit:
    """Version 3, and 4, whose text has a compact length and which ends with tagged fields."""
    (version,) = struct.unpack_from(">h", value)
    assert version in VALUE_VERSIONS, f"offsets of version {version} are not known here"
    reader = Reader(value, compact=version == 4)
    reader.skip("h")
    position, _epoch = reader.number("q"), reader.number("i")
    return Commit(at, position, reader.text(), reader.number("q"))
