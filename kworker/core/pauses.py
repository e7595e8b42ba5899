"""Pauses: the orders of operators to take no more records of a topic, or of all topics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALL = "*"
"""Stands for all source topics and the requeue topic. No topic can have this name."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The order to take no records of a topic. Times are in milliseconds since 1970.

    An order has the time `at_ms` at which it was given. `since_ms` is earlier if the topic was
    paused already, and this order only moved the end. `until_ms` is None for a pause that lasts
    until `kworker resume`.
    """

    at_ms: int
    by: str
    since_ms: int
    until_ms: int | None = None

    def lasts(self, now_ms: int) -> bool:
        """Returns True if `now_ms` is before `until_ms`, or if `until_ms` is None."""
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class Resumption:
    """The order to take records of a topic again. `at_ms` is in milliseconds since 1970."""

    at_ms: int
    by: str


PauseOrder = Pause | Resumption
PauseOrders = Mapping[str, PauseOrder]
"""The newest order for each topic, or for ALL. A topic without an order is not paused."""


@dataclass(frozen=True, slots=True)
class PausedTopics:
    """The topics of which no records are taken; ALL stands for every topic."""

    names: frozenset[str] = frozenset()

    def __contains__(self, topic: str) -> bool:
        return topic in self.names or ALL in self.names

    def cover(self, topics: Iterable[str]) -> bool:
        """Returns True if all these topics are paused."""
        return all(topic in self for topic in topics)


NOTHING_PAUSED = PausedTopics()
EVERYTHING_PAUSED = PausedTopics(frozenset((ALL,)))


def named(topic: str) -> str:
    """Returns the topic's name for a message to a person; "all topics" for ALL."""
    return "all topics" if topic == ALL else topic


def merge(*known: PauseOrders) -> dict[str, PauseOrder]:
    """Returns the newest order for each topic, whatever the sequence of the arguments.

    Of two orders with the same time, every host chooses the same one. So hosts that exchange their
    orders all get the same result.
    """
    newest: dict[str, PauseOrder] = {}
    for orders in known:
        for topic, order in orders.items():
            if topic not in newest or _rank(order) > _rank(newest[topic]):
                newest[topic] = order
    return newest


def _rank(order: PauseOrder) -> tuple[int, str]:
    return order.at_ms, str(order)


def in_force(orders: PauseOrders, now_ms: int) -> dict[str, Pause]:
    """Returns the pauses that have not ended, by topic."""
    pauses = {topic: order for topic, order in orders.items() if isinstance(order, Pause)}
    return {topic: pause for topic, pause in pauses.items() if pause.lasts(now_ms)}


def order_pause(
    orders: PauseOrders, topics: Iterable[str], by: str, now_ms: int, until_ms: int | None
) -> dict[str, PauseOrder]:
    """Returns new orders that pause these topics. A pause in force keeps its beginning."""
    paused = in_force(orders, now_ms)
    return {
        topic: Pause(
            _after(orders, topic, now_ms),
            by,
            paused[topic].since_ms if topic in paused else now_ms,
            until_ms,
        )
        for topic in topics
    }


def order_resumption(
    orders: PauseOrders, topics: Iterable[str], by: str, now_ms: int
) -> dict[str, PauseOrder]:
    """Returns new orders that end the pauses of these topics."""
    return {topic: Resumption(_after(orders, topic, now_ms), by) for topic in topics}


def _after(orders: PauseOrders, topic: str, now_ms: int) -> int:
    """Returns the time of a new order: now, but later than the order that it replaces.

    The clock of the host that gave the earlier order may be ahead of this host's.
    """
    earlier = orders.get(topic)
    return now_ms if earlier is None else max(now_ms, earlier.at_ms + 1)
