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

READ_AT = "bb4d0c57"  # as in the report of `make bench`

Target = tuple[str, str] | str

# The page before this one. Its host took 152 µs for the loop that this one took 325 µs for.
_FASTER = "In the last run on a host of twice this one's speed, at commit `32584b7c`,"
_NO_OP = (
    "In the profile, which ran 383,000 records a second, a record costs 2.2 µs of Python: 1.8 in"
    " the thread that polls, of which 1.3 are to take it from Kafka's client and to read its"
    " fields, and 0.4 in a handler thread, which share the interpreter's lock. By their rates,"
    " Parallel Consumer, in Java on both CPUs, takes 17 µs; from round to round, kworker was 5.5 to"
    " 8.6 times as fast. Two hours earlier on the same host, with fewer records in these rows, of"
    " which Parallel Consumer's start is a larger part, it was 9.2 to 11.8 times. Compiled code"
    " would not do: `mypyc` over the hot modules made it less than 1.3 times as fast, and Cython"
    " over 20 of them 1.03 times. It would take a client that hands over columns instead of an"
    " object for each record."
)
_RESULT = (
    "In the profile, such a record costs 12.5 µs of Python: 8.8 in the thread that polls, of which"
    " 4.1 are to produce the result and to hear that it is there, and 3.7 in a handler thread,"
    " where a no-op has 0.4. Exactly once, and without decoding, it is 6.5 and 2.0. So the"
    " interpreter's lock is taken nine tenths of the time. By their rates, the loop that only calls"
    " `poll()` takes 1.6 µs, and Quix exactly once 31. All stages between the client and the"
    " handler take 3.4 of the 12.5. A loop in one thread that consumes 1,000 at a time, decodes,"
    " produces with the header that names the source, hears the reports, and commits each 0.2 s,"
    " ended 0.32 × as many a second as `poll()`, and 0.35 × in transactions; 0.46 × without headers"
    " and reports (three rounds in turns, after this run). It has no retries and no dead letters,"
    " and a slow record stops it. So more than half of what a record costs is kworker's own, of"
    " which it would take a third less."
)
_THREADS = (
    "In the profile, by 256 threads, such a record costs 34 µs of CPU time: 23 in its handler"
    " thread, the sleep and the changes of thread included, and 12 in the thread that polls. At the"
    " rate of bare threads, 256 have 40 µs a record, and one interpreter's lock, which is asked for"
    f" while another thread has it. {_FASTER} it was 0.99 × with 64 threads and 0.98 × with 256. It"
    " would take such CPUs, or fewer changes of thread: a coroutine needs none."
)
_LOOP = (
    "In the profile, by 1,000 tasks, such a record costs 21 µs of Python: 14 on the event loop, the"
    " handler's own `sleep` included, and 7 in the thread that polls. The profile ran 45,000"
    " records a second, so this is 97 % of the time, and the lock is all but always taken. By their"
    " rates, a bare task takes 11 µs where 1,000 sleep, which is what their 10 ms allow, and 10"
    f" where 4,000 do; one of Parallel Consumer takes 39. {_FASTER} it was 0.92 × the bare loop and"
    " 2.68 × Parallel Consumer with 1,000 tasks, and 0.40 × with 4,000. It would take such CPUs."
)
_TASKS = (
    "What a record costs by 1,000 tasks is said above: with more of them, the lock cannot be taken"
    " for more of the time. The bare ones wake in the order in which they went to sleep: with"
    " sleeps of 9 to 11 ms, 4,000 of them ended 0.75 × as many (four rounds in turns, on another"
    " host). Of 8,000 records in flight, about half wait for an earlier one of their key: where"
    " each key comes once, 4,000 tasks do 56,000 records a second instead of 51,000. kworker has"
    " uvloop's loop. Tasks of that loop that only sleep, and get their records from a thread that"
    " only consumes, ended 1.18 × as many as the bare ones of asyncio, and 0.98 × with 1,000 of"
    " them (three rounds in turns, after this run). By these, kworker adds 1.4 times what a bare"
    " task costs, of which it would take seven tenths less."
)

REASONS: dict[Target, str] = {
    ("kworker", "parallel"): _NO_OP,
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-wait", "threads"): _THREADS,
    ("kworker-wait-256", "threads-256"): _THREADS,
    ("kworker-tasks-1000", "tasks-1000"): _LOOP,
    ("kworker-tasks-1000", "parallel-wait-1000"): _LOOP,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. An event loop is fastest if its tasks wake in"
        " the order in which they went to sleep, and slow ones disturb that order. Bare tasks of"
        " asyncio, which only sleep, were measured beside it: from round to round, 4,000 of them"
        " ended 0.59 to 1.34 × as many others a second beside slow ones, and kworker 0.78 to"
        " 1.08 ×. In five rounds on another host it was 0.85 and 0.83 × (medians). It would take"
        " an event loop that does not mind the order."
    ),
    ("kworker-claims", "set-nx"): (
        "Such a record costs 24 µs by its rate, of which 2 are those of a no-op. The others are to"
        " read the key from the JSON, to ask Redis for many at a time, and to keep what it says;"
        " Redis has a share of the same two CPUs. From round to round, it was 3.9 to 5.6 ×."
        f" {_FASTER} it was 10.35 ×: kworker claimed 61,700 records a second there and 41,000 here,"
        " and the loop, which mostly waits for answers, 6,150 and 8,090. It would take such CPUs."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "On another host of two CPUs, where the UDF took 26 s for a million rows, and kworker 29,"
        " these took 51 s of CPU time with kworker: 25 in Spark's JVM, 11 in the worker, 11 in the"
        " broker, and 4 in the program that writes the records. The target leaves 35 s of both"
        " CPUs, which is 9 for Spark. The UDF saves a second trip through Kafka: kworker writes"
        " each result to a topic, which Spark reads. It would take more CPUs, or results that do"
        " not go through Kafka, whose transactions make them exactly once."
    ),
    "scale, records: may take 1.25 ×": (
        "100,000 records take 0.3 s, in which a worker has not yet what it has later: the queue of"
        " Kafka's client, and garbage. 10,000,000 take as much as 1,000,000 do: 122 and 121 MB."
        " Since this run, the first point has 1,000,000, and 10,000,000 took 1.01 times its memory."
    ),
    "scale, partitions: may cost 1.25 ×": (
        "Half of it is Kafka's client. A loop that only calls `consume()` took 1.5 and 1.6 µs of"
        " CPU time for a record of a topic with one partition, and 2.1 with 256 (two rounds in"
        " turns, 3,000,000 records, after this run). A worker took 2.7 and 3.7 µs, and 3.9 and 4.1"
        " with 256, of which 0.3 are to commit 256 positions, and to look which partitions have to"
        " pause. On a host of twice the speed, at commit `32584b7c`, 256 cost 1.14 times as much"
        " as one. It would take another client."
    ),
}
