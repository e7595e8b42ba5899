"""One of three brokers hangs: whoever asks Kafka for facts is soon answered by the others."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kworker.clients.admin import Admin
from kworker.clients.errors import KafkaRequestError
from kworker.clients.offsets import TopicWatch, connect
from kworker.clients.watch import KafkaWatch
from kworker.config.topics import TopicSpec
from kworker.errors import Unreachable
from kworker.sandbox import Sandbox
from tests.support.service import frozen
from tests.support.waiting import eventually, repeated

TOPIC = "facts"
OF_EACH_KIND = 5  # so that some take the broker that hangs for the controller
ASK_S = 2.0
ANSWERED_S = 60.0  # the others need ten to notice that one hangs

Ask = Callable[[], bool]
"""Asks once; False without an answer."""


def ids(properties: Mapping[str, Any]) -> Ask:
    """As a worker asks when partitions are assigned to it."""
    watch = KafkaWatch(properties)

    def ask() -> bool:
        try:
            return watch.identities([TOPIC], ASK_S).keys() == {TOPIC}
        except KafkaRequestError:
            return False

    return ask


def partitions(properties: Mapping[str, Any]) -> Ask:
    """As the delay process asks, all the time."""
    watch = KafkaWatch(properties)

    def ask() -> bool:
        watch.ask_partitions([TOPIC])
        return bool(
            eventually(lambda: [found] if (found := watch.partitions()) is not None else [])[0]
        )

    return ask


def settings(properties: Mapping[str, Any]) -> Ask:
    """As the lag of the group is read."""
    admin = Admin(properties, timeout_s=ASK_S)

    def ask() -> bool:
        try:
            return admin.topics([TOPIC], ["retention.ms"]).keys() == {TOPIC}
        except Unreachable:
            return False

    return ask


def ends(properties: Mapping[str, Any]) -> Ask:
    """As the Spark job asks for what is left."""
    handle = connect(properties)

    def ask() -> bool:
        watch = TopicWatch(handle, TOPIC)

        def told() -> bool:
            watch.turn()
            return bool(watch.ends or watch.problem)

        eventually(told)
        return not watch.problem

    return ask


def failures(ask: Ask) -> int:
    """How often it was not answered, before it was."""
    failed: list[bool] = []

    def answered() -> bool:
        failed.append(not ask())
        return not failed[-1]

    eventually(answered, timeout_s=ANSWERED_S, every_s=0.2, what="an answer")
    return sum(failed)


def test_one_broker_that_hangs_stops_no_answer(own_sandbox: Callable[..., Sandbox]) -> None:
    """All clients were connected before. librdkafka alone asks the one that hangs for ever."""
    sandbox = own_sandbox(brokers=3, redis=False)
    properties = {"bootstrap.servers": sandbox.bootstrap}
    assert Admin(properties).create([TopicSpec(TOPIC, 3, 3, {})]) == {}
    kinds = (ids, partitions, settings, ends)
    asks = [kind(properties) for kind in kinds for _ in range(OF_EACH_KIND)]
    with ThreadPoolExecutor(len(asks)) as threads:
        list(threads.map(failures, asks))  # all are connected
        hit: Counter[str] = Counter()

        def hung(number: int) -> Counter[str]:
            with frozen(sandbox.broker_pid(1 + number % 3)):
                counts = list(threads.map(failures, asks))
            for nth, count in enumerate(counts):
                hit[kinds[nth // OF_EACH_KIND].__name__] += count
            return hit

        # So the test says something: there were clients of each kind that had no answer at first.
        repeated(hung, lambda hit: all(hit[kind.__name__] for kind in kinds), tries=9)
