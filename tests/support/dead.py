"""Dead letters as the workers write them, made by hand."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from kworker.core import headers as names
from kworker.core.message import HeaderList
from tests.support.kafka import SEVERE

TIMEOUT_S = 60.0
LARGEST = 4_000_000
NOW = 1_760_000_000_000  # ms: when they failed, unless told otherwise


def dead_headers(
    source: str = "orders/0/5/1700000000000",
    *,
    own: Iterable[tuple[str, bytes | None]] = (),
    reason: str = "exhausted",
    exception: str = "requests.exceptions.Timeout",
    message: str = "no answer",
    stack: str = "Traceback …",
    attempt: int = 4,
    failed_at: int = NOW,
    redriven: int = 0,
    replay: str = "",
) -> HeaderList:
    """A dead letter's headers; `own` is what the record's producer wrote."""
    told: list[tuple[str, str]] = [
        (names.SOURCE, source),
        (names.ATTEMPT, str(attempt)),
        (names.FAILED_AT, str(failed_at)),
        (names.REASON, reason),
        (names.EXCEPTION, exception),
        (names.MESSAGE, message),
        (names.STACKTRACE, stack),
    ]
    if redriven:
        told.append((names.REDRIVEN, str(redriven)))
    if replay:
        told.append((names.REPLAY, replay))
    told.append((names.FOREIGN_TOPIC, source.rsplit("/", 3)[0]))
    told.append((names.FOREIGN_EXCEPTION, exception))
    return [*names.carried(own), *((name, text.encode()) for name, text in told)]


class DeadWriter:
    """Writes dead letters of one service."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        own = {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": SEVERE}
        self._producer = Producer({**own, "message.max.bytes": LARGEST})
        self._topic = topic

    def write(
        self,
        number: int = 0,
        *,
        partition: int = 0,
        key: bytes | None = b"k",
        value: bytes | None = b"v",
        **fields: Any,
    ) -> None:
        """One of the source offset `number`."""
        fields.setdefault("source", f"orders/{partition}/{number}/1700000000000")
        headers = dead_headers(**fields)
        self._producer.produce(self._topic, value, key, partition, headers=headers)

    def write_raw(self, headers: HeaderList, partition: int = 0) -> None:
        """One that somebody else wrote."""
        self._producer.produce(self._topic, b"raw", None, partition, headers=headers)

    def flush(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0
