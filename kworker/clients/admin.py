"""The administrator's side of Kafka: what is there, what is created, where a group stands."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kworker.clients.topic_partitions import committed_in
from kworker.clients.watch import NO_ID
from kworker.config.topics import TopicInfo, TopicSpec
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, TopicIdentity
from kworker.errors import KworkerError, Unreachable

T = TypeVar("T")


RETRY_S = 0.2
_HIDDEN_S = 2.0  # in which positions are told, or hidden
_HIDDEN_EACH_S = 1.0
_HIDDEN_MOST = 3  # partitions that are named

# What people need of it stands in the errors raised; librdkafka's own lines go nowhere.
SILENT = logging.getLogger("kworker.librdkafka.admin")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
# librdkafka puts the broker's name before its words, and its own state after them.
_WHERE_AND_WHEN = re.compile(r"^\S+/bootstrap: | \(after \d+ms in state .*$")


class AdminRequestError(KworkerError):
    """Kafka answered, and would not."""


class GroupMember(NamedTuple):
    """One of a group, as the brokers see it."""

    instance_id: str  # "" of a dynamic one
    client_id: str
    host: str


class Admin:
    """A short-lived administrator's client; every call blocks for `timeout_s` at most.

    Calls raise `Unreachable` when no broker answers, `AdminRequestError` when one says no.
    """

    def __init__(self, properties: Mapping[str, Any], *, timeout_s: float = 5.0) -> None:
        self._properties = properties
        self._brokers = str(properties.get("bootstrap.servers", ""))
        self._timeout_s = timeout_s
        self._last_error = ""
        try:
            with_callback: dict[str, Any] = {**properties, "error_cb": self._on_error}
            self._client = AdminClient(with_callback, logger=SILENT)
        except KafkaException as error:
            raise AdminRequestError(reason_of(error)) from None

    def cluster_id(self) -> str:
        """Which cluster this is."""
        return self._asked(lambda: self._client.cluster_id(timeout=self._timeout_s))

    def topic_names(self) -> list[str]:
        """Every topic that this user may see."""
        return sorted(self._metadata().topics)

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        """Those of `names` that exist, with the values of the topic settings `config`."""
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
        """Another one when the topic was deleted and made again."""
        limit = {"request_timeout": self._timeout_s}
        found = self._client.describe_topics(TopicCollection([name]), **limit)
        return str(self._result(found[name]).topic_id)

    def create(self, topics: Iterable[TopicSpec]) -> dict[str, str]:
        """Creates topics; what Kafka says against each that could not be, by name."""
        new = [
            NewTopic(spec.name, spec.partitions, spec.replication, config=dict(spec.config))
            for spec in topics
        ]
        if not new:
            return {}
        limits = {"operation_timeout": self._timeout_s, "request_timeout": self._timeout_s}
        futures = self._client.create_topics(new, **limits)
        failures: dict[str, str] = {}
        for name, future in futures.items():
            try:
                self._result(future)
            except AdminRequestError as error:
                failures[name] = str(error)
        return failures

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        """Which topics these are, without those of which the brokers do not tell."""
        cluster_id, limit = self.cluster_id(), {"request_timeout": self._timeout_s}
        described = self._client.describe_topics(TopicCollection(list(topics)), **limit)
        found: dict[str, TopicIdentity] = {}
        for name, future in described.items():
            with suppress(AdminRequestError):
                topic_id = str(self._result(future).topic_id)
                found |= {name: TopicIdentity(cluster_id, topic_id)} if topic_id != NO_ID else {}
        return found

    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId]
    ) -> dict[PartitionId, Committed]:
        """What a group has committed, without the partitions where it has nothing."""
        asked = [TopicPartition(*at) for at in partitions]
        with self._beside(group) as consumer:
            found = self._coordinated(lambda: consumer.committed(asked, timeout=self._timeout_s))
        _raise_first_error(found)
        held = {(tp.topic, tp.partition): committed_in(tp) for tp in found}
        return {at: each for at, each in held.items() if each is not None}

    def hidden_positions(self, group: str, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """Some of those whose positions a transaction hides that has not ended.

        Quick when there are none. `Unreachable` when the group's coordinator does not answer.
        """
        asked = [TopicPartition(*at) for at in partitions]
        if not asked:
            return []
        with self._beside(group) as member, self._beside(group, stable=False) as plain:
            if _is_told(member, asked, _HIDDEN_S):
                return []
            # Who does not insist on what is stable is answered at once.
            self._coordinated(lambda: plain.committed(asked, timeout=self._timeout_s))
            hidden = (tp for tp in asked if not _is_told(member, [tp], _HIDDEN_EACH_S))
            return [(tp.topic, tp.partition) for tp in islice(hidden, _HIDDEN_MOST)]

    def broker_setting(self, name: str) -> str | None:
        """Of one of the brokers; None where it has no such."""
        broker = str(next(iter(self._metadata().brokers)))
        asked = ConfigResource(ResourceType.BROKER, broker)
        [future] = self._client.describe_configs([asked], request_timeout=self._timeout_s).values()
        entry = self._result(future).get(name)
        return None if entry is None else str(entry.value)

    def brokers(self) -> list[int]:
        """Their numbers."""
        return sorted(self._metadata().brokers)

    def set_group_offsets(self, group: str, positions: Mapping[PartitionId, int]) -> None:
        """Commits positions for a group without members; `AdminRequestError` when it has some."""
        offsets = [TopicPartition(*at, position) for at, position in positions.items()]
        with self._beside(group) as consumer:
            done = self._coordinated(lambda: consumer.commit(offsets=offsets, asynchronous=False))
        _raise_first_error(done or ())

    def delete_group(self, group: str) -> None:
        """Forgets a group without members, and its positions; one that is not there is fine."""
        limit = {"request_timeout": self._timeout_s}

        def ask() -> None:
            try:
                self._answer(self._client.delete_consumer_groups([group], **limit)[group])
            except KafkaException as error:
                if _code(error) != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

        self._coordinated(ask)

    @contextmanager
    def _beside(self, group: str, *, stable: bool = True) -> Iterator[Consumer]:
        """A consumer that speaks of the group without joining it.

        The administrator's own calls would do, but the library's (2.16) crashes the process
        when the coordinator is not there yet, as for the first group of a new cluster.
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
        """Who is in a group now: `client (host)`."""
        return sorted(f"{each.client_id} ({each.host})" for each in self.members(group))

    def members(self, group: str) -> list["GroupMember"]:
        """Who is in a group now; those that have died, until their sessions end."""
        return [
            GroupMember(each.group_instance_id or "", each.client_id, each.host.lstrip("/"))
            for each in self._described(group).members
        ]

    def _described(self, group: str) -> Any:
        limit = {"request_timeout": self._timeout_s}
        ask = self._client.describe_consumer_groups
        return self._coordinated(lambda: self._answer(ask([group], **limit)[group]))

    def group_owners(self, group: str) -> dict[PartitionId, str]:
        """Of each partition that a member has, its name: of its place, if it is static."""
        limit = {"request_timeout": self._timeout_s}
        ask = self._client.describe_consumer_groups
        found = self._coordinated(lambda: self._answer(ask([group], **limit)[group]))
        return {
            (tp.topic, tp.partition): each.group_instance_id or each.client_id
            for each in found.members
            for tp in each.assignment.topic_partitions
        }

    def list_offsets(
        self,
        partitions: Iterable[PartitionId],
        which: Literal["earliest", "latest"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionId, int]:
        """The first offset that each partition holds, or the one after its last.

        With a number: the first of that time (ms) or later, -1 where there is none. With
        `committed`, a partition ends before the first transaction that is open.
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
            futures = self._client.list_offsets(asked, isolation_level=level, **limit)
            found = ((tp, self._answer(future)) for tp, future in futures.items())
            return {(tp.topic, tp.partition): answer.offset for tp, answer in found}

        return self._awaited(ask, _NO_LEADER, "no leader for a partition")

    def _metadata(self) -> Any:
        return self._asked(lambda: self._client.list_topics(timeout=self._timeout_s))

    def _configs(self, names: list[str], keys: frozenset[str]) -> dict[str, dict[str, str]]:
        if not names or not keys:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._client.describe_configs(resources, request_timeout=self._timeout_s)
        return {
            resource.name: {
                key: entry.value
                for key, entry in self._result(future).items()
                if key in keys and entry.value is not None
            }
            for resource, future in futures.items()
        }

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise self._told(error) from None

    def _coordinated(self, call: Callable[[], T]) -> T:
        return self._awaited(call, _NO_COORDINATOR, "no coordinator for the group")

    def _awaited(self, call: Callable[[], T], passing: Collection[int], lack: str) -> T:
        """Asks again and again while the answer is one of `passing`: nobody is elected yet."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return call()
            except KafkaException as error:
                if _code(error) not in passing:
                    raise self._told(error) from None
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"{self._brokers} answers, but has {lack} after {self._timeout_s:g} s"
                        f" ({reason_of(error)})"
                    ) from None
            time.sleep(RETRY_S)

    def _result(self, future: "Future[Any]") -> Any:
        return self._asked(lambda: self._answer(future))

    def _answer(self, future: "Future[Any]") -> Any:
        """Raises KafkaException as it came."""
        # The client resolves it within the request's own time; the margin is for its thread.
        if not wait([future], self._timeout_s + 5).done:
            raise self._unreachable("the request is still under way")
        return future.result()

    def _told(self, error: KafkaException) -> KworkerError:
        reason = reason_of(error)
        return self._unreachable(reason) if _code(error) in _ABSENT else AdminRequestError(reason)

    def _unreachable(self, reason: str) -> Unreachable:
        self._client.poll(0)  # serves the callback that may know better why
        return Unreachable(
            f"no broker of {self._brokers} answers within {self._timeout_s:g} s"
            f" ({self._last_error or reason})"
        )

    def _on_error(self, error: KafkaError) -> None:
        # "All brokers down" follows the reason, and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = bare_reason(error.str())


