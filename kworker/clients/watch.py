"""Requests end offsets, and topics' partition counts, size limits and ids, without waiting."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from kworker.clients.admin_handle import AdminHandle
from kworker.clients.connection_failures import AUDIBLE, ConnectionFailures
from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import TopicIdentity, ids_untold

_TIMEOUT_S = 5.0
# Kafka's limit is on the batch, which the producer's is on too.
_LIMIT = "max.message.bytes"
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a broker that knows of none
_PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_GRACE_S = 1.0  # the request's own time-out comes first


class KafkaWatch:
    """Asks Kafka for end offsets, and for the partition counts, size limits and ids of topics.

    Used by one thread. Each `ask_…` method sends a request without waiting. The method of the same
    name without `ask_` returns the answer once it has come. Until the answer was returned, a second
    call of the `ask_…` method does nothing.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._servers = str(properties.get("bootstrap.servers", ""))
        self._failures = ConnectionFailures()
        self._admin = AdminHandle({**properties, **AUDIBLE}, self._failures.logger)
        self._forget_requests()

    def _forget_requests(self) -> None:
        self._ends: dict[TopicPartition, Any] = {}
        self._limits: dict[ConfigResource, Any] = {}
        self._described: dict[str, Any] = {}
        self._partitions: dict[str, Any] = {}
        self._topics: dict[str, Any] = {}

    def _client(self) -> AdminClient:
        """Returns the client for the next request."""
        if self._admin.stale:
            self._forget_requests()
        return self._admin.client()

    @property
    def rejection(self) -> str:
        """The reason for which brokers turn this client away; "" if none.

        The text also names the configuration key to correct. It tells why a request has no answer.
        """
        self._admin.read_log()
        return str(self._failures.rejection(self._servers) or "")

    def ask_ends(self, partitions: Iterable[PartitionId]) -> None:
        """Requests the offset up to which a read_committed reader can read each partition."""
        client = self._client()
        asked = {TopicPartition(*at): OffsetSpec.latest() for at in partitions}
        if asked and not self._ends:
            self._ends = client.list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=_TIMEOUT_S,
            )

    def ends(self) -> dict[PartitionId, int] | None:
        """Returns the answer to `ask_ends`: the end offset of each partition.

        Leaves out partitions for which the request failed. Returns None until the answer has come,
        and again after it was returned once.
        """
        if not self._ends or not all(future.done() for future in self._ends.values()):
            return None
        asked, self._ends = self._ends, {}
        return {
            (tp.topic, tp.partition): answer.offset
            for tp, future in asked.items()
            if (answer := self._result(future)) is not None
        }

    def ask_facts(self, topics: Iterable[str]) -> None:
        """Requests the max.message.bytes and the number of partitions of each topic."""
        names, client = list(topics), self._client()
        if self._limits or self._described:
            return
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in names]
        self._limits = client.describe_configs(resources, request_timeout=_TIMEOUT_S)
        self._described = client.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)

    def facts(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """Returns the answer to `ask_facts`: max.message.bytes and partition counts, by topic.

        Leaves out topics for which the request failed. Returns None until the answer has come, and
        again after it was returned once.
        """
        futures = [*self._limits.values(), *self._described.values()]
        if not futures or not all(future.done() for future in futures):
            return None
        limits, self._limits = self._limits, {}
        described, self._described = self._described, {}
        return (
            {
                resource.name: int(answer[_LIMIT].value)
                for resource, future in limits.items()
                if (answer := self._result(future)) is not None
            },
            {
                name: len(answer.partitions)
                for name, future in described.items()
                if (answer := self._result(future)) is not None
            },
        )

    def identities(self, topics: Collection[str], timeout_s: float) -> dict[str, TopicIdentity]:
        """Returns the cluster and id of each topic that exists. Blocks, unlike the other calls.

        Raises a retriable KafkaRequestError if no broker answers, or if the answer lacks the id of
        an existing topic.
        """
        client, ids = self._client(), dict[str, str]()
        described = client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        try:
            for name, future in described.items():
                with suppress(_Missing):
                    answer = _answer(future, timeout_s)
                    ids[name] = str(answer.topic_id) if answer else NO_ID
            # After the topics: the first answer tells of a new cluster at the same address.
            cluster_id = _cluster_id(client, timeout_s)
        except KafkaRequestError:
            self._admin.stale = True
            raise
        untold = sorted(name for name, one in ids.items() if one == NO_ID or not cluster_id)
        if untold:
            raise KafkaRequestError(ids_untold(untold), retriable=True)
        return {name: TopicIdentity(cluster_id, one) for name, one in ids.items()}

    def ask_ids(self, topics: Collection[str]) -> None:
        """Requests the current ids of these topics. A topic that was recreated has a new id."""
        asked, client = TopicCollection(list(topics)), self._client()
        if topics and not self._topics:
            self._topics = client.describe_topics(asked, request_timeout=_TIMEOUT_S)

    def ids(self) -> dict[str, str] | None:
        """Returns the answer to `ask_ids`: the id of each topic.

        Leaves out topics for which the request failed. Returns None until the answer has come, and
        again after it was returned once.
        """
        if not self._topics or not all(future.done() for future in self._topics.values()):
            return None
        asked, self._topics = self._topics, {}
        told = {topic: self._result(future) for topic, future in asked.items()}
        return {topic: str(answer.topic_id) for topic, answer in told.items() if answer is not None}

    def ask_partitions(self, topics: Iterable[str]) -> None:
        """Requests the number of partitions of each topic."""
        asked, client = TopicCollection(list(topics)), self._client()
        if not self._partitions:
            self._partitions = client.describe_topics(asked, request_timeout=_TIMEOUT_S)

    def partitions(self) -> dict[str, int] | None:
        """Returns the answer to `ask_partitions`: the number of partitions of each topic.

        Leaves out topics for which the request failed. Returns None until the answer has come, and
        again after it was returned once.
        """
        if not self._partitions or not all(future.done() for future in self._partitions.values()):
            return None
        asked, self._partitions = self._partitions, {}
        return {
            topic: len(answer.partitions)
            for topic, future in asked.items()
            if (answer := self._result(future)) is not None
        }

    def _result(self, future: Any) -> Any:
        """Returns the result of a request; None if it failed."""
        try:
            found = future.result()
        except KafkaException as error:
            self._admin.stale |= error.args[0].code() == KafkaError._TIMED_OUT
            return None
        self._admin.read_log()
        self._failures.answered()
        return found


class _Missing(Exception):
    """The topic does not exist."""


def _cluster_id(client: AdminClient, timeout_s: float) -> str:
    """Returns the cluster's id; "" if its brokers have none.

    Raises a retriable KafkaRequestError if no broker answers. Does not call
    `describe_cluster`: if its answer names no broker, as after an outage, librdkafka aborts the
    process.
    """
    try:
        return str(client.cluster_id(timeout=timeout_s) or "")
    except KafkaException as error:
        raise KafkaRequestError(str(error.args[0]), retriable=True) from None


def _answer(future: Any, timeout_s: float) -> Any:
    """Returns the result of a request; None if Kafka refuses the request for good.

    Raises _Missing if the topic does not exist. Raises a retriable KafkaRequestError if no broker
    answers, or if Kafka refuses the request only for now.
    """
    try:
        return future.result(timeout_s + _GRACE_S)
    except TimeoutError:
        raise KafkaRequestError("no broker answers", retriable=True) from None
    except KafkaException as error:
        if error.args[0].code() in _PASSING:
            raise KafkaRequestError(str(error.args[0]), retriable=True) from None
        if error.args[0].code() in _NO_TOPIC:
            raise _Missing from None
        return None
