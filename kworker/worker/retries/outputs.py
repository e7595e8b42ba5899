"""The outputs of a failed run: a record for a delay topic, or a dead letter; cut to fit."""

from collections.abc import Callable

from kworker.core import headers as names
from kworker.core.failure import Failure
from kworker.core.headers import carried
from kworker.core.message import HeaderList
from kworker.core.outcome import Output
from kworker.core.record import Record
from kworker.worker.handlers.results import replay_header
from kworker.worker.topic_limits import TopicLimits

_ERROR_MAX = 1_000  # characters, enough for people; the dead letter has all of it
_CUT = frozenset({names.STACKTRACE, names.MESSAGE})


class FailureOutputs:
    """Builds the outputs of failed runs. Used by the poll thread. Times are wall-clock ms."""

    def __init__(
        self,
        retry_topic: Callable[[float], str],
        dead_topic: str,
        limits: TopicLimits,
        replay: str = "",
        requeue: str = "",
    ) -> None:
        """`replay` is the id that dead letters of the replay carry; empty outside of a replay.

        `requeue` is the topic by which records return to the workers. If a record in this topic is
        too large for a dead letter, its dead letter has no key and no value.
        """
        self._retry_topic = retry_topic
        self._dead_topic = dead_topic
        self._limits = limits
        self._replay = replay
        self._requeue = requeue

    def retry(
        self, record: Record, failure: Failure, delay_s: float, attempt: int, due_ms: int
    ) -> Output:
        """Returns the output for a delay topic, by which the record runs again.

        That run has the number `attempt`, and is due at `due_ms`.
        """
        topic = self._retry_topic(delay_s)
        source = record.source
        own: HeaderList = [
            (names.SOURCE, str(source).encode()),
            (names.ATTEMPT, b"%d" % attempt),
            (names.DUE, b"%d" % due_ms),
            *_redriven(record),
            *replay_header(record, self._replay),
        ]
        error = (names.ERROR, str(failure)[:_ERROR_MAX].encode())
        headers = [*_carried(record), *own, error]
        key, value = record.raw.key(), record.raw.value()
        partition = self._limits.partition_for(topic, source.partition)
        return self.cut(Output(topic, key, value, headers, partition=partition))

    def dead_letter(
        self, record: Record, failure: Failure, reason: str, attempt: int, now_ms: int
    ) -> Output:
        """Returns the dead letter: the record unchanged, with headers that describe the failure.

        If the dead letter exceeds its topic's size limit, the stack trace is cut, and then the
        error's message. If this is not enough, the record's own headers are left out. Even then it
        may be too large. If the record is in the requeue topic, the dead letter then has no key and
        no value, and names the record's position in that topic, where the record stays. Any other
        record's dead letter is returned although it is too large.
        """
        source = record.source
        message, stack = failure.message.encode(), failure.stack.encode()
        key, value = record.raw.key(), record.raw.value()

        def letter(
            key: bytes | None, value: bytes | None, own: HeaderList, message: bytes, stack: bytes
        ) -> Output:
            headers = [
                *own,
                (names.SOURCE, str(source).encode()),
                (names.ATTEMPT, b"%d" % attempt),
                (names.FAILED_AT, b"%d" % now_ms),
                (names.REASON, reason.encode()),
                (names.EXCEPTION, failure.exception.encode()),
                (names.MESSAGE, message),
                (names.STACKTRACE, stack),
                *_redriven(record),
                *replay_header(record, self._replay),
                (names.FOREIGN_TOPIC, source.topic.encode()),
                (names.FOREIGN_EXCEPTION, failure.exception.encode()),
            ]
            return Output(self._dead_topic, key, value, headers)

        whole = self.cut(letter(key, value, _carried(record), message, stack))
        if self.fits(whole):
            return whole
        bare = letter(key, value, [], message + names.NO_ROOM_FOR_HEADERS.encode(), b"")
        if self.fits(bare):
            return bare
        at = record.partition
        if at.topic == self._requeue:
            # No source takes a record so large: a foreign client wrote it there.
            stays = names.no_room(at.topic, at.number, record.offset)
            return letter(None, None, [], message + stays.encode(), b"")
        return whole  # it waits until a person raises the topic's limit

    def fits(self, letter: Output) -> bool:
        """Returns True if a retry or dead letter fits its topic, or if the limit is not known."""
        return self._limits.fits(letter)

    def cut(self, letter: Output) -> Output:
        """Returns a retry or dead letter cut to its topic's known limit, as far as possible.

        The outermost stack frames go first, then the error's message. Key, value and the record's
        own headers stay whole.
        """
        over = letter.size - self._limits.max_bytes(letter.topic)
        if over <= 0:
            return letter
        texts = {name: content or b"" for name, content in letter.headers if name in _CUT}
        stack, message = texts.get(names.STACKTRACE, b""), texts.get(names.MESSAGE, b"")
        cut = min(over, len(stack))
        shorter = {
            names.STACKTRACE: _whole(stack[cut:]),
            names.MESSAGE: _whole(message[: max(0, len(message) - (over - cut))]),
        }
        headers = [(n, shorter.get(n, c)) for n, c in letter.headers if n != names.ERROR]
        return Output(letter.topic, letter.key, letter.value, headers, partition=letter.partition)


def _carried(record: Record) -> HeaderList:
    if record.envelope is not None:
        return record.envelope.carried
    return carried(record.raw.headers() or ())


def _redriven(record: Record) -> HeaderList:
    times = 0 if record.envelope is None else record.envelope.redriven
    return [(names.REDRIVEN, b"%d" % times)] if times else []


def _whole(text: bytes) -> bytes:
    """Returns UTF-8 text without the bytes of characters that are incomplete."""
    return text.decode(errors="ignore").encode()
