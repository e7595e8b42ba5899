"""The contenders of the benchmark, what each is compared with, and the ratios that are wanted.

It has more than 300 lines, since it is one table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.frameworks import Program
from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.ours import Service
from bench.topic import DISTINCT, HOT, HOT_EVERY, TOPIC

ALL = 1.0
MANY_THREADS = 256
PRODUCING = WAIT_THREADS  # of Parallel Consumer: each waits until its result is acknowledged
TASKS, MANY_TASKS = 1_000, 4_000
COMPUTE = "compute"  # the handler that takes CPU time


class Mode(NamedTuple):
    """A framework in one way to use it: `probe` and `lacks` are as in `Contender`."""

    rival: str
    probe: str
    lacks: str
    variables: Mapping[str, str]


KEY_ORDER, DEAD, EXACTLY_ONCE = "order by key", "dead letters", "exactly once"
RETRIES, IN_TOPIC = "delayed retries that survive a restart", "results in a topic"

QUIX = Mode("quix", "Quix Streams", f"{RETRIES}, {DEAD}", {})
ARROYO = Mode("arroyo", "arroyo, serial", f"{RETRIES}, {EXACTLY_ONCE}", {"BENCH_ARROYO": "serial"})
ARROYO_THREADS = Mode(
    "arroyo", "arroyo, threads", f"{KEY_ORDER}, {ARROYO.lacks}", {"BENCH_ARROYO": "threads"}
)
ARROYO_PROCESSES = Mode(
    "arroyo", "arroyo, processes", ARROYO_THREADS.lacks, {"BENCH_ARROYO": "processes"}
)
AIOKAFKA = Mode(
    "aiokafka",
    "aiokafka, tasks without order",
    f"{KEY_ORDER}, {RETRIES}, {DEAD}",
    {},
)
FASTSTREAM = Mode(
    "faststream",
    "FastStream, a record a call",
    f"{RETRIES}, {DEAD}, {EXACTLY_ONCE}",
    {"BENCH_FASTSTREAM": "single"},
)
FASTSTREAM_BATCHES = Mode(
    "faststream", "FastStream, batches", FASTSTREAM.lacks, {"BENCH_FASTSTREAM": "batch"}
)
# The handlers of a batch that wait all run at the same time.
FASTSTREAM_AT_ONCE = FASTSTREAM_BATCHES._replace(lacks=f"{KEY_ORDER}, {FASTSTREAM.lacks}")
# Its retries with a countdown are in Redis: they survive a restart.
CELERY = Mode(
    "celery",
    "Celery with Redis, without order",
    f"a reader of Kafka, {KEY_ORDER}, {DEAD}, {EXACTLY_ONCE}, {IN_TOPIC}",
    {},
)
# It delays retries in memory: after a restart it does not know that a record has failed.
PARALLEL = Mode(
    "parallel-consumer",
    "Parallel Consumer, by key",
    f"{RETRIES}, {DEAD}",
    {"BENCH_ORDERING": "KEY"},
)
PARALLEL_TRANSACTIONAL = PARALLEL._replace(probe="Parallel Consumer, transactional")
PARALLEL_UNORDERED = Mode(
    "parallel-consumer",
    "Parallel Consumer, unordered",
    f"{KEY_ORDER}, {PARALLEL.lacks}",
    {"BENCH_ORDERING": "UNORDERED"},
)
# Of what is written by hand.
LOOP_LACKS = f"commits after the handler, {RETRIES}, {DEAD}, {EXACTLY_ONCE}, {IN_TOPIC}"
POOL_LACKS = f"{KEY_ORDER}, {RETRIES}, {DEAD}, {EXACTLY_ONCE}, {IN_TOPIC}"
SET_NX_LACKS = f"{RETRIES}, {DEAD}, {EXACTLY_ONCE}, {IN_TOPIC}"
BARE_LACKS = "everything but the handler"

# The probes of what is no framework.
POOL, POOL_WAITS = "hand-written pool", "hand-written pool, another way"
SET_NX = "raw poll(), one SET NX a record"
KWORKER, KWORKER_TASKS, KWORKER_CLAIMS = "kworker", "kworker, tasks", "kworker, idempotent"
KWORKER_ONCE, KWORKER_PARTITIONS = "kworker, exactly once", "kworker, in the order of partitions"


@dataclass(frozen=True)
class Contender:
    """One line of the table. `beside` names the contenders that its ratios refer to.

    With `rival` it is a framework; else, with a handler, kworker; else `bench.handwritten` has it,
    by its own name or by `loop`.

    `probe` names the row of `bench.latency` that tells whether it lets other keys wait behind a
    slow one: a property of a framework in a mode, whatever the handler is. Without a handler there
    is none. `lacks` names what it does not have of: order by key, commits after the handler,
    delayed retries that survive a restart, dead letters, exactly once, results in a topic. A
    framework has what it offers, used here or not; what is written by hand has only what is
    written.

    `what` names the line below those before it. `in_full` is for one that cannot be read without
    them.
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
    probe: str = ""
    lacks: str = ""
    in_full: str = ""

    @property
    def alone(self) -> str:
        """The name of the line that can be read without the others."""
        return self.in_full or self.what

    def program(self, records: int) -> Program:
        """The program to run, of a rival."""
        return Program(
            self.rival,
            self.handler,
            self.concurrency,
            exactly_once=self.exactly_once,
            topic=self.topic,
            rest=round(records * self.rest),
            variables=self.variables,
        )

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


