"""Brokers hang: whoever asks Kafka for facts is soon answered by others, and lives on."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kworker.clients.admin import Admin
from kworker.clients.admin_connection import AdminRequestError
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


# Asks all the time, as many workers do when their partitions are assigned anew.
ASKING = """
import sys, threading, time
from kworker.clients.errors import KafkaRequestError
from kworker.clients.watch import KafkaWatch

def ask():
    watch = KafkaWatch({"bootstrap.servers": sys.argv[1]})
    while True:
        try:
            watch.identities(["facts"], 30.0)  # longer than a freeze: answered at its very end
        except KafkaRequestError:
            pass
        time.sleep(0.05)

for _ in range(24):
    threading.Thread(target=ask, daemon=True).start()
sys.stdin.read()
"""
FREEZES = 6
FENCED_S = 11.0  # a broker that was silent for longer has to register again


def test_a_broker_that_is_not_ready_ends_no_process(own_sandbox: Callable[..., Sandbox]) -> None:
    """It answers before it has registered again, that there are no brokers at all.

    librdkafka's request for a description of the cluster then aborts the process, mostly within
    these freezes.
    """
    sandbox = own_sandbox(redis=False)
    admin = Admin({"bootstrap.servers": sandbox.bootstrap})
    assert admin.create([TopicSpec(TOPIC, 1, 1, {})]) == {}
    # It ended by SIGSEGV once, and said nothing of where.
    command = [sys.executable, "-X", "faulthandler", "-c", ASKING, sandbox.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
        for _ in range(FREEZES):
            with frozen(sandbox.broker_pid(1)):
                time.sleep(FENCED_S)
            eventually(lambda: ready(admin), timeout_s=ANSWERED_S, what="a leader, and it is known")
        _, said = asking.communicate(timeout=ANSWERED_S)
    assert asking.returncode == 0, said.decode()


def ready(admin: Admin) -> bool:
    """The broker leads its partition again."""
    try:
        return bool(admin.list_offsets([(TOPIC, 0)], "latest"))
    except (AdminRequestError, Unreachable):
        return False
