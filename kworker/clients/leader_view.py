"""Reads for a candidate, in a separate thread, who leads its group and who the members are."""

from collections.abc import Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kworker.clients import roster
from kworker.clients.leader_member import QUIET
from kworker.core.leadership import Roster, View

VIEW_TIMEOUT_S = 3.0
# The library's own ten seconds would be a leader's whole lease.
RECONNECT_MS = 1000


class ViewQuestion(NamedTuple):
    asked_at: float
    wants_roster: bool


class ViewAnswer(NamedTuple):
    view: View
    roster: Roster | None  # None if not asked for, or not answered


class ViewReader:
    """Reads, in its own thread, which member claims to lead the group, and who its members are."""

    def __init__(self, properties: Mapping[str, Any], group: str, topic: str) -> None:
        """Raises KafkaException for properties that the client refuses."""
        self._group = group
        self._topic = topic
        self._asked = False
        self._questions: SimpleQueue[ViewQuestion | None] = SimpleQueue()
        self._answers: SimpleQueue[ViewAnswer | KafkaError | Exception] = SimpleQueue()
        self._properties = {"reconnect.backoff.max.ms": RECONNECT_MS, **properties}
        # Sends requests about the group, and never joins it.
        own = {"group.id": group, "group.protocol": "classic", "enable.auto.commit": False}
        self._consumer = Consumer({**self._properties, **own}, logger=QUIET)
        Thread(target=self._run, name="view", daemon=True).start()

    def ask(self, question: ViewQuestion) -> bool:
        """Passes a question to this reader's thread, and returns True.

        Does nothing and returns False while an earlier question has no answer.
        """
        if self._asked:
            return False
        self._asked = True
        self._questions.put(question)
        return True

    def answer(self, wait_s: float) -> ViewAnswer | KafkaError | None:
        """Returns the thread's answer to the last question; None if `wait_s` passes without one.

        The answer is a KafkaError if Kafka refused the thread's request, or did not reply to it. If
        an exception has ended the thread, this method raises that exception.
        """
        try:
            answer = self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
        except Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        self._asked = False
        return answer

    def end(self) -> None:
        """Makes the thread end. A question that is still open is answered first."""
        self._questions.put(None)

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                self._answers.put(self._read(question))
            self._consumer.close()
        except Exception as error:  # noqa: BLE001 - the top of a thread; raised where it is asked
            self._answers.put(error)

    def _read(self, question: ViewQuestion) -> ViewAnswer | KafkaError:
        place = TopicPartition(self._topic, 0)
        try:
            held = self._consumer.committed([place], timeout=VIEW_TIMEOUT_S)[0]
        except KafkaException as error:
            return cast(KafkaError, error.args[0])
        if held.error is not None:
            return held.error
        view = View(question.asked_at, held.metadata or "")
        if not question.wants_roster:
            return ViewAnswer(view, None)
        members = roster.members(self._properties, self._group)
        return ViewAnswer(view, None if members is None else Roster(question.asked_at, members))