def _loop(name: str, what: str) -> Contender:
    return Contender(name, what, part=ALL, lacks=LOOP_LACKS)


def _pool(name: str, what: str, probe: str, in_full: str = "") -> Contender:
    return Contender(
        name, what, ("poll",), part=0.2, probe=probe, lacks=POOL_LACKS, in_full=in_full
    )


def _rival(mode: Mode, name: str, what: str, handler: str, part: float, **more: Any) -> Contender:
    return Contender(name, what, handler=handler, part=part, **mode._asdict(), **more)


POOLS = ("pool", "pool-waits")
FRAMEWORKS = ("quix", "arroyo", "parallel")

NO_OP = (
    _loop("poll-default", "raw poll(), librdkafka's defaults"),
    _loop("consume-default", "raw consume(500), librdkafka's defaults"),
    _loop("poll", "raw poll(), tuned"),
    _loop("consume", "raw consume(500), tuned"),
    _pool("pool", "hand-written pool, tuned, commits a batch", POOL),
    _pool(
        "pool-waits",
        "the same, written another way",
        POOL_WAITS,
        "hand-written pool, tuned, another way",
    ),
    _rival(QUIX, "quix", "Quix Streams", "no_op", 0.2, in_full="Quix Streams, no-op"),
    _rival(ARROYO, "arroyo", "arroyo, serial", "no_op", 0.1, in_full="arroyo, no-op, serial"),
    _rival(AIOKAFKA, "aiokafka", "aiokafka, tasks without order", "no_op", 0.15, concurrency=TASKS),
    _rival(FASTSTREAM, "faststream", "FastStream, a record a call", "no_op", 0.006),
    _rival(FASTSTREAM_BATCHES, "faststream-batches", "FastStream, 1,000 a call", "no_op", 0.5),
    _rival(CELERY, "celery", "Celery with Redis, without order", "no_op", 0.0015),
    _rival(
        PARALLEL,
        "parallel",
        "Parallel Consumer, by key",
        "no_op",
        0.2,
        in_full="Parallel Consumer, no-op, by key",
    ),
    _rival(
        PARALLEL_UNORDERED,
        "parallel-unordered",
        "Parallel Consumer, unordered",
        "no_op",
        0.12,
        in_full="Parallel Consumer, no-op, unordered",
    ),
    Contender(
        "kworker",
        "kworker, no-op, key order, commits",
        ("poll", *POOLS, *FRAMEWORKS),
        "no_op",
        part=ALL,
        probe=KWORKER,
    ),
    Contender(
        "kworker-retries",
        "the same, while 5,000 wait for a retry",
        ("kworker",),
        "no_op",
        retries=5_000,
        part=ALL,
        probe=KWORKER,
        in_full="kworker, no-op, while 5,000 wait for a retry",
    ),
    Contender(
        "kworker-partitions",
        "the same, in the order of partitions",
        ("kworker",),
        "no_op",
        ordering="partition",
        part=ALL,
        probe=KWORKER_PARTITIONS,
        in_full="kworker, no-op, in the order of partitions",
    ),
)

