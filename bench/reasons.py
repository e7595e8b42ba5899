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

READ_AT = "32584b7c"  # as in the report of `make bench`

Target = tuple[str, str] | str

_NO_OP = (
    "In the profile, which ran 548,000 records a second, a record costs 1.5 µs of Python: 1.2 in"
    " the thread that polls (take, order, hand over, settle) and 0.3 in a handler thread, which"
    " share the interpreter's lock. By their rates, Parallel Consumer, in Java on both CPUs, takes"
    " 14 µs; from round to round, kworker was 7.0 to 10.0 times as fast. Compiled code alone would"
    " not do: `mypyc` over the hot modules made it less than 1.3 times as fast, and Cython over 20"
    " of them 1.03 times. It would take less work for each record, such as no object of kworker's"
    " own for those that end well."
)
_RESULT = (
    "In the profile, such a record costs 7.8 µs of Python: 4.8 in the thread that polls, of which"
    " 2.2 are to produce the result and to hear that it is there, and 3.0 in a handler thread,"
    " where a no-op has 0.3. Exactly once, and without decoding, it is 5.1 and 2.2. So the"
    " interpreter's lock is taken nearly all the time, while the broker needs the other CPU. By"
    " their rates, the loop that only calls `poll()` takes 1.0 µs, and Quix exactly once 21. It"
    " would take results that are produced by compiled code: `produce_batch` of Kafka's client for"
    " Python takes no headers, which name the source of each."
)
_ONCE = (
    "In the profile, exactly once, the thread that polls waits for 3.3 µs of 8.3 a record, and the"
    " handler thread runs for 2.4 of these: in the rest, neither runs, as the present transaction"
    " has to end before the next one takes results, and the thread that polls waits for 2 of each"
    " 4 ms while its last results are sent. From round to round, it was 0.63 to 0.88 × without"
    " decoding, and 0.78 to 0.91 × with it. With that wait in another thread, it was 0.9 × as fast"
    " in an earlier trial. Without delivery reports for what is sent, too, it was 1.0 × (the median"
    " of nine rounds in turns, on another host). It would take a second transactional producer,"
    " which takes results meanwhile."
)
_TASKS = (
    "Such a record costs 9.9 µs of Python, by 1,000 tasks: 6.4 on the event loop, the handler's"
    " own `sleep` included, and 3.5 in the thread that polls. By their rates, a bare task takes"
    " 11 µs where 1,000 sleep, and 5.5 where 4,000 do, and one of 4,000 of kworker's 14. The bare"
    " ones are that fast since they wake in the order in which they went to sleep: with sleeps of"
    " 9 to 11 ms, 4,000 of them ended 0.75 × as many (four rounds in turns, on another host)."
    " With kworker, a sampling profiler found the interpreter's lock taken for 89 % of the time."
    " In a quarter of some counts, more than 750 tasks had no record whose key was free: of 8,000"
    " records in flight, about half wait for an earlier one of their key. Where each key comes"
    " once, 4,000 tasks do 100,000 records a second instead of 74,000. kworker has uvloop's loop."
    " It would take fewer tasks at a time than are allowed."
)

REASONS: dict[Target, str] = {
    ("kworker", "parallel"): _NO_OP,
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-exactly-once", "kworker-results"): _ONCE,
    ("kworker-decoded-exactly-once", "kworker-decoded"): _ONCE,
    ("kworker-tasks-4000", "tasks-4000"): _TASKS,
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. An event loop is fastest if its tasks wake in"
        " the order in which they went to sleep, and slow ones disturb that order. In five rounds"
        " of 500,000 records, on another host, kworker ended 0.83 × as many others a second beside"
        " slow ones, and bare tasks of asyncio, which only sleep, 0.85 ×. A round of this row had"
        " 120,000 records, which take little more than a second, and showed less of that: the"
        " others took 0.98 to 1.18 times as long. It would take an event loop that does not mind"
        " the order."
    ),
    "into a table, beside a Python UDF: JSON decoded": (
        "On another host of two CPUs, where the UDF took 26 s for a million rows, and kworker 29,"
        " these took 51 s of CPU time with kworker: 25 in Spark's JVM, 11 in the worker, 11 in the"
        " broker, and 4 in the program that writes the records. The target leaves 35 s of both"
        " CPUs, which is 9 for Spark. The UDF saves a second trip through Kafka: kworker writes"
        " each result to a topic, which Spark reads. It would take more CPUs, or results that do"
        " not go through Kafka, whose transactions make them exactly once."
    ),
}