def bare_reason(words: str) -> str:
    """An error in librdkafka's words, without the broker's name and the connection's state."""
    return _WHERE_AND_WHEN.sub("", words)


_ABSENT = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)


def _is_told(consumer: Consumer, asked: list[TopicPartition], timeout_s: float) -> bool:
    """Whether the committed positions are: they are not while a transaction may change them."""
    try:
        return not any(tp.error for tp in consumer.committed(asked, timeout=timeout_s))
    except KafkaException:
        return False


def _code(error: KafkaException) -> int:
    return int(cast(KafkaError, error.args[0]).code())


def reason_of(error: KafkaException) -> str:
    """Kafka's own words."""
    return str(cast(KafkaError, error.args[0]).str())


def _raise_first_error(answers: Iterable[TopicPartition]) -> None:
    for tp in answers:
        if tp.error:
            raise AdminRequestError(f"{tp.topic}/{tp.partition}: {tp.error.str()}")


class PropertyRefusal(NamedTuple):
    """What librdkafka has against a property; "" when it names none."""

    name: str
    reason: str


def refusals(
    kind: Literal["consumer", "producer"],
    properties: Mapping[str, Any],
    chosen: Collection[str] = (),
) -> Iterator[PropertyRefusal]:
    """All that librdkafka says against these properties; asks no broker.

    Of two that do not go together, the one that the user has `chosen` is to blame.
    """
    left = dict(properties)
    while reason := _refusal(kind, left):
        name = _culprit(kind, left, reason, chosen)
        yield PropertyRefusal(name, reason)
        if not name:
            return
        del left[name]


def _culprit(
    kind: Literal["consumer", "producer"],
    properties: Mapping[str, Any],
    reason: str,
    chosen: Collection[str],
) -> str:
    """The property without which librdkafka says something else, if it is about one."""
    if named := [name for name in properties if name in reason]:
        return max(named, key=lambda name: (name in chosen, len(name)))
    if "configuration property" not in reason:
        return ""
    # It has used another name for it: linger.ms is queue.buffering.max.ms, too.
    for name in properties:
        if _refusal(kind, {n: v for n, v in properties.items() if n != name}) != reason:
            return name
    return ""


def _refusal(kind: Literal["consumer", "producer"], properties: Mapping[str, Any]) -> str:
    try:
        if kind == "consumer":
            Consumer(dict(properties), logger=SILENT).close()
        else:
            Producer(dict(properties), logger=SILENT)
    except KafkaException as error:
        return reason_of(error)
    return ""
