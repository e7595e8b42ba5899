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

READ_AT = "46411084"  # as in the report of `make bench`

Target = tuple[str, str] | str

_NO_OP = (
    "In the profile, which ran 257,000 records a second, a record costs 3.5 µs of Python: 2.8 in"
    " the thread that polls (take, order, hand over, settle) and 0.8 in handler threads, which"
    " share the interpreter's lock. In the five rounds of this row a record took 3.5 µs once, and"
    " 4.9 to 5.3 µs four times: the CPUs themselves are up to twice as slow from one moment to the"
    " next. By their rates, the loop that only calls `poll()` takes 1.8 µs, Quix 15, and Parallel"
    " Consumer, in Java on both CPUs, 20. It would take compiled code for the whole way of a"
    " record: `mypyc` over the hot modules made it less than 1.3 times as fast, which a compiler"
    " in the installation is not worth."
)
_RESULT = (
    "In the profile, such a record costs 15.8 µs of Python: 9.7 in the thread that polls, of"
    " which 3.3 are to produce the result and to hear that it is there, and 6.1 in handler"
    " threads, where a no-op has 0.8. Exactly once, and without decoding, it is 12.0 and 4.6. So"
    " the interpreter's lock is taken nearly all the time, while the broker needs the other CPU."
    " The pool, which neither decodes nor produces, takes 19 µs, by its rate. It would take"
    " results that are produced by compiled code."
)
_TASKS = (
    "Such a record costs 17.7 µs of Python, by 1,000 tasks: 12.3 on the event loop, the handler's"
    " own `sleep` included, and 5.4 in the thread that polls. So the interpreter's lock is taken"
    " all the time. A bare task takes 11 µs or less, by its rate, and 4 to 5 on uvloop's, which"
    " kworker uses. Parallel Consumer has both CPUs."
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
        "By their rates, a bare thread takes 10.11 ms for each record, and a thread of kworker"
        " 10.26. In 0.15 ms it ends one and gets the next, from a worker that does this 6,240"
        " times a second, on CPUs that a broker shares."
    ),
    ("kworker-wait-256", "threads-256"): (
        "A record costs 30 µs of Python: 20.1 in handler threads, where a no-op has 0.8, and"
        " 10.0 in the thread that polls. At 23,000 records a second, the interpreter's lock is"
        " taken 69 % of the time. So a thread that wakes often waits for it."
    ),
    ("kworker-tasks-1000", "tasks-1000"): _TASKS,
    ("kworker-tasks-1000", "parallel-wait-1000"): _TASKS,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. The event loop is busy in both rows; the slow"
        " ones are 1 % of it themselves, and the rest is more work in the intake, as more records"
        " wait in more places. In one of five rounds, the other records were faster beside the"
        " slow ones than without them."
    ),
    ("kworker-claims", "set-nx"): (
        "`make profile` does not run this row. A loop that asks Redis for each record waits for"
        " each answer, so its rate is that of a machine's loopback: 0.13 ms here. Where an answer"
        " took longer, kworker was 11 × as fast (a short round at 772468a, on another machine)."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "Spark alone bounds it here: its job, with no worker beside it, writes fewer results a"
        " second in warm batches (the table below that one) than the target asks for. The UDF"
        " saves a second trip through Kafka: kworker writes each result to a topic, which Spark"
        " reads, while broker, worker and Spark share two CPUs. It would take more of these, or"
        " results that do not go through Kafka, whose transactions make them exactly once."
    ),
    "scale, records: may take 1.25 ×": (
        "`make profile` has no sizes. All of 100,000 records are 20 MB, and done in half a second:"
        " that worker has the least because there was no more to fetch. From 1,000,000 to"
        " 10,000,000 records, the memory grows 1.06 ×."
    ),
    "scale, keys: may cost 1.25 ×": (
        "`make profile` has 10,000 keys. One key is the cheapest case: all records of a turn are"
        " one lane, and go to a thread as a row. From 1,000 keys to 10,000,000, the cost does not"
        " grow: 4.96 and 4.70 µs."
    ),
    "scale, partitions: may cost 1.25 ×": (
        "`make profile` has eight partitions. One partition is the cheapest case: all records"
        " of a turn are one group. From 8 partitions to 256, the cost grows 1.45 ×. It would"
        " take less work for each partition that has a record in a turn."
    ),
}
