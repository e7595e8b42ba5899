"""How a process leaves its consumer group."""

import threading
import time
from collections.abc import Callable

from kworker.clients.kafka import KafkaConsumer

LEAVE_S = 1.5  # at most: unsubscribed and polling, so that a static member's leaving is heard
CLOSE_S = 5.0
_TURN_S = 0.005


def leave(consumer: KafkaConsumer, beat: Callable[[], object], *, for_good: bool) -> None:
    """Closes the consumer; `for_good` also gives up a static member's place in the group."""
    if for_good:
        # close() alone does not send a static member's leaving; this does.
        consumer.unsubscribe()
        until = time.monotonic() + LEAVE_S
        while consumer.joined and time.monotonic() < until:
            consumer.take(1, _TURN_S)
            beat()
    closing = threading.Thread(target=consumer.close, name="close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
