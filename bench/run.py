"""`make bench`: compares kworker with hand-written consumers, on one topic, in one run.

Each contender is a process with a fresh group. They run one after the other, in rounds, so that a
drift of the machine affects all. The time is from the first record read to the last one done, or
committed, if the contender commits. A ratio is the median of the ratios of the rounds.

Other virtual machines may take the CPU. A measurement during which they took more than STOLEN of it
is repeated; the one with the smallest share counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bench import handwritten, intervals, ours, tables
from bench.place import ROOT, Place, Stolen, servers
from bench.table import show
from bench.topic import TOPIC, Group, fill


@dataclass(frozen=True)
class Contender:
    """One line of the table. `beside` names the contenders that its ratios refer to."""

    name: str
    what: str
    beside: tuple[str, ...] = ()
    handler: str = ""  # kworker's handler; a rival has none
    threads: int = handwritten.NO_OP_THREADS
    waits: bool = False
    claims: bool = False  # idempotent, with Redis
    exactly_once: bool = False
    retries: int = 0  # records that wait in a delay topic meanwhile
    part: float = 1.0  # share of the records: slow contenders read fewer


NO_OP = ("pool", "poll")
WAITING = ("threads", "pool-wait")
CONTENDERS = (
    Contender("poll-default", "raw poll(), librdkafka's defaults"),
    Contender("consume-default", "raw consume(500), librdkafka's defaults"),
    Contender("poll", "raw poll(), tuned"),
    Contender("consume", "raw consume(500), tuned"),
    Contender("pool", "hand-written pool, tuned, commits a batch", ("poll",)),
    Contender("kworker", "kworker, no-op, key order, commits", NO_OP, "no_op"),
    Contender(
        "kworker-retries",
        "the same, while 5,000 wait for a retry",
        ("kworker",),
        "no_op",
        retries=5_000,
    ),
    Contender("kworker-results", "kworker, a result produced for each", NO_OP, "result"),
    Contender(
        "kworker-exactly-once",
        "the same, exactly once",
        ("kworker-results",),
        "result",
        exactly_once=True,
    ),
    Contender("kworker-decoded", "kworker, JSON decoded, a result for each", NO_OP, "decoded"),
    Contender("threads", "64 bare threads sleeping 10 ms, no Kafka", waits=True),
    Contender("pool-wait", "hand-written pool of 64, 10 ms each", ("threads",), waits=True),
    Contender("kworker-wait", "kworker, 64 threads, 10 ms each", WAITING, "wait", 64, waits=True),
    Contender(
        "kworker-wait-claims",
        "the same, idempotent",
        ("kworker-wait",),
        "wait",
        64,
        waits=True,
        claims=True,
    ),
    Contender("set-nx", "raw poll(), one SET NX a record", part=0.05),
    Contender(
        "kworker-claims", "kworker, no-op, idempotent", ("set-nx",), "no_op", claims=True, part=0.5
    ),
)

TARGETS = (
    ("kworker", "pool", 2.0),
    ("kworker", "poll", 0.3),
    ("kworker-retries", "kworker", 0.95),
    ("kworker-results", "pool", 1.2),
    ("kworker-exactly-once", "kworker-results", 0.75),
    ("kworker-wait", "threads", 0.97),
    ("kworker-wait-claims", "kworker-wait", 0.97),
    ("kworker-claims", "set-nx", 5.0),
)


@dataclass(frozen=True)
class Size:
    """The amount of work in a run."""

    rounds: int
    records: int
    waiting: int  # records, for handlers that take 10 ms
    paced_s: float  # duration of a fixed pace of records, to measure delays
    landed: int  # results for `--once`; three times as many for batches


INTERVALS, TABLES = "intervals", "tables"  # names of options, and of parts of the report
TABLES_ROUNDS = 3
STOLEN = 0.02  # of all CPU time
TRIES = 3

FULL = Size(rounds=5, records=1_000_000, waiting=64_000, paced_s=10.0, landed=300_000)
QUICK = Size(rounds=1, records=200_000, waiting=12_800, paced_s=3.0, landed=300_000)


class Benchmark:
    """The rates measured so far: one for each contender and round."""

    def __init__(self, place: Place, size: Size, contenders: tuple[Contender, ...]) -> None:
        self._place = place
        self._size = size
        self._contenders = contenders
        self.rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}

    def run(self) -> None:
        for number in range(1, self._size.rounds + 1):
            print(f"round {number} of {self._size.rounds}", flush=True)
            for contender in self._contenders:
                self.rates[contender.name].append(self._rate(contender, number))

    def _rate(self, contender: Contender, number: int) -> float:
        """The rate of the try with the smallest stolen share."""
        rates: dict[float, float] = {}
        for again in range(TRIES):
            stolen = Stolen()
            rate = self._measure(contender, f"bench-{contender.name}-{number}-{again}")
            rates[share := stolen.share()] = rate
            told = f", but {share:.0%} of the CPU went to others" if share > STOLEN else ""
            print(f"  {contender.what:<44}{rate:>12,.0f} records/s{told}", flush=True)
            if not told:
                break
        return rates[min(rates)]

    def _measure(self, contender: Contender, run: str) -> float:
        wanted = self._size.waiting if contender.waits else self._size.records
        wanted = int(wanted * contender.part)
        if contender.handler:
            service = ours.Service(
                contender.handler,
                contender.threads,
                claims=contender.claims,
                exactly_once=contender.exactly_once,
                retries=contender.retries,
            )
            records, seconds = ours.measure(self._place, run, service, wanted)
        else:
            records, seconds = self._rival(contender.name, run, wanted)
        return records / seconds

    def _rival(self, name: str, run: str, wanted: int) -> tuple[int, float]:
        group = Group(self._place.kafka, run)
        records = group.begin(wanted)
        group.close()
        command = [sys.executable, "-m", "bench.handwritten", name, "--servers", self._place.kafka]
        command += ["--redis", self._place.redis, "--group", run, "--records", str(records)]
        output = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        measured = json.loads(output)
        return measured["records"], measured["seconds"]

    def ratio(self, name: str, other: str) -> float:
        pairs = zip(self.rates[name], self.rates[other], strict=True)
        return statistics.median(rate / beside for rate, beside in pairs)

    def report(self) -> dict:
        """The whole report, as JSON."""
        return {
            "size": vars(self._size),
            "contenders": [
                {
                    "name": contender.name,
                    "what": contender.what,
                    "records_per_second": round(statistics.median(self.rates[contender.name])),
                    "rounds": [round(rate) for rate in self.rates[contender.name]],
                    "ratios": {
                        other: round(self.ratio(contender.name, other), 3)
                        for other in contender.beside
                        if other in self.rates
                    },
                }
                for contender in self._contenders
            ],
            "targets": [
                {"name": name, "to": other, "least": least, "ratio": self.ratio(name, other)}
                for name, other, least in TARGETS
                if name in self.rates and other in self.rates
            ],
        }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kworker beside what people write instead.")
    parser.add_argument("--quick", action="store_true", help="one short round, for development")
    parser.add_argument("--rounds", type=int, help="how often each contender runs")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"only these contenders, {INTERVALS} or {TABLES}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    size = QUICK if arguments.quick else FULL
    size = replace(size, rounds=arguments.rounds or size.rounds)
    chosen = tuple(c for c in CONTENDERS if not arguments.only or c.name in arguments.only)
    with servers(".bench", redis=True) as place:
        benchmark = Benchmark(place, size, chosen)
        met = True
        if chosen:
            print(f"filling the topic with {size.records:,} records", flush=True)
            fill(place.kafka, TOPIC, size.records)
            benchmark.run()
            met = show(benchmark.report())
        landed = None
        if not arguments.only or TABLES in arguments.only:
            rounds = min(size.rounds, TABLES_ROUNDS)
            landed = tables.measure(place, rounds, size.landed, 3 * size.landed)
        by_interval = []
        if not arguments.only or INTERVALS in arguments.only:
            by_interval = intervals.measure(place, size.records // 2, size.paced_s)
    met = tables.show(landed) and met
    intervals.show(by_interval)
    if arguments.json:
        report = {**benchmark.report(), INTERVALS: by_interval, TABLES: landed}
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
