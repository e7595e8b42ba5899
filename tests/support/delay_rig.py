"""A delay process but for its process: the real loop on the twin, and clocks that the test sets."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kworker.clients.errors import KafkaRequestError
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.consumer import MemoryConsumer
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.clients.memory.watch import MemoryWatch
from kworker.core.message import Fields, Headers, PartitionId
from kworker.delay.assignment import DelayAssignment
from kworker.delay.forwarder import Forwarder
from kworker.delay.loop import DelayLoop
from kworker.delay.partitions import HoldPolicy
from kworker.delay.routes import Routes
from kworker.worker.publish.in_doubt import FencePolicy, FencingJudge

PATTERN = r"^orders[.]retry[.][1-9][0-9]*(ms|s|m|h)$"
DELAYS_MS = {"orders.retry.1s": 1_000, "orders.retry.10s": 10_000}
RETIRED_MS = {"orders.retry.1m": 60_000}
REQUEUE, DEAD = "orders.requeue", "orders.dead"
START_MS = 1_700_000_000_000


class Clocks:
    """One for people, which may jump, and one for the process."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.now_s = 1000.0

    def go_on(self, ms: int) -> None:
        self.wall_ms += ms
        self.now_s += ms / 1000


class Member(MemoryConsumer):
    """The twin's consumer, remembering what was paused, and how much it handed over."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.paused: set[PartitionId] = set()
        self.handed = 0

    def poll(self, most: int, timeout_s: float) -> list[Any]:
        batch = super().poll(most, timeout_s)
        self.handed += sum(1 for raw in batch if raw.error() is None)
        return batch

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        self.paused.update(partitions)
        super().pause(partitions)

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        self.paused.difference_update(partitions)
        super().resume(partitions)


class DelayBench:
    """One delay process of the group; `end` of a transaction may be made to go wrong."""

    def __init__(
        self,
        kafka: MemoryKafka,
        clocks: Clocks,
        *,
        name: str = "delay",
        hold: HoldPolicy | None = None,
        delays: Mapping[str, int] = DELAYS_MS,
        waits: Callable[[], bool] = lambda: True,
        began: float = -math.inf,
    ) -> None:
        self.kafka = kafka
        self.clocks = clocks
        self.doubt: Callable[[], None] | None = None  # raises what the next commit is to raise
        self.committed_before_doubt = False
        self.forwarder = Forwarder(lambda: Doubtful(self, name))
        properties = {"group.id": "orders.delay", "enable.partition.eof": True}
        self.assignment = DelayAssignment(
            lambda assignment: Member(kafka, {**properties, "group.instance.id": name}, assignment),
            lambda topic: {**DELAYS_MS, **RETIRED_MS}[topic],
            hold or HoldPolicy(1000, 1 << 20),
            self.forwarder.open,
            waits,
        )
        self.loop = DelayLoop(
            self.assignment,
            self.forwarder,
            MemoryWatch(kafka),
            Routes(REQUEUE, DEAD, delays),
            FencingJudge(name, FencePolicy(limit_s=30.0), began),
            lambda: clocks.now_s,
            lambda: clocks.wall_ms,
        )
        self.consumer: Any = self.assignment.consumer
        self.consumer.subscribe([PATTERN])

    def turns(self, count: int = 6, ms: int = 25) -> None:
        for _ in range(count):
            self.clocks.go_on(ms)
            self.loop.turn()

    def run(self, ms: int, step_ms: int = 25) -> None:
        """Lets time pass."""
        self.turns(ms // step_ms, step_ms)

    def fail_next_commit(self, *, though_committed: bool) -> None:
        self.committed_before_doubt = though_committed
        self.doubt = _in_doubt

    def die(self) -> None:
        """As by SIGKILL."""
        self.consumer.expire()


class Doubtful(MemoryTransactor):
    """A transactor whose commit may end in doubt."""

    def __init__(self, bench: DelayBench, name: str) -> None:
        super().__init__(bench.kafka, {}, name, 1.0)
        self._bench = bench

    def commit(self) -> None:
        bench, doubt = self._bench, self._bench.doubt
        bench.doubt = None
        if doubt is None or bench.committed_before_doubt:
            super().commit()
        if doubt is not None:
            doubt()


def _in_doubt() -> None:
    raise KafkaRequestError("the commit took 60 s", retriable=True)


def broker(clocks: Clocks, partitions: int = 2) -> MemoryKafka:
    """With the topics of a service that waits."""
    kafka = MemoryKafka(lambda: clocks.wall_ms / 1000)
    for topic in (*DELAYS_MS, REQUEUE, DEAD):
        kafka.create(topic, partitions)
    return kafka


def headers(
    offset: int, due_ms: int, *, partition: int = 0, attempt: int = 2, user: Headers = ()
) -> Headers:
    """As a worker writes them."""
    return (
        *user,
        ("kworker-source", b"orders/%d/%d/%d" % (partition, offset, START_MS)),
        ("kworker-attempt", b"%d" % attempt),
        ("kworker-due", b"%d" % due_ms),
        ("kworker-error", b"TimeoutError: no answer"),
    )


def wait(
    kafka: MemoryKafka,
    clocks: Clocks,
    topic: str,
    *offsets: int,
    after_ms: int | None = None,
    partition: int = 0,
) -> None:
    """Records that failed just now, and wait in a delay topic."""
    delay_ms = {**DELAYS_MS, **RETIRED_MS}[topic] if after_ms is None else after_ms
    due_ms = clocks.wall_ms + delay_ms
    for offset in offsets:
        kafka.append(
            topic,
            partition,
            key=b"k%d" % offset,
            value=b"%d" % offset,
            headers=headers(offset, due_ms, partition=partition),
        )


def values(kafka: MemoryKafka, topic: str) -> list[Fields]:
    return [record.value() for record in kafka.records(topic)]  # type: ignore[misc]
