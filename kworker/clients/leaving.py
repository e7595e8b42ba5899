"""The way in which a process leaves its consumer group."""

import threading
import time
from collections.abc import Callable

from kworker.clients.consumer import KafkaConsumer

JOIN_S = 10.0  # at most: for an answer to what was asked of the group, or it keeps a ghost
LEAVE_S = 1.5  # at most: unsubscribed and polling, so that a static member's leaving is heard
CLOSE_S = 5.0
_TURN_S = 0.005


def leave(
    consumer: KafkaConsumer,
    beat: Callable[[], object],
    *,
    for_good: bool,
    join_s: float = JOIN_S,
) -> None:
    """Closes the consumer. With `for_good`, it leaves the group even if it is a static member.

    A consumer that is just joining has no member id yet, and cannot leave without one. The group
    would count it as a member, and assign partitions to it, until its session times out. So with
    `for_good` this function waits up to `join_s` for the id. Calls `beat` while it waits.
    """
    if for_good:
        until = time.monotonic() + min(join_s, JOIN_S)
        while consumer.joining and time.monotonic() < until:
            consumer.poll(1, _TURN_S)
            beat()
        # close() alone does not send a static member's leaving; this does.
        consumer.unsubscribe()
        until = time.monotonic() + LEAVE_S
        while consumer.joined and time.monotonic() < until:
            consumer.poll(1, _TURN_S)
            beat()
    closing = threading.Thread(target=consumer.close, name="close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
