"""Every commit that a group ever made, decoded from Kafka's own topic of them."""

import struct
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from tests.harness.kafka import TIMEOUT_S, messages_of
from tests.harness.ledgers import At
from tests.harness.maps import named_beyond

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
    partition = _partition_of(bootstrap, group)
    for message in messages_of(bootstrap, TOPIC, partition, isolation=isolation):
        at = decode_key(message.key(), group)
        if at is not None and message.value() is not None:
            found.append(decode_value(at, message.value()))
    return found


def _partition_of(bootstrap: str, group: str) -> int:
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
    (version,) = struct.unpack_from(">h", key)
    if version not in KEY_VERSIONS:
        return None
    name, place = _string(key, 2)
    topic, place = _string(key, place)
    (partition,) = struct.unpack_from(">i", key, place)
    return (topic, partition) if name == group else None


def decode_value(at: At, value: bytes) -> Commit:
    """Version 3, and 4, whose text has a compact length and which ends with tagged fields."""
    (version,) = struct.unpack_from(">h", value)
    assert version in VALUE_VERSIONS, f"offsets of version {version} are not known here"
    position, _epoch = struct.unpack_from(">qi", value, 2)
    read_text = _string if version == 3 else _compact_string
    metadata, place = read_text(value, 14)
    (time_ms,) = struct.unpack_from(">q", value, place)
    return Commit(at, position, metadata, time_ms)


def _string(data: bytes, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, place)
    return data[place + 2 : place + 2 + length].decode(), place + 2 + length


def _compact_string(data: bytes, place: int) -> tuple[str, int]:
    """Its length plus one, seven bits a byte, the lowest first."""
    length = shift = 0
    while True:
        byte = data[place]
        place += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return data[place : place + length - 1].decode(), place + length - 1
