"""One leader among the Spark jobs of a service, wherever their hosts and folders are.

The jobs are members of one consumer group, which reads nothing: `core/leadership` decides.
"""

import time
from collections.abc import Mapping
from math import inf
from typing import Any, assert_never

from confluent_kafka import KafkaError, KafkaException

from kworker.clients.leader_member import (
    ClaimAccepted,
    ClaimRefused,
    GroupAssigned,
    GroupLost,
    GroupRevoked,
    LeaderMember,
    MemberEvent,
)
from kworker.clients.leader_view import ViewAnswer, ViewQuestion, ViewReader
from kworker.core.leadership import Candidacy, View
from kworker.errors import ConfigError

LOOK_S = 1.0
LAPSED_S = 1.0  # how long a turn may wait for the answer that tells whether it leads still
CLOSE_TIMEOUT_S = 3.0
# How often a leader that has lapsed looks: not in a circle where answers come at once.
_LAPSED_LOOK_S = 0.02
_SILENCE = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
# A claim that came too late or too early: the next view tells whether it is to be made again.
_PASSING = frozenset(
    {
        *_SILENCE,
        KafkaError._WAIT_COORD,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_WORDS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic {topic} does not exist: kworker topics create",
    KafkaError.GROUP_AUTHORIZATION_FAILED: (
        "the group {group} is forbidden: this user needs the right to read it"
        " (ACL: Read on group {group})"
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "topic {topic} is forbidden: this user needs the right to read it"
        " (ACL: Read on topic {topic})"
    ),
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "kafka.consumer: session.timeout.ms {session_ms} is not between the brokers'"
        " group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
}


class Leadership:
    """Whether this process is the one that leads, renewed by calling `turn` twice a second.

    Owned by one thread. It stands by until a turn finds that it leads. When `leads` is false
    after a turn, the owner ends all that only a leader may do, and stands by; the same before
    `close`. A thread that is busy for long keeps its place, and asks for a turn before it looks.
    `consumer` are the properties of the group's member, `admin` those of who asks about it.
    """

    def __init__(self, consumer: Mapping[str, Any], admin: Mapping[str, Any], topic: str) -> None:
        """Begins to join the group. ConfigError for properties that the client refuses."""
        self._properties = dict(consumer)
        self._group = str(consumer["group.id"])
        self._topic = topic
        self._candidacy = Candidacy(int(consumer["session.timeout.ms"]) / 1000)
        try:
            self._views = ViewReader(admin, self._group, topic)
            self._member = LeaderMember(self._properties, topic)
        except KafkaException as error:
            raise ConfigError(f"kafka.consumer: {error.args[0].str()}") from error
        self._asked_at = -inf
        self._unseen = ""  # why there is no view
        self._refusal = ""  # why it cannot be a member, or cannot name itself

    @property
    def leads(self) -> bool:
        """By the clock: false also between turns, once nothing has proved it for a session."""
        return self._candidacy.leads(_now())

    @property
    def leader(self) -> str:
        """The process that was named last, for people; "" when none was. It may just be gone."""
        leader = self._member.leader if self.leads else self._candidacy.leader
        return str(leader or "")

    @property
    def problem(self) -> str:
        """What keeps the group from having a leader, or this process from knowing it."""
        if self._refusal and not self.leads:
            return self._refusal
        if self._unseen or self.leads:
            return self._unseen
        reason = self._candidacy.reason()
        return f"group {self._group}: {reason}" if reason else ""

    def turn(self) -> None:
        """Hears what is new and asks again; returns at once.

        After a pause in which its lease has ended, it waits for the answer, `LAPSED_S` at most:
        usually a few milliseconds, after which a leader that nobody has followed leads again.
        """
        self._round()
        deadline = _now() + LAPSED_S
        while self._candidacy.lapsed(now := _now()) and now < deadline:
            self._round(_LAPSED_LOOK_S)

    def close(self) -> None:
        """Leaves the group, for another to lead; within `CLOSE_TIMEOUT_S`, also without brokers."""
        self._candidacy.identify("")
        self._views.end()
        self._member.leave().join(CLOSE_TIMEOUT_S)

    def _round(self, wait_s: float = 0.0) -> None:
        events = self._member.poll()
        self._candidacy.identify(self._member.id())
        for event in events:
            self._mind(event)
        self._ask_if_due()
        match self._views.answer(wait_s):
            case ViewAnswer(view, members):
                self._unseen = ""
                if members is not None:
                    self._candidacy.learn(members)
                self._act_on(view)
            case KafkaError() as error:
                self._unseen = self._say(error)

    def _ask_if_due(self) -> None:
        now = _now()
        every_s = _LAPSED_LOOK_S if self._candidacy.lapsed(now) else LOOK_S
        if now >= self._asked_at + every_s and self._views.ask(
            ViewQuestion(now, self._candidacy.wants_roster)
        ):
            self._asked_at = now

    def _act_on(self, view: View) -> None:
        claim = self._candidacy.look(view, _now())
        if claim is not None:
            self._member.commit(claim)
        if self._candidacy.overdue():
            self._candidacy.rejoin()
            self._member.leave()
            self._member = LeaderMember(self._properties, self._topic)

    def _mind(self, event: "MemberEvent") -> None:
        match event:
            case GroupAssigned(decides):
                self._candidacy.assigned(decides=decides, now=_now())
                self._asked_at = -inf  # only what is asked from now on counts
                self._refusal = ""
            case GroupRevoked():
                self._candidacy.revoked()
            case GroupLost():
                self._candidacy.lost()
            case ClaimAccepted(claim):
                self._candidacy.accepted(claim, _now())
                self._refusal = ""
            case ClaimRefused(claim, error):
                if claim and error.code() == KafkaError.UNKNOWN_MEMBER_ID:
                    self._candidacy.expelled(claim)
                if error.code() not in _PASSING:
                    self._refusal = self._say(error)
            case _:
                assert_never(event)

    def _say(self, error: KafkaError) -> str:
        if error.code() in _SILENCE:
            return "Kafka does not answer"
        if error.code() in _WORDS:
            return _WORDS[error.code()].format(
                group=self._group,
                topic=self._topic,
                session_ms=self._properties["session.timeout.ms"],
            )
        return f"group {self._group}: {error.str()}"


def _now() -> float:
    """Seconds, those included in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
