"""One leader among the Spark jobs of a service, wherever their hosts and folders are.

The jobs are members of one consumer group, which reads nothing: `core/leadership` decides.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from math import inf
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, assert_never, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kworker.clients import roster
from kworker.core.leadership import Candidacy, Claim, Leader, Roster, View
from kworker.errors import ConfigError

LOOK_S = 1.0
LOOK_TIMEOUT_S = 3.0
LAPSED_S = 1.0  # how long a turn may wait for the answer that tells whether it leads still
CLOSE_TIMEOUT_S = 3.0
# How often a leader that has lapsed looks: not in a circle where answers come at once.
_LAPSED_LOOK_S = 0.02
# The library's own ten seconds would be a leader's whole lease.
RECONNECT_MS = 1000
# What goes wrong is told by `problem`.
_QUIET = logging.getLogger("librdkafka.leader")
_QUIET.setLevel(logging.CRITICAL + 1)
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
            self._looker = _Looker(admin, self._group, topic)
            self._member = _Member(self._properties, topic)
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
        self._looker.end()
        self._member.leave().join(CLOSE_TIMEOUT_S)

    def _round(self, wait_s: float = 0.0) -> None:
        events = self._member.take()
        self._candidacy.identify(self._member.id())
        for event in events:
            self._mind(event)
        self._ask_if_due()
        match self._looker.answer(wait_s):
            case _Answer(view, members):
                self._unseen = ""
                if members is not None:
                    self._candidacy.learn(members)
                self._act_on(view)
            case KafkaError() as error:
                self._unseen = self._say(error)

    def _ask_if_due(self) -> None:
        now = _now()
        every_s = _LAPSED_LOOK_S if self._candidacy.lapsed(now) else LOOK_S
        if now >= self._asked_at + every_s and self._looker.ask(
            _Question(now, self._candidacy.wants_roster)
        ):
            self._asked_at = now

    def _act_on(self, view: View) -> None:
        claim = self._candidacy.look(view, _now())
        if claim is not None:
            self._member.commit(claim)
        if self._candidacy.overdue():
            self._candidacy.rejoin()
            self._member.leave()
            self._member = _Member(self._properties, self._topic)

    def _mind(self, event: "_Event") -> None:
        match event:
            case _Assigned(decides):
                self._candidacy.assigned(decides=decides, now=_now())
                self._asked_at = -inf  # only what is asked from now on counts
                self._refusal = ""
            case _Revoked():
                self._candidacy.revoked()
            case _Lost():
                self._candidacy.lost()
            case _Accepted(claim):
                self._candidacy.accepted(claim, _now())
                self._refusal = ""
            case _Refused(claim, error):
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


class _Assigned(NamedTuple):
    decides: bool


class _Revoked(NamedTuple):
    pass


class _Lost(NamedTuple):
    pass


class _Accepted(NamedTuple):
    claim: Claim


class _Refused(NamedTuple):
    claim: Claim | None
    error: KafkaError


_Event = _Assigned | _Revoked | _Lost | _Accepted | _Refused


class _Member:
    """One client in the group, which reads nothing. Used by one thread.

    The library swallows what a callback raises, so callbacks only record.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._events: deque[_Event] = deque()
        self._claim: Claim | None = None  # which the group has not answered yet
        self._count = 0
        told = {**properties, "on_commit": self._on_commit}
        self._consumer = Consumer(told, logger=_QUIET)
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def take(self) -> list[_Event]:
        """What has happened, in order."""
        while (message := self._consumer.poll(0)) is not None:
            if (error := message.error()) is not None:
                self._events.append(_Refused(None, error))
        events = list(self._events)
        self._events.clear()
        return events

    def id(self) -> str:
        """By which the group knows it; "" when it is no member."""
        return self._consumer.memberid() or ""

    @property
    def leader(self) -> Leader:
        """It, as a leader."""
        return Leader(self.id(), socket.gethostname(), os.getpid())

    def commit(self, claim: Claim) -> None:
        """Sends a claim, if the one before is answered."""
        if self._claim is not None or self.id() != claim.member:
            return
        self._count += 1
        note = self.leader._replace(member=claim.member).note(self._count)
        place = TopicPartition(self._topic, 0, 0, metadata=note)
        try:
            self._consumer.commit(offsets=[place], asynchronous=True)
        except KafkaException as error:
            self._events.append(_Refused(claim, error.args[0]))
        else:
            self._claim = claim

    def leave(self) -> Thread:
        """In a thread, which ends when it has left; without brokers that may take long."""
        leaving = Thread(target=self._consumer.close, name="leave", daemon=True)
        leaving.start()
        return leaving

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The group has assigned them, and this client takes up none: nothing is ever fetched.
        consumer.assign([])
        self._events.append(_Assigned(any(at.partition == 0 for at in partitions)))

    def _on_revoke(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._events.append(_Revoked())

    def _on_lost(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._events.append(_Lost())

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        errors = [error, *(at.error for at in places)]
        found = next((each for each in errors if each is not None), None)
        self._events.append(_Accepted(claim) if found is None else _Refused(claim, found))


class _Question(NamedTuple):
    asked_at: float
    wants_roster: bool


class _Answer(NamedTuple):
    view: View
    roster: Roster | None  # None also where it was not told


class _Looker:
    """Asks how the group stands, one question at a time, in a thread that owns the client."""

    def __init__(self, properties: Mapping[str, Any], group: str, topic: str) -> None:
        """Raises KafkaException for properties that the client refuses."""
        self._group = group
        self._topic = topic
        self._asked = False
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self._answers: SimpleQueue[_Answer | KafkaError | Exception] = SimpleQueue()
        self._properties = {"reconnect.backoff.max.ms": RECONNECT_MS, **properties}
        # Speaks of the group, and never joins it.
        own = {"group.id": group, "group.protocol": "classic", "enable.auto.commit": False}
        self._beside = Consumer({**self._properties, **own}, logger=_QUIET)
        Thread(target=self._run, name="look", daemon=True).start()

    def ask(self, question: _Question) -> bool:
        """False while the question before is not answered."""
        if self._asked:
            return False
        self._asked = True
        self._questions.put(question)
        return True

    def answer(self, wait_s: float) -> _Answer | KafkaError | None:
        """The answer, once; None when it does not come in time. Raises what the thread died of."""
        try:
            answer = self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
        except Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        self._asked = False
        return answer

    def end(self) -> None:
        """Has the thread end when it has answered what it was asked."""
        self._questions.put(None)

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                self._answers.put(self._look(question))
            self._beside.close()
        except Exception as error:  # noqa: BLE001 - the top of a thread; raised where it is asked
            self._answers.put(error)

    def _look(self, question: _Question) -> _Answer | KafkaError:
        place = TopicPartition(self._topic, 0)
        try:
            held = self._beside.committed([place], timeout=LOOK_TIMEOUT_S)[0]
        except KafkaException as error:
            return cast(KafkaError, error.args[0])
        if held.error is not None:
            return held.error
        view = View(question.asked_at, held.metadata or "")
        if not question.wants_roster:
            return _Answer(view, None)
        members = roster.members(self._properties, self._group)
        return _Answer(view, None if members is None else Roster(question.asked_at, members))


def _now() -> float:
    """Seconds, those included in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
