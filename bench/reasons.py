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

READ_AT = "51a2417"  # as in the report of `make bench`

Target = tuple[str, str] | str

_RESULT = (
    "A result costs about 10 µs: 6.2 in the thread that polls, 2.9 in handler threads (encoding it"
    " is the user's own), 1.4 in librdkafka's."
)

REASONS: dict[Target, str] = {
    ("kworker", "poll"): (
        "A record costs about 2.8 µs of CPU: 2.2 in the thread that polls (take, order, hand over,"
        " settle) and 0.6 in handler threads. The loop that only calls `poll()` costs about 1.0. It"
        " would take compiled code for the whole way of a record: `mypyc` over the hot modules made"
        " it less than 1.3 times as fast, which a compiler in the installation is not worth."
    ),
    ("kworker-decoded", "poll"): _RESULT,
    ("kworker-decoded-exactly-once", "quix-exactly-once"): _RESULT,
    ("kworker-tasks-1000", "tasks-1000"): (
        "Such a record costs about 17 µs of the event loop, of which 5 are the handler's own"
        " `sleep`."
    ),
    ("kworker-wait-256", "threads-256"): (
        "Bare threads that also compute show the interpreter's lock: 25,300 records a second with"
        " 5 µs of Python each, 24,300 with 15, 21,400 with 20, in an experiment of their own. A"
        " record has about 10 µs here."
    ),
    ("kworker-slow", "kworker-even"): (
        "`make profile` does not run these handlers. The event loop is busy in both rows; the slow"
        " ones are 1 % of it themselves, and the rest is more work in the intake, as more records"
        " wait in more places."
    ),
}
