"""Reads a topic's ends, and reads and commits a group's positions, with little or no waiting."""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from kworker.clients.admin_handle import AdminHandle
from kworker.errors import ConfigError

REQUEST_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 5.0
# It would log each attempt while a broker is away: `problem` reports what goes wrong.
_QUIET = logging.getLogger("librdkafka.offsets")
_QUIET.setLevel(logging.CRITICAL)
_NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_Futures = Mapping[Any, "Future[Any]"]


def connect(properties: Mapping[str, Any]) -> AdminHandle:
    """Creates a client that a `TopicWatch` and any number of `GroupOffsets` may share.

    Never waits. Raises ConfigError for properties that librdkafka refuses.
    """
    try:
        return AdminHandle(properties, _QUIET)
    except KafkaException as error:
        raise ConfigError(f"kafka: {error.args[0].str()}") from error


class TopicWatch:
    """The end offsets of one topic's partitions, read again by calls of `turn`.

    Owned by one thread, which calls `turn` now and then. If Kafka does not answer or refuses, or
    the topic does not exist, `problem` has the reason. `ends` has the offsets of the last answer;
    it is empty before the first one, and after the topic was recreated. An end is where a
    read_committed reader stops: before the records of an open transaction.
    """

    def __init__(self, admin: AdminHandle, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._asked: _Futures = {}
        self._partitions: list[int] = []  # of the last answer: their ends are asked for next
        self.topic_id = ""  # changes when the topic is deleted and made again
        self.ends: dict[int, int] = {}
        self.problem = ""

    def turn(self) -> None:
        """Stores the brokers' answer, if it has come, and sends the next request. Never waits.

        Requests the list of partitions and the partitions' end offsets alternately.
        """
        self._admin.read_log()
        if not all(future.done() for future in self._asked.values()):
            return
        try:
            self._take({at: future.result() for at, future in self._asked.items()})
        except KafkaException as error:
            self.problem = self._describe(error.args[0])
            self._admin.stale |= error.args[0].code() in _NO_ANSWER
            self._partitions = []
        self._ask()

    def begins(self) -> dict[int, int]:
        """Returns the first offset of each partition in `self.ends`. Waits for Kafka's answer.

        Returns {} if Kafka refuses, or does not answer in time.
        """
        asked = {TopicPartition(self._topic, p): OffsetSpec.earliest() for p in self.ends}
        answers = self._admin.client().list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
        try:
            return {at.partition: answer.result().offset for at, answer in answers.items()}
        except KafkaException:
            return {}

    def _take(self, answers: Mapping[Any, Any]) -> None:
        if self._partitions:
            self.ends = {at.partition: answer.offset for at, answer in answers.items()}
            self.problem = ""
            self._partitions = []
        elif answers:
            found = answers[self._topic]
            self._partitions = [p.id for p in found.partitions]
            if self.topic_id != str(found.topic_id):
                self.topic_id = str(found.topic_id)
                self.ends = {}  # of the deleted topic

    def _ask(self) -> None:
        """Requests the list of partitions or, when that has come, the end offset of each."""
        if self._partitions:
            self._asked = self._admin.client().list_offsets(
                {TopicPartition(self._topic, p): OffsetSpec.latest() for p in self._partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
        else:
            self._asked = self._admin.client().describe_topics(
                TopicCollection([self._topic]), request_timeout=REQUEST_TIMEOUT_S
            )

    def _describe(self, error: KafkaError) -> str:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return f"topic {self._topic} does not exist: kworker topics create"
        if error.code() in _NO_ANSWER:
            return "Kafka does not answer"
        return f"Kafka: {error.str()}"


def committed(
    properties: Mapping[str, Any], group: str, topic: str, partitions: Iterable[int]
) -> dict[int, int] | None:
    """Returns a group's committed positions; None without an answer in `READ_TIMEOUT_S`.

    Uses a consumer that does not join the group. The admin client's request dereferences NULL, and
    ends the process, when the coordinator is new or has moved.
    """
    consumer = Consumer({**properties, "group.id": group}, logger=_QUIET)
    try:
        asked = [TopicPartition(topic, partition) for partition in partitions]
        found = consumer.committed(asked, timeout=READ_TIMEOUT_S)
    except KafkaException:
        return None
    finally:
        consumer.close()
    return {at.partition: at.offset for at in found if at.offset >= 0}


class GroupOffsets:
    """Commits positions for a group without members, so that tools can show its lag.

    Owned by one thread. A Spark query resumes from its checkpoint, never from these positions. So
    a failed commit is only noted in `problem`, and the next commit replaces it.
    """

    def __init__(self, admin: AdminHandle, group: str, topic: str) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._writing: Future[Any] | None = None
        self._published: dict[int, int] = {}
        self.problem = ""

    def publish(self, positions: Mapping[int, int]) -> None:
        """Commits positions that have changed, unless a commit is under way. Returns at once."""
        if self._writing is not None and not self._finished(self._writing):
            return
        changed = {p: o for p, o in positions.items() if self._published.get(p) != o}
        if changed:
            at = [TopicPartition(self._topic, p, offset) for p, offset in changed.items()]
            self._writing = self._admin.client().alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._group, at)],
                request_timeout=REQUEST_TIMEOUT_S,
            )[self._group]

    def forget_published(self) -> None:
        """Makes the next `publish` commit all positions again, because Kafka deletes old ones."""
        self._published.clear()

    def settle(self, positions: Mapping[int, int], timeout_s: float) -> None:
        """Commits `positions`, the last ones, and waits for this commit, `timeout_s` at most.

        If an earlier commit is still under way, waits for the earlier one instead. If the earlier
        one ends in time, then begins to commit `positions`, and returns without waiting. Raises
        nothing if a commit fails or takes too long.
        """
        self.publish(positions)
        if self._writing is not None:
            try:
                self._writing.result(timeout_s)
            except (KafkaException, TimeoutError):
                pass  # the next start publishes it
            self.publish(positions)

    def _finished(self, writing: "Future[Any]") -> bool:
        if not writing.done():
            return False
        self._writing = None
        try:
            answers = writing.result().topic_partitions
        except KafkaException as error:
            if error.args[0].code() != KafkaError._DESTROY:  # of a client that was replaced
                self.problem = str(error.args[0].str())
            return True
        refused = [answer.error for answer in answers if answer.error is not None]
        self.problem = str(refused[0].str()) if refused else ""
        self._published.update({a.partition: a.offset for a in answers if a.error is None})
        return True
