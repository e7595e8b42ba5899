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

READ_AT = "1d89474d"  # as in the report of `make bench`

Target = tuple[str, str] | str

_NO_OP = (
    "In the profile, which ran 353,000 records a second, a record costs 2.5 µs of Python: 2.0 in"
    " the thread that polls (take, order, hand over, settle) and 0.5 in handler threads, which"
    " share the interpreter's lock. By their rates, the loop that only calls `poll()` takes 1.0 µs,"
    " Quix 9.5, and Parallel Consumer, in Java on both CPUs, 15. Compiled code alone would not do:"
    " `mypyc` over the hot modules made it less than 1.3 times as fast, and Cython over 20 of them"
    " 1.03 times. It would take less work for each record, as in the order of partitions, which is"
    " 1.2 × as fast here. A later commit, of which this page has no figures, runs such handlers in"
    " that order, which keeps that of keys: its profile has 445,000 records a second."
)
_RESULT = (
    "In the profile, such a record costs 9.7 µs of Python: 6.0 in the thread that polls, of which"
    " 2.1 are to produce the result and to hear that it is there, and 3.6 in handler threads, where"
    " a no-op has 0.5. Exactly once, and without decoding, it is 6.2 and 2.6. So the interpreter's"
    " lock is taken nearly all the time, while the broker needs the other CPU. By their rates, the"
    " pool, which neither decodes nor produces, takes 13 µs, and Quix exactly once 20. It would"
    " take results that are produced by compiled code."
)
_TASKS = (
    "Such a record costs 10.8 µs of Python, by 1,000 tasks: 7.1 on the event loop, the handler's"
    " own `sleep` included, and 3.7 in the thread that polls. So the interpreter's lock is taken"
    " nearly all the time. By their rates, a bare task takes 11 µs where 1,000 sleep, and 5.4 where"
    " 4,000 do. kworker has uvloop's loop. With 4,000 tasks, a record costs 10 µs there (a profile"
    " beside that of `make profile`); with more in flight it costs yet more, so that the CPU's"
    " caches are the likely reason. It would take fewer tasks at a time than are allowed."
)

REASONS: dict[Target, str] = {
    ("kworker", "poll"): _NO_OP,
    ("kworker", "pool"): _NO_OP,
    ("kworker", "quix"): _NO_OP,
    ("kworker", "arroyo"): _NO_OP,
    ("kworker", "parallel"): _NO_OP,
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded", "pool"): _RESULT,
    ("kworker-decoded", "pool-waits"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-wait", "threads"): (
        "By their rates, a bare thread takes 10.15 ms for each record, and a thread of kworker"
        " 10.29. In 0.14 ms it ends one and gets the next, from a worker that does this 6,220"
        " times a second, on CPUs that a broker shares."
    ),
    ("kworker-wait-256", "threads-256"): (
        "A record costs 25 µs of Python: 18.2 in handler threads, where a no-op has 0.5, and 7.2"
        " in the thread that polls. At 23,700 records a second, the interpreter's lock is taken"
        " 60 % of the time. So a thread that wakes often waits for it."
    ),
    ("kworker-tasks-1000", "tasks-1000"): _TASKS,
    ("kworker-tasks-1000", "parallel-wait-1000"): _TASKS,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-compute-2", "kworker-compute"): (
        "`make profile` runs one process. In `make scale`, at the same commit, two were 1.89 × as"
        " fast as one with this handler; in the five rounds here, 1.20 × once, and 1.48 to 1.69 ×."
        " These 30,000 records take 4.5 s with two processes, which read and commit through a"
        " broker on the same two CPUs."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "Spark alone bounds it here: its job, with no worker beside it, writes fewer results a"
        " second in warm batches (the table below that one) than the target asks for. The UDF"
        " saves a second trip through Kafka: kworker writes each result to a topic, which Spark"
        " reads, while broker, worker and Spark share two CPUs. It would take more of these, or"
        " results that do not go through Kafka, whose transactions make them exactly once."
    ),
}