RESULTS = (
    Contender(
        "kworker-results",
        "kworker, a result produced for each",
        ("poll", *POOLS),
        "result",
        part=0.45,
        probe=KWORKER,
    ),
    Contender(
        "kworker-exactly-once",
        "the same, exactly once",
        ("kworker-results",),
        "result",
        exactly_once=True,
        part=0.45,
        probe=KWORKER_ONCE,
        in_full="kworker, a result produced for each, exactly once",
    ),
    _rival(QUIX, "quix-decoded", "Quix, JSON and a result", "decoded", 0.1),
    _rival(ARROYO, "arroyo-decoded", "arroyo, JSON and a result", "decoded", 0.05),
    _rival(
        AIOKAFKA,
        "aiokafka-decoded",
        "aiokafka, JSON and a result",
        "decoded",
        0.08,
        concurrency=TASKS,
    ),
    _rival(
        FASTSTREAM_BATCHES,
        "faststream-decoded",
        "FastStream, the same in batches",
        "decoded",
        0.03,
        in_full="FastStream, JSON and a result, in batches",
    ),
    _rival(
        PARALLEL,
        "parallel-decoded",
        "Parallel Consumer, JSON and a result",
        "decoded",
        0.05,
        concurrency=PRODUCING,
    ),
    Contender(
        "kworker-decoded",
        "kworker, JSON and a result",
        ("poll", *POOLS, "quix-decoded", "arroyo-decoded", "parallel-decoded"),
        "decoded",
        part=0.4,
        probe=KWORKER,
    ),
    _rival(
        QUIX,
        "quix-exactly-once",
        "Quix, the same exactly once",
        "decoded",
        0.15,
        exactly_once=True,
        in_full="Quix, JSON and a result, exactly once",
    ),
    _rival(
        PARALLEL_TRANSACTIONAL,
        "parallel-exactly-once",
        "Parallel Consumer, transactional",
        "decoded",
        0.03,
        concurrency=PRODUCING,
        exactly_once=True,
        in_full="Parallel Consumer, JSON and a result, transactional",
    ),
    Contender(
        "kworker-decoded-exactly-once",
        "kworker, the same exactly once",
        ("kworker-decoded", "quix-exactly-once", "parallel-exactly-once"),
        "decoded",
        exactly_once=True,
        part=0.4,
        probe=KWORKER_ONCE,
        in_full="kworker, JSON and a result, exactly once",
    ),
)


def _waiting(
    name: str, what: str, *beside: str, concurrency: int, part: float = ALL, **more: Any
) -> Contender:
    return Contender(name, what, beside, concurrency=concurrency, waits=True, part=part, **more)


