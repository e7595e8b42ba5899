"""Client properties that librdkafka refuses, found without a broker."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from kworker.clients.admin_connection import SILENT, reason_of

T = TypeVar("T")


class PropertyRefusal(NamedTuple):
    """A property that librdkafka refuses, and the reason; `name` is "" if unknown."""

    name: str
    reason: str


def refusals(
    kind: Literal["consumer", "producer"],
    properties: Mapping[str, Any],
    chosen: Collection[str] = (),
) -> Iterator[PropertyRefusal]:
    """Yields the properties that librdkafka refuses. Contacts no broker.

    Of two properties that exclude each other, yields the one whose name is in `chosen`: the user
    has set that one.
    """
    left = dict(properties)
    while reason := _refusal(kind, left):
        name = _culprit(kind, left, reason, chosen)
        yield PropertyRefusal(name, reason)
        if not name:
            return
        del left[name]


def _culprit(
    kind: Literal["consumer", "producer"],
    properties: Mapping[str, Any],
    reason: str,
    chosen: Collection[str],
) -> str:
    """Returns the property that librdkafka refuses for this `reason`; "" if it is not found."""
    if named := [name for name in properties if name in reason]:
        return max(named, key=lambda name: (name in chosen, len(name)))
    if "configuration property" not in reason:
        return ""
    # It has used another name for it: linger.ms is queue.buffering.max.ms, too.
    for name in properties:
        if _refusal(kind, {n: v for n, v in properties.items() if n != name}) != reason:
            return name
    return ""


def _refusal(kind: Literal["consumer", "producer"], properties: Mapping[str, Any]) -> str:
    try:
        if kind == "consumer":
            Consumer(dict(properties), logger=SILENT).close()
        else:
            Producer(dict(properties), logger=SILENT)
    except KafkaException as error:
        return reason_of(error)
    return ""
