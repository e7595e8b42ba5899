"""The contenders of the benchmark, what each is compared with, and the ratios that are wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.ours import Service
from bench.topic import DISTINCT, HOT, HOT_EVERY, TOPIC

ALL = 1.0
MANY_THREADS = 256
PRODUCING = WAIT_THREADS  # of Parallel Consumer: each waits until its result is acknowledged
TASKS, MANY_TASKS = 1_000, 4_000
SINGLE, BATCH = {"BENCH_FASTSTREAM": "single"}, {"BENCH_FASTSTREAM": "batch"}
BY_KEY, UNORDERED = {"BENCH_ORDERING": "KEY"}, {"BENCH_ORDERING": "UNORDERED"}


@dataclass(frozen=True)
class Contender:
    """One line of the table. `beside` names the contenders that its ratios refer to.

    With `rival` it is a framework; else, with a handler, kworker; else `bench.handwritten` has it,
    by its own name or by `loop`.
    """

    name: str
    what: str
    beside: tuple[str, ...] = ()
    handler: str = ""
    concurrency: int = NO_OP_THREADS
    rival: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # of the rival
    loop: str = ""
    waits: bool = False
    claims: bool = False  # idempotent, with Redis
    exactly_once: bool = False
    retries: int = 0  # records that wait in a delay topic meanwhile
    processes: int = 1
    topic: str = TOPIC
    ordering: str = "key"
    rest: float = 0.0  # share of the records that are timed, if the handler tells them apart
    part: float = 0.5  # share of the records: slow contenders read fewer

    def service(self, records: int) -> Service:
        """The service to run, of kworker."""
        return Service(
            self.handler,
            self.concurrency,
            claims=self.claims,
            exactly_once=self.exactly_once,
            retries=self.retries,
            processes=self.processes,
            topic=self.topic,
            ordering=self.ordering,
            rest=round(records * self.rest),
        )


def _rival(rival: str, name: str, what: str, handler: str, part: float, **more: Any) -> Contender:
    return Contender(name, what, handler=handler, rival=rival, part=part, **more)


POOLS = ("pool", "pool-waits")
FRAMEWORKS = ("quix", "arroyo", "parallel")
PARALLEL = "parallel-consumer"

NO_OP = (
    Contender("poll-default", "raw poll(), librdkafka's defaults", part=ALL),
    Contender("consume-default", "raw consume(500), librdkafka's defaults", part=ALL),
    Contender("poll", "raw poll(), tuned", part=ALL),
    Contender("consume", "raw consume(500), tuned", part=ALL),
    Contender("pool", "hand-written pool, tuned, commits a batch", ("poll",), part=0.12),
    Contender("pool-waits", "the same, written another way", ("poll",), part=0.12),
    _rival("quix", "quix", "Quix Streams", "no_op", 0.15),
    _rival("arroyo", "arroyo", "arroyo, serial", "no_op", 0.15),
    _rival(
        "aiokafka", "aiokafka", "aiokafka, tasks without order", "no_op", 0.15, concurrency=TASKS
    ),
    _rival(
        "faststream", "faststream", "FastStream, a record a call", "no_op", 0.006, variables=SINGLE
    ),
    _rival(
        "faststream",
        "faststream-batches",
        "FastStream, 1,000 a call",
        "no_op",
        0.5,
        variables=BATCH,
    ),
    _rival("celery", "celery", "Celery with Redis, without order", "no_op", 0.0015),
    _rival(PARALLEL, "parallel", "Parallel Consumer, by key", "no_op", 0.25, variables=BY_KEY),
    _rival(
        PARALLEL,
        "parallel-unordered",
        "Parallel Consumer, unordered",
        "no_op",
        0.25,
        variables=UNORDERED,
    ),
    Contender(
        "kworker",
        "kworker, no-op, key order, commits",
        ("poll", *POOLS, *FRAMEWORKS),
        "no_op",
        part=0.6,
    ),
    Contender(
        "kworker-retries",
        "the same, while 5,000 wait for a retry",
        ("kworker",),
        "no_op",
        retries=5_000,
        part=0.6,
    ),
    Contender(
        "kworker-partitions",
        "the same, in the order of partitions",
        ("kworker",),
        "no_op",
        ordering="partition",
        part=0.6,
    ),
)

RESULTS = (
    Contender(
        "kworker-results",
        "kworker, a result produced for each",
        ("poll", *POOLS),
        "result",
        part=0.25,
    ),
    Contender(
        "kworker-exactly-once",
        "the same, exactly once",
        ("kworker-results",),
        "result",
        exactly_once=True,
        part=0.25,
    ),
    _rival("quix", "quix-decoded", "Quix, JSON and a result", "decoded", 0.1),
    _rival("arroyo", "arroyo-decoded", "arroyo, JSON and a result", "decoded", 0.05),
    _rival(
        "aiokafka",
        "aiokafka-decoded",
        "aiokafka, JSON and a result",
        "decoded",
        0.08,
        concurrency=TASKS,
    ),
    _rival(
        "faststream",
        "faststream-decoded",
        "FastStream, the same in batches",
        "decoded",
        0.03,
        variables=BATCH,
    ),
    _rival(
        PARALLEL,
        "parallel-decoded",
        "Parallel Consumer, JSON and a result",
        "decoded",
        0.05,
        concurrency=PRODUCING,
        variables=BY_KEY,
    ),
    Contender(
        "kworker-decoded",
        "kworker, JSON and a result",
        ("poll", *POOLS, "quix-decoded", "arroyo-decoded", "parallel-decoded"),
        "decoded",
        part=0.2,
    ),
    _rival(
        "quix",
        "quix-exactly-once",
        "Quix, the same exactly once",
        "decoded",
        0.1,
        exactly_once=True,
    ),
    _rival(
        PARALLEL,
        "parallel-exactly-once",
        "Parallel Consumer, transactional",
        "decoded",
        0.04,
        concurrency=PRODUCING,
        variables=BY_KEY,
        exactly_once=True,
    ),
    Contender(
        "kworker-decoded-exactly-once",
        "kworker, the same exactly once",
        ("kworker-decoded", "quix-exactly-once", "parallel-exactly-once"),
        "decoded",
        exactly_once=True,
        part=0.2,
    ),
)


def _waiting(
    name: str, what: str, *beside: str, concurrency: int, part: float = ALL, **more: Any
) -> Contender:
    return Contender(name, what, beside, concurrency=concurrency, waits=True, part=part, **more)


WAITING = (
    _waiting("threads", "64 bare threads, 10 ms, no Kafka", concurrency=WAIT_THREADS),
    _waiting(
        "pool-sleeps",
        "hand-written pool of 64, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        part=0.5,
    ),
    _waiting(
        "arroyo-wait",
        "arroyo, 64 threads, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        rival="arroyo",
        part=0.5,
    ),
    _waiting(
        "celery-wait",
        "Celery, 64 threads, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        rival="celery",
        part=0.05,
    ),
    _waiting(
        "parallel-wait",
        "Parallel Consumer, 64 threads, by key",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        rival=PARALLEL,
        variables=BY_KEY,
        part=0.5,
    ),
    _waiting(
        "kworker-wait",
        "kworker, 64 threads, 10 ms each",
        "threads",
        "pool-sleeps",
        "arroyo-wait",
        "parallel-wait",
        concurrency=WAIT_THREADS,
        handler="wait",
    ),
    _waiting(
        "kworker-wait-claims",
        "the same, idempotent",
        "kworker-wait",
        concurrency=WAIT_THREADS,
        handler="wait",
        claims=True,
    ),
    _waiting(
        "threads-256",
        "256 bare threads, 10 ms, no Kafka",
        concurrency=MANY_THREADS,
        part=3.0,
        loop="threads",
    ),
    _waiting(
        "kworker-wait-256",
        "kworker, 256 threads, 10 ms each",
        "threads-256",
        concurrency=MANY_THREADS,
        part=3.0,
        handler="wait",
    ),
)


def _tasks(name: str, what: str, *beside: str, concurrency: int = TASKS, **more: Any) -> Contender:
    return Contender(name, what, beside, concurrency=concurrency, part=0.12, **more)


TASKS_WAITING = (
    _tasks("tasks-1000", "1,000 tasks of asyncio, 10 ms, no Kafka", loop="tasks"),
    _tasks(
        "aiokafka-wait",
        "aiokafka, 1,000 tasks, 10 ms each",
        "tasks-1000",
        handler="wait",
        rival="aiokafka",
    ),
    _tasks(
        "faststream-wait",
        "FastStream, batches of 1,000, 10 ms each",
        "tasks-1000",
        handler="wait",
        rival="faststream",
        variables=BATCH,
    ),
    _tasks(
        "parallel-wait-1000",
        "Parallel Consumer, 1,000 threads, by key",
        "tasks-1000",
        handler="wait",
        rival=PARALLEL,
        variables=BY_KEY,
    ),
    _tasks(
        "kworker-tasks-1000",
        "kworker, 1,000 tasks, 10 ms each",
        "tasks-1000",
        "aiokafka-wait",
        "faststream-wait",
        "parallel-wait-1000",
        handler="wait_async",
    ),
    _tasks(
        "tasks-4000",
        "4,000 tasks of asyncio, 10 ms, no Kafka",
        concurrency=MANY_TASKS,
        loop="tasks",
    ),
    _tasks(
        "kworker-tasks-4000",
        "kworker, 4,000 tasks, 10 ms each",
        "tasks-4000",
        concurrency=MANY_TASKS,
        handler="wait_async",
    ),
)

CLAIMS = (
    Contender("set-nx", "raw poll(), one SET NX a record", part=0.012),
    Contender(
        "kworker-claims", "kworker, no-op, idempotent", ("set-nx",), "no_op", claims=True, part=0.12
    ),
)


DISTURBED = 0.1  # share of the records in each topic of keys of their own
OTHERS = 1 - 1 / HOT_EVERY


def _disturbed(name: str, what: str, *beside: str, **more: Any) -> Contender:
    # So many tasks that those of slow records leave enough for the others.
    return Contender(name, what, beside, concurrency=MANY_TASKS, part=DISTURBED, **more)


DISTURBANCES = (
    _disturbed(
        "kworker-even",
        "kworker, 4,000 tasks, each key once",
        handler="wait_hot",
        topic=DISTINCT,
        rest=1.0,  # timed as the others are, to the end of the last handler
    ),
    _disturbed(
        "kworker-slow",
        "1 % take 500 ms: the others",
        "kworker-even",
        handler="wait_slow",
        topic=DISTINCT,
        rest=OTHERS,
    ),
    _disturbed(
        "kworker-hot",
        "1 % have one key: the other keys",
        "kworker-even",
        handler="wait_hot",
        topic=HOT,
        rest=OTHERS,
    ),
    Contender(
        "kworker-compute", "kworker, 200 µs of CPU, one process", handler="compute", part=0.015
    ),
    Contender(
        "kworker-compute-2",
        "the same, two processes",
        ("kworker-compute",),
        handler="compute",
        processes=2,
        part=0.015,
    ),
)

CONTENDERS = (*NO_OP, *RESULTS, *WAITING, *TASKS_WAITING, *DISTURBANCES, *CLAIMS)

# Of the first to each of the others.
TARGETS = (
    ("kworker", "poll", 0.5),
    *(("kworker", pool, 4.0) for pool in POOLS),
    ("kworker", "quix", 4.0),
    ("kworker", "arroyo", 4.0),
    ("kworker", "parallel", 8.0),
    ("kworker-retries", "kworker", 0.95),
    ("kworker-partitions", "kworker", 0.9),
    ("kworker-decoded", "poll", 0.2),
    *(("kworker-decoded", pool, 1.5) for pool in POOLS),
    ("kworker-exactly-once", "kworker-results", 0.85),
    ("kworker-decoded-exactly-once", "kworker-decoded", 0.85),
    ("kworker-decoded-exactly-once", "quix-exactly-once", 3.5),
    ("kworker-decoded-exactly-once", "parallel-exactly-once", 4.0),
    ("kworker-wait", "threads", 0.99),
    ("kworker-wait-256", "threads-256", 0.95),
    ("kworker-wait-claims", "kworker-wait", 0.97),
    ("kworker-tasks-1000", "tasks-1000", 0.9),
    ("kworker-tasks-1000", "parallel-wait-1000", 2.3),
    ("kworker-tasks-4000", "tasks-4000", 0.8),
    ("kworker-slow", "kworker-even", 0.952),  # 1.05 times the time
    ("kworker-hot", "kworker-even", 0.909),  # 1.1 times
    ("kworker-compute-2", "kworker-compute", 1.7),
    ("kworker-claims", "set-nx", 5.0),
)
