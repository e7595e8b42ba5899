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
    ACCEPT = auto()  # set by the supervisor, cleared by the worker: dead-letter what is held
    # Counters, added to the totals when the worker is reaped.
    CONSUMED = auto()
    DONE = auto()
    FAILED = auto()  # runs of a handler that raised
    RETRIED = auto()
    DEAD = auto()
    DUPLICATES = auto()
    DROPPED = auto()
    UNGUARDED = auto()  # ran without Redis: possible duplicates
    REMEMBERED = auto()  # redelivered and not run again: an offset map says that they are done
    MAPS_IGNORED = auto()  # foreign or damaged
    PUBLISHED = auto()
    COMMITS = auto()
    REBALANCES = auto()
    TEXT_SEQ = auto()  # the number of writes of the text; its parity selects the buffer


COUNTERS = tuple(Field)[Field.CONSUMED : Field.TEXT_SEQ]
