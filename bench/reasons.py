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

READ_AT = "543d8501"  # as in the report of `make bench`

Target = tuple[str, str] | str

_GARBAGE = (
    " For up to a second of each run, Python looked for garbage too often: in a trace, no-ops ran"
    " 470,000 a second until 0.6 s, and 650,000 from then on. A later commit, of which this page"
    " has no figures, has mended that."
)
_NO_OP = (
    "In the profile, which ran 589,000 records a second, a record costs 1.5 µs of Python: 1.1 in"
    " the thread that polls (take, order, hand over, settle) and 0.4 in a handler thread, which"
    " share the interpreter's lock. By their rates, the loop that only calls `poll()` takes 0.86"
    " µs, and Parallel Consumer, in Java on both CPUs, 13. Compiled code alone would not do:"
    " `mypyc` over the hot modules made it less than 1.3 times as fast, and Cython over 20 of them"
    " 1.03 times. It would take less work for each record, such as no object of kworker's own for"
    " those that end well." + _GARBAGE
)
_RESULT = (
    "In the profile, such a record costs 6.6 µs of Python: 3.9 in the thread that polls, of which"
    " 1.7 are to produce the result and to hear that it is there, and 2.8 in a handler thread,"
    " where a no-op has 0.4. Exactly once, and without decoding, it is 5.1 and 2.0. So the"
    " interpreter's lock is taken nearly all the time, while the broker needs the other CPU. By"
    " their rates, the loop that only calls `poll()` takes 0.86 µs, the pool, which neither decodes"
    " nor produces, 10, and Quix exactly once 16. It would take results that are produced by"
    " compiled code: `produce_batch` of Kafka's client for Python takes no headers, which name the"
    " source of each."
)
_TASKS = (
    "Such a record costs 12 µs of Python, by 1,000 tasks: 8.0 on the event loop, the handler's own"
    " `sleep` included, and 4.0 in the thread that polls. So the interpreter's lock is taken nearly"
    " all the time. By their rates, a bare task takes 11 µs where 1,000 sleep, and 5.3 where 4,000"
    " do. kworker has uvloop's loop. With 4,000 tasks, a record costs 10 to 11 µs there (profiles"
    " beside that of `make profile`); neither 16,000 records in flight nor a shorter switch"
    " interval of the interpreter changes that. Some of it is due to keys that are taken: where"
    " each key comes once, 4,000 tasks do 82,900 records a second instead of 64,000. It would take"
    " fewer tasks at a time than are allowed." + _GARBAGE
)

REASONS: dict[Target, str] = {
    ("kworker", "poll"): _NO_OP,
    ("kworker", "parallel"): _NO_OP,
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded", "pool"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-exactly-once", "kworker-results"): (
        "In the profile, exactly once, the thread that polls waits for 3.1 µs of 8.1 a record, and"
        " the handler thread runs for 2.1 of these: in the rest, neither runs, as the present"
        " transaction has to end before the next one takes results. It would take a second"
        " transactional producer, which takes them meanwhile."
    ),
    ("kworker-wait", "threads"): (
        "By their rates, a bare thread takes 10.10 ms for each record, and a thread of kworker"
        " 10.21. In 0.11 ms it ends one and gets the next, from a worker that does this 6,270"
        " times a second, on CPUs that a broker shares."
    ),
    ("kworker-tasks-1000", "tasks-1000"): _TASKS,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. The event loop is busy all the time in both"
        " rows, and the slow records are 1 % of its work; 400 of the 4,000 tasks wait for them. Why"
        " the others cost 1.1 times as much beside them was not found. At 1d89474d, on slower"
        " CPUs, it was 1.04 times."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "Spark alone bounds it here: its job, with no worker beside it, writes fewer results a"
        " second in warm batches (the table below that one) than the target asks for. The UDF"
        " saves a second trip through Kafka: kworker writes each result to a topic, which Spark"
        " reads, while broker, worker and Spark share two CPUs. It would take more of these, or"
        " results that do not go through Kafka, whose transactions make them exactly once."
    ),
    "scale, records: may take 1.25 ×": (
        "`make profile` has no sizes. All of 100,000 records are 20 MB, and done in 0.2 s: that"
        " worker has the least because there was no more to fetch. From 1,000,000 to 10,000,000"
        " records, the memory grows 1.20 ×."
    ),
}
