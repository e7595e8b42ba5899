"""The administrator's requests: topics, brokers, offsets and groups."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from kworker.clients.admin_connection import SILENT, AdminConnection, AdminRequestError, code_of
from kworker.clients.topic_partitions import committed_in
from kworker.clients.watch import NO_ID
from kworker.config.topics import TopicInfo, TopicSpec
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, TopicIdentity

_HIDDEN_S = 2.0  # without an answer for so long, positions are hidden
_HIDDEN_EACH_S = 1.0
_HIDDEN_MOST = 3  # partitions that are named


class GroupMember(NamedTuple):
    """A member of a consumer group, as the brokers report it."""

    instance_id: str  # "" of a dynamic one
    client_id: str
    host: str


class Admin(AdminConnection):
    """Sends an administrator's requests; each blocks for about `timeout_s` at most.

    Raises `Unreachable` when no broker answers, `AdminRequestError` when a broker refuses.
    """

    def cluster_id(self) -> str:
        """Returns the id of the cluster."""
        return self._call(lambda: self._client().cluster_id(timeout=self._timeout_s))

    def topic_names(self) -> list[str]:
        """Returns the names of all topics that the brokers let this user see."""
        return sorted(self._metadata().topics)

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        """Returns the topics in `names` that exist, with the values of the settings `config`."""
        known = self._metadata().topics
        # A topic that is just being deleted is still named, with an error.
        here = [name for name in names if name in known and known[name].partitions]
        settings = self._configs(here, frozenset(config))
        return {
            name: TopicInfo(
                len(known[name].partitions),
                max(len(partition.replicas) for partition in known[name].partitions.values()),
                settings.get(name, {}),
            )
            for name in here
        }

    def topic_id(self, name: str) -> str:
        """Returns a topic's id, which changes when the topic is deleted and made again."""
        limit = {"request_timeout": self._timeout_s}
        found = self._client().describe_topics(TopicCollection([name]), **limit)
        return str(self._result(found[name]).topic_id)

    def create(self, topics: Iterable[TopicSpec]) -> dict[str, str]:
        """Creates topics. Returns the names of those that failed, each with Kafka's error."""
        new = [
            NewTopic(spec.name, spec.partitions, spec.replication, config=dict(spec.config))
            for spec in topics
        ]
        if not new:
            return {}
        limits = {"operation_timeout": self._timeout_s, "request_timeout": self._timeout_s}
        futures = self._client().create_topics(new, **limits)
        failures: dict[str, str] = {}
        for name, future in futures.items():
            try:
                self._result(future)
            except AdminRequestError as error:
                failures[name] = str(error)
        return failures

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        """Returns the cluster id and topic id of each topic.

        Leaves out topics whose id the brokers do not report.
        """
        cluster_id, limit = self.cluster_id(), {"request_timeout": self._timeout_s}
        described = self._client().describe_topics(TopicCollection(list(topics)), **limit)
        found: dict[str, TopicIdentity] = {}
        for name, future in described.items():
            with suppress(AdminRequestError):
                topic_id = str(self._result(future).topic_id)
                found |= {name: TopicIdentity(cluster_id, topic_id)} if topic_id != NO_ID else {}
        return found

    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId], *, stable: bool = True
    ) -> dict[PartitionId, Committed]:
        """Returns a group's committed positions; leaves out partitions without one.

        Waits for the end of an open transaction that is to change one of them. If `stable` is
        False, returns the positions as they are before that transaction, and does not wait.
        """
        asked = [TopicPartition(*at) for at in partitions]
        with self._consumer_beside(group, stable=stable) as consumer:
            committed = partial(consumer.committed, asked, timeout=self._timeout_s)
            found = self._call_coordinator(committed)
        _raise_first_error(found)
        held = {(tp.topic, tp.partition): committed_in(tp) for tp in found}
        return {at: each for at, each in held.items() if each is not None}

    def hidden_positions(self, group: str, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """Returns up to three partitions whose committed positions an open transaction hides.

        Kafka does not report a position while an open transaction is to change it. Returns at once
        if no position is hidden. Raises `Unreachable` if the group's coordinator does not answer.
        """
        asked = [TopicPartition(*at) for at in partitions]
        if not asked:
            return []
        with (
            self._consumer_beside(group) as member,
            self._consumer_beside(group, stable=False) as plain,
        ):
            if _is_visible(member, asked, _HIDDEN_S):
                return []
            # A request for positions that need not be stable is answered at once.
            self._call_coordinator(lambda: plain.committed(asked, timeout=self._timeout_s))
            hidden = (tp for tp in asked if not _is_visible(member, [tp], _HIDDEN_EACH_S))
            return [(tp.topic, tp.partition) for tp in islice(hidden, _HIDDEN_MOST)]

    def broker_setting(self, name: str) -> str | None:
        """Returns a setting's value on one of the brokers; None if that broker does not have it."""
        broker = str(next(iter(self._metadata().brokers)))
        asked = ConfigResource(ResourceType.BROKER, broker)
        [future] = (
            self._client().describe_configs([asked], request_timeout=self._timeout_s).values()
        )
        entry = self._result(future).get(name)
        return None if entry is None else str(entry.value)

    def brokers(self) -> list[int]:
        """Returns the ids of the brokers."""
        return sorted(self._metadata().brokers)

    def set_group_offsets(self, group: str, positions: Mapping[PartitionId, int]) -> None:
        """Commits positions for a group. Raises `AdminRequestError` if the group has members."""
        offsets = [TopicPartition(*at, position) for at, position in positions.items()]
        with self._consumer_beside(group) as consumer:
            commit = partial(consumer.commit, offsets=offsets, asynchronous=False)
            done = self._call_coordinator(commit)
        _raise_first_error(done or ())

    def delete_group(self, group: str) -> None:
        """Deletes a group without members, and its positions. Ignores a missing group."""
        limit = {"request_timeout": self._timeout_s}

        def ask() -> None:
            try:
                self._answer(self._client().delete_consumer_groups([group], **limit)[group])
            except KafkaException as error:
                if code_of(error) != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

        self._call_coordinator(ask)

    @contextmanager
    def _consumer_beside(self, group: str, *, stable: bool = True) -> Iterator[Consumer]:
        """Opens a consumer that sends requests about the group without joining it.

        An AdminClient could send these requests, too. But with librdkafka 2.16 it crashes the
        process while the group has no coordinator, as in a new cluster. If `stable` is False, the
        brokers also report positions that an open transaction may change.
        """
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "group.protocol": "classic",
            "isolation.level": "read_committed" if stable else "read_uncommitted",
        }
        consumer = Consumer({**self._properties, **own}, logger=SILENT)
        try:
            yield consumer
        finally:
            consumer.close()

    def group_members(self, group: str) -> list[str]:
        """Returns the members of a group, each as `client (host)`."""
        return sorted(f"{each.client_id} ({each.host})" for each in self.members(group))

    def members(self, group: str) -> list["GroupMember"]:
        """Returns the members of a group; a dead one counts until its session times out."""
        return [
            GroupMember(each.group_instance_id or "", each.client_id, each.host.lstrip("/"))
            for each in self._describe(group).members
        ]

    def _describe(self, group: str) -> Any:
        limit = {"request_timeout": self._timeout_s}
        ask = self._client().describe_consumer_groups
        return self._call_coordinator(lambda: self._answer(ask([group], **limit)[group]))

    def group_owners(self, group: str) -> dict[PartitionId, str]:
        """Returns the member that owns each partition: its `group.instance.id`, else client id."""
        return {
            (tp.topic, tp.partition): each.group_instance_id or each.client_id
            for each in self._describe(group).members
            for tp in each.assignment.topic_partitions
        }

    def list_offsets(
        self,
        partitions: Iterable[PartitionId],
        which: Literal["earliest", "latest"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionId, int]:
        """Returns the first offset of each partition, or the end, or the offset at a time in ms.

        The end is the offset after the last record. With `committed`, the end comes before any open
        transaction. For a time, the offset is that of the first record of that time or later; it
        is -1 if there is no such record.
        """
        specs: Any = OffsetSpec  # whose functions have no types
        if isinstance(which, int):
            spec = specs.for_timestamp(which)
        else:
            spec = specs.earliest() if which == "earliest" else specs.latest()
        asked = {TopicPartition(*at): spec for at in partitions}
        if not asked:
            return {}

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[PartitionId, int]:
            limit = {"request_timeout": self._timeout_s}
            futures = self._client().list_offsets(asked, isolation_level=level, **limit)
            found = ((tp, self._answer(future)) for tp, future in futures.items())
            return {(tp.topic, tp.partition): answer.offset for tp, answer in found}

        return self._call_leader(ask)

    def _metadata(self) -> Any:
        return self._call(lambda: self._client().list_topics(timeout=self._timeout_s))

    def _configs(self, names: list[str], keys: frozenset[str]) -> dict[str, dict[str, str]]:
        if not names or not keys:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._client().describe_configs(resources, request_timeout=self._timeout_s)
        return {
            resource.name: {
                key: entry.value
                for key, entry in self._result(future).items()
                if key in keys and entry.value is not None
            }
            for resource, future in futures.items()
        }


def _is_visible(consumer: Consumer, asked: list[TopicPartition], timeout_s: float) -> bool:
    """Returns True if the brokers report all these positions within `timeout_s`.

    If so, no open transaction hides any of them.
    """
    try:
        return not any(tp.error for tp in consumer.committed(asked, timeout=timeout_s))
    except KafkaException:
        return False


def _raise_first_error(answers: Iterable[TopicPartition]) -> None:
    for tp in answers:
        if tp.error:
            raise AdminRequestError(
                f"Kafka refused the request for {tp.topic}/{tp.partition}: {tp.error.str()}"
            )
