"""The table that Parallel Consumer's README publishes, measured on this machine, beside kworker.

10,000 records in one partition, handlers that sleep between 0 and 5 ms, 16 threads.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from bench import frameworks, ours
from bench.environments import Unavailable
from bench.place import Place
from bench.topic import Key, fill

RECORDS = 10_000
THREADS = 16
HANDLER = "wait_random"
LEAST, LEAST_SERIAL = 1.0, 0.98  # of the other's speed


class Row(NamedTuple):
    """One line of the table: seconds of each round."""

    ordering: str
    keys: int
    ours_s: list[float]
    theirs_s: list[float]

    @property
    def ratio(self) -> float:
        """How often kworker is as fast."""
        return median(b / a for a, b in zip(self.ours_s, self.theirs_s, strict=True))

    @property
    def is_serial(self) -> bool:
        """True if all records run one after the other."""
        return self.ordering == "PARTITION" or (self.ordering, self.keys) == ("KEY", 1)

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

    Serial rows are measured once: they take long, and their handlers' sleep varies little.
    """
    for keys in sorted({keys for _, keys in CASES}):
        fill(place.kafka, _topic(keys), RECORDS, key=_some(keys), partitions=1)
    rows = [Row(ordering, keys, [], []) for ordering, keys in CASES]
    try:
        for number in range(rounds):
            for row in rows if number == 0 else [row for row in rows if not row.is_serial]:
                run = f"published-{row.ordering}-{row.keys}-{number}".lower()
                row.theirs_s.append(_theirs_s(place, f"{run}-theirs", row))
                row.ours_s.append(_ours_s(place, f"{run}-ours", row))
                print(f"  {_line(row, -1)}", flush=True)
    except Unavailable as why:
        print(f"  left out: {why}", flush=True)
        return []
    return [row._asdict() for row in rows]


def _topic(keys: int) -> str:
    return f"published-{keys}"


def _some(keys: int) -> Key:
    return lambda order_id: f"customer-{order_id % keys}"


def _ours_s(place: Place, run: str, row: Row) -> float:
    ordering = OUR_WORDS[row.ordering]
    service = ours.Service(HANDLER, THREADS, topic=_topic(row.keys), ordering=ordering)
    return ours.measure(place, run, service, RECORDS).seconds


def _theirs_s(place: Place, run: str, row: Row) -> float:
    program = frameworks.Program(
        "parallel-consumer",
        HANDLER,
        THREADS,
        topic=_topic(row.keys),
        variables={"BENCH_ORDERING": row.ordering},
    )
    return frameworks.measure(place, run, program, RECORDS).seconds


def show(rows: Sequence[dict]) -> bool:
    """Prints the table and the verdicts, if measured; returns True if every target is met."""
    if not rows:
        return True
    print("\nParallel Consumer's own table: 10,000 records, 0 to 5 ms each, one partition\n")
    lines = [Row(**row) for row in rows]
    for row in lines:
        verdict = "PASS" if row.ratio >= row.least else "FAIL"
        print(f"{verdict}  {_line(row)}: {row.ratio:.2f} × as fast, at least {row.least:g} wanted")
    return all(row.ratio >= row.least for row in lines)


def _line(row: Row, number: int | None = None) -> str:
    ours_s, theirs_s = (
        median(seconds) if number is None else seconds[number]
        for seconds in (row.ours_s, row.theirs_s)
    )
    case = f"{row.ordering.lower():<10}{row.keys:>7,} keys"
    return f"{case}{theirs_s:>8.2f} s Parallel Consumer{ours_s:>8.2f} s kworker"