WAITING = (
    _waiting(
        "threads",
        "64 bare threads, 10 ms, no Kafka",
        concurrency=WAIT_THREADS,
        lacks=BARE_LACKS,
    ),
    _waiting(
        "pool-sleeps",
        "hand-written pool of 64, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        part=0.5,
        probe=POOL,
        lacks=POOL_LACKS,
    ),
    _waiting(
        "quix-wait",
        "Quix, 10 ms each, one after the other",
        "threads",
        concurrency=1,
        handler="wait",
        part=0.008,
        **QUIX._asdict(),
    ),
    _waiting(
        "arroyo-wait",
        "arroyo, 64 threads, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        part=0.5,
        **ARROYO_THREADS._asdict(),
    ),
    _waiting(
        "celery-wait",
        "Celery, 64 threads, 10 ms each",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        part=0.05,
        **CELERY._asdict(),
    ),
    _waiting(
        "parallel-wait",
        "Parallel Consumer, 64 threads, by key",
        "threads",
        concurrency=WAIT_THREADS,
        handler="wait",
        part=0.5,
        **PARALLEL._asdict(),
    ),
    _waiting(
        "kworker-wait",
        "kworker, 64 threads, 10 ms each",
        "threads",
        "pool-sleeps",
        "quix-wait",
        "arroyo-wait",
        "parallel-wait",
        concurrency=WAIT_THREADS,
        handler="wait",
        probe=KWORKER,
    ),
    _waiting(
        "kworker-wait-claims",
        "the same, idempotent",
        "kworker-wait",
        concurrency=WAIT_THREADS,
        handler="wait",
        claims=True,
        probe=KWORKER_CLAIMS,
        in_full="kworker, 64 threads, 10 ms each, idempotent",
    ),
    _waiting(
        "threads-256",
        "256 bare threads, 10 ms, no Kafka",
        concurrency=MANY_THREADS,
        part=2.5,
        loop="threads",
        lacks=BARE_LACKS,
    ),
    _waiting(
        "parallel-wait-256",
        "Parallel Consumer, 256 threads, by key",
        "threads-256",
        concurrency=MANY_THREADS,
        handler="wait",
        **PARALLEL._asdict(),
    ),
    _waiting(
        "kworker-wait-256",
        "kworker, 256 threads, 10 ms each",
        "threads-256",
        "parallel-wait-256",
        concurrency=MANY_THREADS,
        part=2.5,
        handler="wait",
        probe=KWORKER,
    ),
)


def _tasks(name: str, what: str, *beside: str, concurrency: int = TASKS, **more: Any) -> Contender:
    return Contender(name, what, beside, concurrency=concurrency, part=0.1, **more)


TASKS_WAITING = (
    _tasks("tasks-1000", "1,000 tasks of asyncio, 10 ms, no Kafka", loop="tasks", lacks=BARE_LACKS),
    _tasks(
        "aiokafka-wait",
        "aiokafka, 1,000 tasks, 10 ms each",
        "tasks-1000",
        handler="wait",
        **AIOKAFKA._asdict(),
    ),
    _tasks(
        "faststream-wait",
        "FastStream, batches of 1,000, 10 ms each",
        "tasks-1000",
        handler="wait",
        **FASTSTREAM_AT_ONCE._asdict(),
    ),
    _tasks(
        "parallel-wait-1000",
        "Parallel Consumer, 1,000 threads, by key",
        "tasks-1000",
        handler="wait",
        **PARALLEL._asdict(),
    ),
    _tasks(
        "kworker-tasks-1000",
        "kworker, 1,000 tasks, 10 ms each",
        "tasks-1000",
        "aiokafka-wait",
        "faststream-wait",
        "parallel-wait-1000",
        handler="wait_async",
        probe=KWORKER_TASKS,
    ),
    _tasks(
        "tasks-4000",
        "4,000 tasks of asyncio, 10 ms, no Kafka",
        concurrency=MANY_TASKS,
        loop="tasks",
        lacks=BARE_LACKS,
    ),
    _tasks(
        "kworker-tasks-4000",
        "kworker, 4,000 tasks, 10 ms each",
        "tasks-4000",
        concurrency=MANY_TASKS,
        handler="wait_async",
        probe=KWORKER_TASKS,
    ),
)

CLAIMS = (
    Contender(
        "set-nx", "raw poll(), one SET NX a record", part=0.012, probe=SET_NX, lacks=SET_NX_LACKS
    ),
    Contender(
        "kworker-claims",
        "kworker, no-op, idempotent",
        ("set-nx",),
        "no_op",
        claims=True,
        part=0.08,
        probe=KWORKER_CLAIMS,
    ),
)


# Shares of the records. Beside slow records of 500 ms, many times that long; and so few of the hot
# key that the worker may have all of them in flight.
DISTINCT_PART, HOT_PART = 0.25, 0.06
OTHERS = 1 - 1 / HOT_EVERY
# Of a topic's end: there may be a few more slow records than one of a hundred.
OTHERS_OF_PART = OTHERS - 0.003


