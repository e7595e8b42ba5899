"""Elects one leader among the Spark jobs of a service, which may run on different hosts.

The jobs are members of one consumer group, which reads no records. `core/leadership` decides which
job leads.
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

VIEW_EVERY_S = 1.0
LAPSED_S = 1.0  # the longest wait of a turn for the answer that says if it still leads
CLOSE_TIMEOUT_S = 3.0
# Between two views of a leader that has lapsed: not a busy loop where answers come at once.
_LAPSED_VIEW_EVERY_S = 0.02
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
# A claim that came too late or too early: the next view says if it is to be made again.
_RETRIABLE = frozenset(
    {
        *_NO_ANSWER,
        KafkaError._WAIT_COORD,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_TEXTS = {
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
    """This process's candidacy to be the leader among the Spark jobs of a service.

    One thread owns this object, and calls `turn` twice a second. If `leads` is True after a turn,
    the process may do the leader's work. It must stop that work when `leads` becomes False, and
    before it calls `close`. If that thread was busy for long, it must call `turn` before it reads
    `leads`. `consumer` has the properties of the client that joins the group; `admin` has those of
    the client that reads the group's state.
    """

    def __init__(self, consumer: Mapping[str, Any], admin: Mapping[str, Any], topic: str) -> None:
        """Begins to join the group. Raises ConfigError for properties that the client refuses."""
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
        self._view_problem = ""  # the reason why there is no view
        self._member_problem = ""  # the reason why it cannot be a member, or cannot claim the lead

    @property
    def leads(self) -> bool:
        """True if the group confirmed this process as leader less than a session time-out ago."""
        return self._candidacy.leads(_now())

    @property
    def leader(self) -> str:
        """The last known leader as a text to display, or "". Its process may have ended since."""
        leader = self._member.leader if self.leads else self._candidacy.leader
        return str(leader or "")

    @property
    def problem(self) -> str:
        """The reason why the group has no leader, or why none is known; "" without a problem."""
        if self._member_problem and not self.leads:
            return self._member_problem
        if self._view_problem or self.leads:
            return self._view_problem
        reason = self._candidacy.problem()
        return f"group {self._group}: {reason}" if reason else ""

    def turn(self) -> None:
        """Updates `leads` from the brokers' answers. Usually returns at once.

        Also requests the group's state every `VIEW_EVERY_S`, and commits a claim to lead if this
        process may lead. If its lease as leader has run out, for example while it was paused, this
        method waits up to `LAPSED_S` for a new lease; it gets none if another process leads now.
        """
        self._round()
        deadline = _now() + LAPSED_S
        while self._candidacy.lapsed(now := _now()) and now < deadline:
            self._round(_LAPSED_VIEW_EVERY_S)

    def close(self) -> None:
        """Leaves the group, so that another job can lead. Blocks for `CLOSE_TIMEOUT_S` at most."""
        self._candidacy.identify("")
        self._views.end()
        self._member.leave().join(CLOSE_TIMEOUT_S)

    def _round(self, wait_s: float = 0.0) -> None:
        events = self._member.poll()
        self._candidacy.identify(self._member.id())
        for event in events:
            self._handle(event)
        self._ask_if_due()
        match self._views.answer(wait_s):
            case ViewAnswer(view, members):
                self._view_problem = ""
                if members is not None:
                    self._candidacy.update_roster(members)
                self._act_on(view)
            case KafkaError() as error:
                self._view_problem = self._describe(error)

    def _ask_if_due(self) -> None:
        now = _now()
        every_s = _LAPSED_VIEW_EVERY_S if self._candidacy.lapsed(now) else VIEW_EVERY_S
        if now >= self._asked_at + every_s and self._views.ask(
            ViewQuestion(now, self._candidacy.wants_roster)
        ):
            self._asked_at = now

    def _act_on(self, view: View) -> None:
        claim = self._candidacy.update(view, _now())
        if claim is not None:
            self._member.commit(claim)
        if self._candidacy.overdue():
            self._candidacy.rejoin()
            self._member.leave()
            self._member = LeaderMember(self._properties, self._topic)

    def _handle(self, event: "MemberEvent") -> None:
        match event:
            case GroupAssigned(decides):
                self._candidacy.assigned(decides=decides, now=_now())
                self._asked_at = -inf  # only what is asked from now on counts
                self._member_problem = ""
            case GroupRevoked():
                self._candidacy.revoked()
            case GroupLost():
                self._candidacy.lost()
            case ClaimAccepted(claim):
                self._candidacy.accepted(claim, _now())
                self._member_problem = ""
            case ClaimRefused(claim, error):
                if claim and error.code() == KafkaError.UNKNOWN_MEMBER_ID:
                    self._candidacy.expelled(claim)
                if error.code() not in _RETRIABLE:
                    self._member_problem = self._describe(error)
            case _:
                assert_never(event)

    def _describe(self, error: KafkaError) -> str:
        if error.code() in _NO_ANSWER:
            return "Kafka does not answer"
        if error.code() in _TEXTS:
            return _TEXTS[error.code()].format(
                group=self._group,
                topic=self._topic,
                session_ms=self._properties["session.timeout.ms"],
            )
        return f"group {self._group}: {error.str()}"


def _now() -> float:
    """Returns seconds of a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
