"""The consumer that makes a candidate for leadership a member of the jobs' group."""

import logging
import os
import socket
from collections import deque
from collections.abc import Mapping
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kworker.core.leadership import Claim, Leader

# `Leadership.problem` reports what goes wrong.
QUIET = logging.getLogger("librdkafka.leader")
QUIET.setLevel(logging.CRITICAL + 1)


class GroupAssigned(NamedTuple):
    decides: bool


class GroupRevoked(NamedTuple):
    pass


class GroupLost(NamedTuple):
    pass


class ClaimAccepted(NamedTuple):
    claim: Claim


class ClaimRefused(NamedTuple):
    claim: Claim | None
    error: KafkaError


MemberEvent = GroupAssigned | GroupRevoked | GroupLost | ClaimAccepted | ClaimRefused


class LeaderMember:
    """A consumer that makes this process a member of the group, and reads no records.

    Used by one thread. The library swallows what a callback raises, so callbacks only store events.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._events: deque[MemberEvent] = deque()
        self._claim: Claim | None = None  # which the group has not answered yet
        self._count = 0
        own = {**properties, "on_commit": self._on_commit}
        self._consumer = Consumer(own, logger=QUIET)
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self) -> list[MemberEvent]:
        """Returns assignments, revocations and answers to claims since the last call, in order."""
        while (message := self._consumer.poll(0)) is not None:
            if (error := message.error()) is not None:
                self._events.append(ClaimRefused(None, error))
        events = list(self._events)
        self._events.clear()
        return events

    def id(self) -> str:
        """Returns the member id, "" while this client is not a member."""
        return self._consumer.memberid() or ""

    @property
    def leader(self) -> Leader:
        """The member id, host and pid of this process, which other processes see while it leads."""
        return Leader(self.id(), socket.gethostname(), os.getpid())

    def commit(self, claim: Claim) -> None:
        """Commits a claim to lead, if the claim names the present member id.

        Does nothing while the broker has not answered an earlier claim.
        """
        if self._claim is not None or self.id() != claim.member:
            return
        self._count += 1
        note = self.leader._replace(member=claim.member).note(self._count)
        place = TopicPartition(self._topic, 0, 0, metadata=note)
        try:
            self._consumer.commit(offsets=[place], asynchronous=True)
        except KafkaException as error:
            self._events.append(ClaimRefused(claim, error.args[0]))
        else:
            self._claim = claim

    def leave(self) -> Thread:
        """Returns a started thread that leaves the group. Without brokers, leaving takes long."""
        leaving = Thread(target=self._consumer.close, name="leave", daemon=True)
        leaving.start()
        return leaving

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The group has assigned them, and this client takes up none: nothing is ever fetched.
        consumer.assign([])
        self._events.append(GroupAssigned(any(at.partition == 0 for at in partitions)))

    def _on_revoke(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._events.append(GroupRevoked())

    def _on_lost(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._events.append(GroupLost())

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        errors = [error, *(at.error for at in places)]
        found = next((each for each in errors if each is not None), None)
        self._events.append(ClaimAccepted(claim) if found is None else ClaimRefused(claim, found))
