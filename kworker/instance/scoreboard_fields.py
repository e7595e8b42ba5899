"""The numbers that a worker reports in its slot of the scoreboard."""

from enum import IntEnum, auto


class Field(IntEnum):
    """The index of each number in a worker's slot. Times are in ns of the monotonic clock."""

    PID = 0
    PHASE = auto()
    STARTED_NS = auto()
    HEARTBEAT_NS = auto()  # the poll thread's last turn
    BASELINE_BYTES = auto()  # the resident size at the first poll
    POLLED = auto()  # 1 after the first poll: a later death is no failed start
    IN_HAND = auto()  # records taken and not settled
    IN_FLIGHT = auto()  # of those, without an outcome
    IN_FLIGHT_BYTES = auto()
    HELD = auto()  # records of keys that wait in memory for another attempt
    SUSPECTS = auto()  # records that wait for the isolated process, or run in it
    PARTITIONS = auto()
    LAG_RECORDS = auto()  # beyond what was taken
    UNFINISHED = auto()  # at or beyond the committed position
    AGE_MS = auto()  # of the oldest unfinished record, by its timestamp
    RED = auto()  # 1 while the text names a problem
    DRAIN = auto()  # set by the supervisor along with SIGTERM, which a handler's code may ignore
    LEAVE = auto()  # set by the supervisor before SIGTERM: 1 if no process takes over this slot
    STALLED_MS = auto()  # since the pool last finished a record, while it had any or could have
    HANDLERS = auto()  # runs of handlers that may go on at once: threads, or coroutines
    ACCEPT = auto()  # set by the supervisor, cleared by the worker: dead-letter what is held
    ISOLATE_S = auto()  # set by the supervisor at the start: all records are isolated for so long
    # Counters, added to the totals when the worker is reaped.
    CONSUMED = auto()
    DONE = auto()
    FAILED = auto()  # runs of a handler that raised
    RETRIED = auto()
    DEAD = auto()
    DUPLICATES = auto()
    DROPPED = auto()  # tombstones that are skipped
    UNGUARDED = auto()  # ran without Redis: possible duplicates
    REMEMBERED = auto()  # redelivered and not run again: an offset map says that they are done
    MAPS_IGNORED = auto()  # foreign or damaged
    PUBLISHED = auto()
    COMMITS = auto()
    REBALANCES = auto()
    REBALANCING_US = auto()  # of the poll thread, in rebalances
    # Dead letters by their reason; DEAD counts all of them.
    DEAD_REJECTED = auto()
    DEAD_EXHAUSTED = auto()
    DEAD_UNDECODABLE = auto()
    DEAD_UNREADABLE = auto()
    DEAD_UNPUBLISHABLE = auto()
    DEAD_CRASHED = auto()
    DEAD_TIMEOUT = auto()
    DEAD_EXPIRED = auto()
    DEAD_OPERATOR = auto()
    # Runs of handlers by the bound of core.durations.BOUNDS_S that they kept, and did not beat.
    RUNS_1MS = auto()
    RUNS_3MS = auto()
    RUNS_10MS = auto()
    RUNS_30MS = auto()
    RUNS_100MS = auto()
    RUNS_300MS = auto()
    RUNS_1S = auto()
    RUNS_3S = auto()
    RUNS_10S = auto()
    RUNS_30S = auto()
    RUNS_100S = auto()
    RUNS_LONGER = auto()
    RUNS_US = auto()  # the sum of their durations
    # The waits of records from their intake to their first run, likewise.
    WAITS_1MS = auto()
    WAITS_3MS = auto()
    WAITS_10MS = auto()
    WAITS_30MS = auto()
    WAITS_100MS = auto()
    WAITS_300MS = auto()
    WAITS_1S = auto()
    WAITS_3S = auto()
    WAITS_10S = auto()
    WAITS_30S = auto()
    WAITS_100S = auto()
    WAITS_LONGER = auto()
    WAITS_US = auto()
    TRANSACTIONS_COMMITTED = auto()
    TRANSACTIONS_COMMITTED_US = auto()  # the sum of their durations
    TRANSACTIONS_ABORTED = auto()
    TRANSACTIONS_ABORTED_US = auto()
    REDIS_ANSWERED = auto()  # calls
    REDIS_ANSWERED_US = auto()
    REDIS_FAILED = auto()
    REDIS_FAILED_US = auto()
    TEXT_SEQ = auto()  # the number of writes of the text; its parity selects the buffer


COUNTERS = tuple(Field)[Field.CONSUMED : Field.TEXT_SEQ]
DEAD_BY_REASON = {
    field.name.removeprefix("DEAD_").lower(): field
    for field in COUNTERS
    if field.name.startswith("DEAD_")
}
RUN_TIMES = tuple(Field)[Field.RUNS_1MS : Field.WAITS_1MS]
WAIT_TIMES = tuple(Field)[Field.WAITS_1MS : Field.TRANSACTIONS_COMMITTED]
"""Both have the counts of `core.durations.total`, in its order."""
TRANSACTIONS = tuple(Field)[Field.TRANSACTIONS_COMMITTED : Field.REDIS_ANSWERED]
REDIS_CALLS = tuple(Field)[Field.REDIS_ANSWERED : Field.TEXT_SEQ]
"""Both have the numbers of `core.durations.EndTimes.totals`, in its order."""