def _disturbed(name: str, what: str, *beside: str, **more: Any) -> Contender:
    # So many tasks that those of slow records leave enough for the others.
    return Contender(name, what, beside, concurrency=MANY_TASKS, probe=KWORKER_TASKS, **more)


def _disturbed_parallel(name: str, what: str, *beside: str, **more: Any) -> Contender:
    return Contender(
        name,
        what,
        beside,
        concurrency=TASKS,
        part=0.025,
        rest=OTHERS_OF_PART,
        **more,
        **PARALLEL._asdict(),
    )


DISTURBANCES = (
    Contender(
        "tasks-even",
        "4,000 tasks of asyncio, no Kafka",
        concurrency=MANY_TASKS,
        part=DISTINCT_PART,
        loop="tasks-even",
        lacks=BARE_LACKS,
    ),
    Contender(
        "tasks-slow",
        "the same, 1 % take 500 ms: the others",
        ("tasks-even",),
        concurrency=MANY_TASKS,
        part=DISTINCT_PART,
        loop="tasks-slow",
        lacks=BARE_LACKS,
        in_full="4,000 tasks of asyncio, 1 % take 500 ms: the others",
    ),
    _disturbed(
        "kworker-even",
        "kworker, 4,000 tasks, each key once",
        handler="wait_hot",
        topic=DISTINCT,
        part=DISTINCT_PART,
        rest=1.0,  # timed as the others are, to the end of the last handler
    ),
    _disturbed(
        "kworker-slow",
        "1 % take 500 ms: the others",
        "kworker-even",
        handler="wait_slow",
        topic=DISTINCT,
        part=DISTINCT_PART,
        rest=OTHERS,
        in_full="kworker, 4,000 tasks, 1 % of the keys take 500 ms: the others",
    ),
    _disturbed(
        "kworker-hot",
        "1 % have one key: the other keys",
        "kworker-even",
        handler="wait_hot",
        topic=HOT,
        part=HOT_PART,
        rest=OTHERS,
        in_full="kworker, 4,000 tasks, 1 % of the records have one key: the other keys",
    ),
    _disturbed_parallel(
        "parallel-even",
        "Parallel Consumer, 1,000 threads, by key",
        handler="wait_hot",
        topic=DISTINCT,
        in_full="Parallel Consumer, 1,000 threads, each key once",
    ),
    _disturbed_parallel(
        "parallel-slow",
        "the same, 1 % take 500 ms: the others",
        "parallel-even",
        handler="wait_slow",
        topic=DISTINCT,
        in_full="Parallel Consumer, 1,000 threads, 1 % of the keys take 500 ms: the others",
    ),
    _disturbed_parallel(
        "parallel-hot",
        "the same, 1 % have one key: the others",
        "parallel-even",
        handler="wait_hot",
        topic=HOT,
        in_full="Parallel Consumer, 1,000 threads, 1 % of the records have one key: the other keys",
    ),
    Contender(
        "kworker-compute",
        "kworker, 200 µs of CPU, one process",
        handler=COMPUTE,
        part=0.015,
        probe=KWORKER,
    ),
    Contender(
        "kworker-compute-2",
        "the same, two processes",
        ("kworker-compute", "arroyo-compute-2"),
        handler=COMPUTE,
        processes=2,
        part=0.015,
        probe=KWORKER,
        in_full="kworker, 200 µs of CPU, two processes",
    ),
    _rival(
        ARROYO_PROCESSES,
        "arroyo-compute-2",
        "arroyo, 200 µs of CPU, two processes",
        COMPUTE,
        0.015,
        concurrency=2,
    ),
)

CONTENDERS = (*NO_OP, *RESULTS, *WAITING, *TASKS_WAITING, *DISTURBANCES, *CLAIMS)

REFERENCES = ("tasks-even", "tasks-slow")
"""Bare loops that no target names, but that show what could be reached: measured as often."""

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
