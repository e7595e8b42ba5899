"""Who committed what, and who had the partition then: Kafka's own logs, batch by batch."""

import base64
import struct
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tests.support import history
from tests.support.encoding import Reader, without_host
from tests.support.history import Commit, decode_key, decode_value
from tests.support.kafka import TIMEOUT_S, messages, messages_of
from tests.support.ledgers import At

IDS = "__transaction_state"
GENERATION, MEMBER, CURRENT = 2, 5, 8  # versions of keys; the last two are KIP-848's
BATCH_HEADER_BYTES = 61


class Accepted(NamedTuple):
    """A commit that the coordinator took, be its transaction committed or not.

    The broker puts it into its log when it takes it, so what is before it there was before.
    """

    commit: Commit
    author: str  # the transactional id; "" of a commit that was in no transaction
    owner: str  # the client whose member had the partition; "" if nobody had it


class Batch(NamedTuple):
    """What the header of a batch of records tells."""

    first: int
    producer: int


def accepted(bootstrap: str, data: Path, group: str) -> list[Accepted]:
    """Every commit of a group, in the order of the log; `data` is the folder of its broker."""
    partition = history.partition_of(bootstrap, group)
    batches = list(_batches(data / f"{history.TOPIC}-{partition}"))
    firsts = [batch.first for batch in batches]
    ids = _transactional_ids(bootstrap)
    members = _Members(_topic_names(bootstrap))
    found = []
    for message in messages_of(bootstrap, history.TOPIC, partition):
        key, value = message.key(), message.value()
        at = decode_key(key, group)
        if at is None:
            members.learn(group, key, value)
        elif value is not None:
            producer = batches[bisect_right(firsts, message.offset()) - 1].producer
            commit = decode_value(at, value)
            found.append(Accepted(commit, ids.get(producer, ""), members.owner(at)))
    return found


def owners(bootstrap: str, group: str) -> dict[At, str]:
    """Who has which partition by now, as the group's log tells."""
    members = _Members(_topic_names(bootstrap))
    for message in messages_of(bootstrap, history.TOPIC, history.partition_of(bootstrap, group)):
        if decode_key(message.key(), group) is None:
            members.learn(group, message.key(), message.value())
    return members.owners()


def _batches(folder: Path) -> Iterator[Batch]:
    """Of all segments; what is preallocated and not written yet has no length."""
    for segment in sorted(folder.glob("*.log")):
        data, place = segment.read_bytes(), 0
        while place + BATCH_HEADER_BYTES <= len(data):
            first, length = struct.unpack_from(">qi", data, place)
            if not length:
                break
            (producer,) = struct.unpack_from(">q", data, place + 43)
            yield Batch(first, producer)
            place += 12 + length


def _transactional_ids(bootstrap: str) -> dict[int, str]:
    """Of each producer that ever had one."""
    found = {}
    for message in messages(bootstrap, IDS):
        if message.value() is not None:
            (producer,) = struct.unpack_from(">q", message.value(), 2)
            reader = Reader(message.key())
            reader.skip("h")
            found[producer] = reader.text()
    return found


def _topic_names(bootstrap: str) -> dict[str, str]:
    """By their ids, which the library writes in another alphabet than Kafka does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = TopicCollection(list(admin.list_topics(timeout=TIMEOUT_S).topics))
    told = admin.describe_topics(names)
    ids = {name: str(future.result(TIMEOUT_S).topic_id) for name, future in told.items()}
    return {topic_id: name for name, topic_id in ids.items()}


class _Members:
    """Which client has which partition, as a group's log tells."""

    def __init__(self, topics: dict[str, str]) -> None:
        self._topics = topics
        self._clients: dict[str, str] = {}  # of members
        self._shares: dict[str, set[At]] = {}

    def owner(self, at: At) -> str:
        owners = [self._clients[member] for member, own in self._shares.items() if at in own]
        assert len(owners) <= 1, f"{at} has more than one owner"
        return owners[0] if owners else ""

    def owners(self) -> dict[At, str]:
        every = {at for own in self._shares.values() for at in own}
        return {at: self.owner(at) for at in every}

    def learn(self, group: str, key: bytes, value: bytes | None) -> None:
        reader = Reader(key)
        version = reader.number("h")
        if version not in (GENERATION, MEMBER, CURRENT) or reader.text() != group:
            return
        if version == GENERATION:
            self._generation(value)
            return
        member = reader.text()
        if value is None:
            (self._clients if version == MEMBER else self._shares).pop(member, None)
        elif version == MEMBER:
            self._clients[member] = _client_of(value)
        else:
            self._shares[member] = set(self._current(Reader(value, compact=True)))

    def _generation(self, value: bytes | None) -> None:
        """All members, and what each was given."""
        self._clients, self._shares = {}, {}
        if value is None:
            return
        reader = Reader(value)
        version = reader.number("h")
        assert version == 3, f"generations of version {version} are not known here"
        reader.skip("sissq")
        for _ in reader.each():
            member, _static, client, _host = (reader.text() for _ in range(4))
            reader.skip("ii")
            reader.data()
            self._clients[member] = without_host(client)
            self._shares[member] = set(_assigned(reader.data()))

    def _current(self, reader: Reader) -> Iterator[At]:
        """What it has, and what it has still to give up."""
        reader.skip("hiib")
        for _ in range(2):
            for _ in reader.each():
                topic = base64.b64encode(reader.take(16)).decode().rstrip("=")
                for _ in reader.each():
                    yield self._topics[topic], reader.number("i")
                reader.tags()


def _client_of(value: bytes) -> str:
    """Behind the version, the static name and the rack."""
    reader = Reader(value, compact=True)
    reader.skip("hss")
    return without_host(reader.text())


def _assigned(data: bytes) -> Iterator[At]:
    """The classic protocol's assignment of one member."""
    if not data:
        return
    reader = Reader(data)
    reader.skip("h")
    for _ in reader.each():
        topic = reader.text()
        for _ in reader.each():
            yield topic, reader.number("i")
