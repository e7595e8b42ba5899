"""The table that Parallel Consumer's README publishes, measured on this machine, beside kworker.

10,000 records in one partition, handlers that sleep between 0 and 5 ms, 16 threads.
"""

from collections.abc import Sequence
from functools import partial
from math import nan
from statistics import median
from typing import NamedTuple

from bench import frameworks, ours
from bench.disturbance import least_disturbed
from bench.environments import Unavailable
from bench.place import Place
from bench.topic import Key, fill
from bench.watched import Broken

RECORDS = 10_000
THREADS = 16
HANDLER = "wait_random"
RIVAL, PROGRAM = "Parallel Consumer", "parallel-consumer"
LEAST, LEAST_SERIAL = 1.0, 0.98  # of the other's speed


class Row(NamedTuple):
    """One line of the table: seconds of each round.

    `stolen` is the largest share of the CPU that others took during one of these measurements.
    `left_out` says how the rival failed, or is empty; the seconds are of the rounds before that.
    """

    ordering: str
    keys: int
    ours_s: list[float]
    theirs_s: list[float]
    stolen: float = 0.0
    left_out: str = ""

    @property
    def ratio(self) -> float:
        """How often kworker is as fast; NaN, which meets no target, if left out."""
        if self.left_out:
            return nan
        return median(b / a for a, b in zip(self.ours_s, self.theirs_s, strict=True))

    @property
    def met(self) -> bool:
        """True if kworker is fast enough; False also if left out, when that is not known."""
        return self.ratio >= self.least

    @property
    def is_serial(self) -> bool:
        """True if all records run one after the other."""
        return self.ordering == "PARTITION" or (self.ordering, self.keys) == ("KEY", 1)

    @property
    def is_long(self) -> bool:
        """True if fewer keys than threads run at a time, so that sleep is nearly all of it."""
        return self.ordering == "PARTITION" or self.keys < THREADS

    @property
    def least(self) -> float:
        return LEAST_SERIAL if self.is_serial else LEAST


CASES = (
    ("PARTITION", 20),
    *(("KEY", keys) for keys in (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)),
    ("UNORDERED", 20),
)
OUR_WORDS = {"PARTITION": "partition", "KEY": "key", "UNORDERED": "none"}


def measure(place: Place, rounds: int) -> list[dict]:
    """Measures each row in turn, in rounds. Prints each. Returns no row without the rival.

    Long rows are measured once: their time is that of their handlers' sleep, which varies little. A
    row in which the rival fails is left out from then on. Raises Broken if kworker fails.
    """
    for keys in sorted({keys for _, keys in CASES}):
        fill(place.kafka, _topic(keys), RECORDS, key=_some(keys), partitions=1)
    rows = [Row(ordering, keys, [], []) for ordering, keys in CASES]
    try:
        frameworks.prepare(PROGRAM)
        for number in range(rounds):
            rows = [_with_round(place, row, number) for row in rows]
    except Unavailable as why:
        print(f"  left out: {why}", flush=True)
        return []
    return [row._asdict() for row in rows]


def _with_round(place: Place, row: Row, number: int) -> Row:
    """Returns the row with both times of this round, or left out, or as it is if not due."""
    if row.left_out or (row.is_long and number > 0):
        return row
    run = f"published-{row.ordering}-{row.keys}-{number}".lower()
    try:
        theirs_s, theirs_stolen = least_disturbed(
            partial(_theirs_s, place, f"{run}-theirs", row),
            lambda seconds: f"{_case(row)}{_told(seconds, RIVAL)}",
            may_break=True,
        )
    except Broken as why:
        print(f"  {_case(row)}  left out: {RIVAL}: {why}", flush=True)
        return row._replace(left_out=str(why))
    ours_s, ours_stolen = least_disturbed(
        partial(_ours_s, place, f"{run}-ours", row),
        lambda seconds: f"{_case(row)}{_told(seconds, 'kworker')}",
    )
    return row._replace(
        ours_s=[*row.ours_s, ours_s],
        theirs_s=[*row.theirs_s, theirs_s],
        stolen=max(row.stolen, round(theirs_stolen, 4), round(ours_stolen, 4)),
    )


def _topic(keys: int) -> str:
    return f"published-{keys}"


def _some(keys: int) -> Key:
    return lambda order_id: f"customer-{order_id % keys}"


def _ours_s(place: Place, run: str, row: Row, again: int) -> float:
    ordering = OUR_WORDS[row.ordering]
    service = ours.Service(HANDLER, THREADS, topic=_topic(row.keys), ordering=ordering)
    return ours.measure(place, f"{run}-{again}", service, RECORDS).seconds


def _theirs_s(place: Place, run: str, row: Row, again: int) -> float:
    program = frameworks.Program(
        PROGRAM,
        HANDLER,
        THREADS,
        topic=_topic(row.keys),
        variables={"BENCH_ORDERING": row.ordering},
    )
    return frameworks.measure(place, f"{run}-{again}", program, RECORDS).seconds


def show(rows: Sequence[dict]) -> bool:
    """Prints the table and the verdicts, if measured; returns True if every target is met."""
    if not rows:
        return True
    print("\nParallel Consumer's own table: 10,000 records, 0 to 5 ms each, one partition\n")
    lines = [Row(**row) for row in rows]
    for row in lines:
        print(f"{'PASS' if row.met else 'FAIL'}  {_case(row)}{_reached(row)}")
    return all(row.met for row in lines)


def _reached(row: Row) -> str:
    if row.left_out:
        return f"  not known, {RIVAL} is left out: {row.left_out}"
    figures = f"{_told(median(row.theirs_s), RIVAL)}{_told(median(row.ours_s), 'kworker')}"
    return f"{figures}: {row.ratio:.2f} × as fast, at least {row.least:g} wanted"


def _case(row: Row) -> str:
    return f"{row.ordering.lower():<10}{row.keys:>7,} keys"


def _told(seconds: float, whose: str) -> str:
    return f"{seconds:>8.2f} s {whose}"
