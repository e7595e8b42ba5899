"""The reasons for targets that were not reached, for `docs/performance.md`.

Each says what a record costs, as `make profile` shows it, or says that it has its figures from
elsewhere; and what reaching the target would take. A page with an unmet target that has no reason
here is refused; the reason of a target that is met is not shown.

All were read at READ_AT, and a page with reasons is refused for a run of another commit: read those
that the error names again, correct their figures by `make profile` at the run's commit, and set
READ_AT to it.

A target of contenders has their two names, as in `bench.contenders.TARGETS`. One of `make scale`
has the sweep and the limit: "scale, keys: may cost 1.25 ×". Any other one has the text of its line
in the page's table of targets. Targets with the same reason share a line.
"""

READ_AT = "6811cb2a"  # as in the report of `make bench`

Target = tuple[str, str] | str

_NO_OP = (
    "In two profiles, whose runs were slower than this row (159,000 and 151,000 records a"
    " second), a record costs 6 µs of Python: 4.4 to 4.8 in the thread that polls (take, order,"
    " hand over, settle) and 1.2 to 1.3 in handler threads, which share the interpreter's lock."
    " By their rates, the loop that only calls `poll()` takes 1.6 µs, Quix 12, and Parallel"
    " Consumer, in Java on both CPUs, 18. It would take compiled code for the whole way of a"
    " record: `mypyc` over the hot modules made it less than 1.3 times as fast, which a compiler"
    " in the installation is not worth."
)
_RESULT = (
    "In two profiles, such a record costs 15 and 18 µs of Python: 8.9 to 10.8 in the thread"
    " that polls, of which 3.1 to 3.6 are to produce the result and to hear that it is there,"
    " and 6.3 to 7.3 in handler threads, where a no-op has 1.2. Exactly once, and without"
    " decoding, it is 10.8 to 13.3 and 4.2 to 5.0. So the interpreter's lock is taken nearly all"
    " the time, while the broker needs the other CPU. The pool, which neither decodes nor"
    " produces, takes 18 µs, by its rate. It would take results that are produced by compiled"
    " code."
)
_TASKS = (
    "Such a record costs 18 µs of Python, by 1,000 tasks: 13 on the event loop, the handler's own"
    " `sleep` included, and 5 in the thread that polls. So the interpreter's lock is taken all the"
    " time. A bare task takes 11 µs or less, by its rate. Parallel Consumer has both CPUs."
)

REASONS: dict[Target, str] = {
    ("kworker", "poll"): _NO_OP,
    ("kworker", "quix"): _NO_OP,
    ("kworker", "parallel"): _NO_OP,
    ("kworker-retries", "kworker"): (
        "Of five rounds, two met it. 5,000 of 2,000,000 records fail. Each costs about 50 µs"
        " more, as where 100,000 do in [scale](#scale), which is 3 % of the time of this row;"
        " the rest is how much rates moved from one round to the next. The CPUs themselves did:"
        " after the run, a loop of Python that never changes took from 29 to 61 ms of CPU time"
        " within a minute, with no CPU stolen."
    ),
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded", "pool"): _RESULT,
    ("kworker-decoded", "pool-waits"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-wait", "threads"): (
        "By their rates, a bare thread takes 10.11 ms for each record, and a thread of kworker"
        " 10.24. In 0.13 ms it ends one and gets the next, from a worker that does this 6,250"
        " times a second, on CPUs that a broker shares."
    ),
    ("kworker-wait-256", "threads-256"): (
        "A record costs 31 µs of Python: 20.8 in handler threads, where a no-op has 1.2, and"
        " 10.1 in the thread that polls. At 23,500 records a second, the interpreter's lock is"
        " taken 73 % of the time. So a thread that wakes often waits for it."
    ),
    ("kworker-tasks-1000", "tasks-1000"): _TASKS,
    ("kworker-tasks-1000", "parallel-wait-1000"): _TASKS,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. The event loop is busy in both rows; the slow"
        " ones are 1 % of it themselves, and the rest is more work in the intake, as more records"
        " wait in more places."
    ),
    ("kworker-claims", "set-nx"): (
        "`make profile` does not run this row. A loop that asks Redis for each record waits for"
        " each answer, so its rate is that of a machine's loopback: 0.11 ms here. Where an answer"
        " took longer, kworker was 11 × as fast (a short round at 772468a, on another machine)."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "Spark alone bounds it here: its job, with no worker beside it, writes fewer results a"
        " second in warm batches (the table below that one) than the target asks for. The UDF"
        " saves a second trip through Kafka: kworker writes each result to a topic, which Spark"
        " reads, while broker, worker and Spark share two CPUs. It would take more of these, or"
        " results that do not go through Kafka, whose transactions make them exactly once."
    ),
    "scale, partitions: may cost 1.25 ×": (
        "`make profile` has eight partitions. One partition is the cheapest case: all records"
        " of a turn are one group. From 8 partitions to 256, the cost grows 1.24 ×. It would"
        " take less work for each partition that has a record in a turn."
    ),
}
