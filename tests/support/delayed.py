"""The delay process as the worker sees it, in one step: what waits comes again by the requeue."""

from kworker.clients.memory.broker import MemoryKafka
from kworker.core import headers
from kworker.core.headers import Envelope
from kworker.core.message import Headers, RawMessage
from tests.support.poll_loop_rig import DELAYS_S, REQUEUE, retry_topic


class Delays:
    """Forwards what has come to the delay topics since the last time."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._forwarded: dict[str, int] = {}

    def forward(self) -> int:
        """How many records."""
        moved = 0
        for topic in map(retry_topic, DELAYS_S):
            waiting = self._kafka.records(topic)[self._forwarded.get(topic, 0) :]
            self._forwarded[topic] = self._forwarded.get(topic, 0) + len(waiting)
            for raw in waiting:
                requeue(self._kafka, Envelope.open(raw.headers() or ()), raw)
                moved += 1
        return moved


def requeue(kafka: MemoryKafka, envelope: Envelope, raw: RawMessage) -> None:
    """A record with an envelope comes again."""
    own: Headers = (
        *envelope.carried,
        (headers.SOURCE, str(envelope.source).encode()),
        (headers.ATTEMPT, b"%d" % envelope.attempt),
    )
    partition = envelope.source.partition % 2
    kafka.append(REQUEUE, partition, value=raw.value(), key=raw.key(), headers=own)
