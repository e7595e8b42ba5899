"""The demo's last page: what must hold, whether it does, and what it cost."""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

from oracle import Orders, Position, Seen

ADDS_UP = (
    "orders in = orders with a result = orders with a row.\n"
    "  Delivery is at least once: what a killed worker had in hand, or had not yet committed, is\n"
    "  done again and stands twice, in the sums as well. Tell repeats by their source position."
)


@dataclass(frozen=True)
class Tables:
    """The tables, read as files."""

    times: Counter[Position]  # rows of `invoices` for each source position
    total: Decimal
    rescued: int
    revenue_rows: int
    revenue_orders: int
    revenue_total: Decimal

    @classmethod
    def of(cls, found: dict) -> "Tables":
        rows = found["invoices"]
        return cls(
            Counter({(partition, offset): times for partition, offset, times in rows["times"]}),
            Decimal(rows["total"]),
            rows["rescued"],
            found["revenue"]["rows"],
            found["revenue"]["orders"],
            Decimal(found["revenue"]["total"]),
        )


@dataclass(frozen=True)
class Evidence:
    """Everything that was counted, each from its own source."""

    orders: Orders
    results: Seen
    tables: Tables
    billing: dict  # the service's own count of calls
    lag: int  # of the group, after the drain
    kills: int
    undone_at_kill: int  # orders of the killed worker's partitions
    replaced: bool
    peak_memory_bytes: int
    took_s: dict[str, float]


def verdicts(e: Evidence) -> list[tuple[bool, str]]:
    """Each thing that must hold, and how it came out."""
    orders, results, tables = e.orders, e.results, e.tables
    count, rows = len(orders.totals), tables.times.total()
    return [
        (
            not orders.failed,
            f"{count:,} orders in: acknowledged by Kafka, {orders.failed} failed",
        ),
        (
            results.times.keys() == orders.totals.keys(),
            f"{len(results.times):,} of them have a result in `orders.results`",
        ),
        (
            tables.times.keys() == orders.totals.keys(),
            f"{len(tables.times):,} of them have a row in `invoices`",
        ),
        (
            e.lag == 0,
            f"{e.lag:,} of them lie beyond what the workers committed before they left",
        ),
        (
            e.billing["orders"] == count and e.billing["calls"] >= results.times.total(),
            f"{e.billing['calls']:,} calls reached the billing service,"
            f" for {e.billing['orders']:,} orders",
        ),
        (
            e.kills == 1 and e.replaced and e.undone_at_kill > 0,
            f"{e.kills} worker was killed with SIGKILL and replaced,"
            f" when {e.undone_at_kill:,} orders were its to do",
        ),
        (
            tables.times == results.times and not tables.rescued,
            f"{rows:,} rows for {results.times.total():,} results: Spark wrote each exactly once",
        ),
        (
            tables.total == results.total == orders.total(results.times),
            f"{tables.total:,} is the sum of those rows, of the results, and of their orders",
        ),
        (
            (tables.revenue_orders, tables.revenue_total) == (rows, tables.total),
            f"{tables.revenue_total:,} is the sum of `revenue` too, over"
            f" {tables.revenue_rows:,} customers' minutes",
        ),
    ]


def costs(e: Evidence) -> list[tuple[str, str]]:
    """What it took, without judgement."""
    seconds = (e.results.last_ms - e.results.first_ms) / 1000 or 1.0
    repeated, calls = e.results.repeated, e.billing["calls"] - e.billing["orders"]
    return [
        (
            "duplicates",
            f"{repeated:,} results and {calls:,} calls: work of the killed worker, redone",
        ),
        ("throughput", f"{len(e.orders.totals) / seconds:,.0f} orders/s, over {seconds:.1f} s"),
        ("peak memory", f"{e.peak_memory_bytes / 2**20:.0f} MiB, of the largest worker"),
        ("time", ", ".join(f"{step} {took:.0f} s" for step, took in e.took_s.items())),
    ]


def show(e: Evidence) -> bool:
    """Prints the report; True when everything holds."""
    judged = verdicts(e)
    for holds, text in judged:
        print(f"  {'ok  ' if holds else 'FAIL'}  {text}")
    print()
    for name, text in costs(e):
        print(f"  {name:<12}{text}")
    print()
    holds = all(holds for holds, _ in judged)
    print("  It adds up: " + ADDS_UP if holds else "  It does NOT add up: see FAIL above.")
    return holds
