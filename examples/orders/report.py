"""The demo's two reports: claims checked before the redrive and after it, and the costs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from oracle import Dead, Orders, Position, Seen
from produce import Flaw

REASONS = {
    Flaw.NEW_CUSTOMER: "rejected",
    Flaw.CUT_OFF: "undecodable",
    Flaw.DAMAGED: "crashed",
}
CRASH_LIMIT = 2  # the default of dead_letter.crash_limit
EXACTLY_ONCE = (
    "Delivery is exactly once, from topic to table: whatever was killed, each order has one\n"
    "  result and one row. Only the calls that a dying worker had made were made again."
)

Verdict = tuple[bool, str]


@dataclass(frozen=True)
class Tables:
    """The contents of the tables, read as files."""

    times: Counter[Position]  # rows of `invoices` for each source position
    total: Decimal
    rescued: int
    revenue_rows: int
    revenue_orders: int
    revenue_total: Decimal

    @property
    def repeated(self) -> int:
        return self.times.total() - len(self.times)

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
class Calls:
    """The billing service's own counts."""

    answers: dict[str, int]  # by HTTP status
    invoices: dict[int, int]  # by order
    put_off: dict[int, int]  # by order, with 429 or 500

    @classmethod
    def of(cls, told: dict) -> "Calls":
        invoices, put_off = (
            {int(order_id): times for order_id, times in told[name].items()}
            for name in ("invoices", "put_off")
        )
        return cls(told["answers"], invoices, put_off)


@dataclass(frozen=True)
class Course:
    """The kills of workers, and the counts of `kworker status` after them."""

    kills: int
    undone_at_kill: int  # orders of the killed worker's partitions
    replaced: bool
    restarts: int  # of workers, until the fix
    retried: int


@dataclass(frozen=True)
class Look:
    """Everything counted at one time, each from its own source."""

    orders: Orders
    results: Seen
    written: Seen  # the results' log, aborted transactions included
    dead: Dead
    tables: Tables
    billing: Calls
    lag: int  # of the group, in the source topic and in requeue


@dataclass(frozen=True)
class Listing:
    """The counts of the last `kworker dead list`."""

    count: int
    hidden: int


def before(look: Look, course: Course) -> list[Verdict]:
    """Claims that must hold when every order has ended, before the repair."""
    acked, results, dead = look.orders.acked, look.results.times, look.dead.times
    return [
        (
            not look.orders.failed,
            f"{len(acked):,} orders in: acknowledged by Kafka, {look.orders.failed} failed",
        ),
        (
            results.keys() | dead.keys() == acked.keys() and not results.keys() & dead.keys(),
            f"{len(results):,} of them have a result and {len(dead):,} are dead letters;"
            " every order is one or the other",
        ),
        (
            look.tables.times == results and not look.tables.rescued,
            f"{len(look.tables.times):,} of them have a row in `invoices`:"
            " orders in = rows + dead letters",
        ),
        _no_duplicates(look),
        _nothing_left(look),
        *_died(look),
        *_survived(look, course),
    ]


def _died(look: Look) -> Iterable[Verdict]:
    """Claims about the dead letters: only flawed orders are among them."""
    flawed = {p: order.flaw for p, order in look.orders.acked.items() if order.flaw}
    reasons = {position: reason for position, (reason, _) in look.dead.reasons.items()}
    counts = Counter(reasons.values()).most_common()
    yield (
        reasons == {position: REASONS[Flaw(flaw)] for position, flaw in flawed.items()},
        f"{', '.join(f'{count:,} {reason}' for reason, count in counts)}:"
        " exactly the flawed orders are dead letters, each with its own reason",
    )
    crashed = {p: told for p, (reason, told) in look.dead.reasons.items() if reason == "crashed"}
    ids = [look.orders.at(position).order_id for position in crashed]
    yield (
        set(crashed) == {position for position, flaw in flawed.items() if flaw == Flaw.DAMAGED}
        and all("SIGSEGV" in told for told in crashed.values()),
        f"only order {', '.join(map(str, ids)) or 'none'} was found to kill its process:"
        f" {', '.join(crashed.values()) or 'nothing'}",
    )


def _survived(look: Look, course: Course) -> Iterable[Verdict]:
    """Claims about the faults that the service survived."""
    deaths = course.restarts - course.kills
    yield (
        1 <= deaths <= CRASH_LIMIT + 1,
        f"{deaths} restart of a worker was caused by that order, of {CRASH_LIMIT + 1} allowed",
    )
    yield (
        course.kills == 1 and course.replaced and course.undone_at_kill > 0,
        f"{course.kills} worker was killed with SIGKILL and replaced,"
        f" while {course.undone_at_kill:,} orders of its partitions were unfinished",
    )
    put_off, attempts = look.billing.put_off, look.results.attempts
    yield (
        bool(attempts)
        and all(n - 1 <= put_off.get(look.orders.at(p).order_id, 0) for p, n in attempts.items()),
        f"{len(attempts):,} orders that billing put off (429, 500) were retried;"
        " no other attempt was counted",
    )
    away = look.billing.answers.get("503", 0)
    yield (
        away > 0,
        f"{away:,} calls met billing's outage (503); the other orders waited, and none failed",
    )


def after(look: Look, earlier: Look, listing: Listing) -> list[Verdict]:
    """Claims that must hold after repair, redrive and drain."""
    acked, results, tables = look.orders.acked, look.results, look.tables
    rows, invoices = tables.times.total(), look.billing.invoices
    return [
        (
            results.times.keys() == tables.times.keys() == acked.keys(),
            f"{len(acked):,} orders in, {len(results.times):,} have a result,"
            f" {len(tables.times):,} have a row: orders in = rows",
        ),
        (
            listing.count == 0 and listing.hidden == look.dead.times.total(),
            f"{listing.count} dead letters are left, {listing.hidden:,} are resolved",
        ),
        (
            look.dead.times == earlier.dead.times,
            f"{look.dead.times.total() - earlier.dead.times.total()} of them became dead letters"
            " again",
        ),
        _nothing_left(look),
        (
            invoices.keys() == {order.order_id for order in acked.values()}
            and sum(invoices.values()) >= results.times.total(),
            f"{sum(invoices.values()):,} invoices were written by the billing service,"
            f" for {len(invoices):,} orders",
        ),
        _no_duplicates(look),
        _taken_back(look),
        (
            tables.times == results.times and not tables.rescued,
            f"{rows:,} rows for {results.times.total():,} results: Spark wrote each exactly once",
        ),
        (
            tables.total == results.total == look.orders.total(Counter(acked.keys())),
            f"{tables.total:,} is the sum of the rows, of the results, and of all orders",
        ),
        (
            (tables.revenue_orders, tables.revenue_total) == (rows, tables.total),
            f"{tables.revenue_total:,} is the sum of the table `revenue`, too, over"
            f" {tables.revenue_rows:,} rows, one for each customer and minute",
        ),
    ]


def _no_duplicates(look: Look) -> Verdict:
    twice = look.results.repeated + look.dead.repeated + look.tables.repeated
    return (not twice, f"{twice} duplicates among the results, the dead letters and the rows")


def _taken_back(look: Look) -> Verdict:
    """The claim that `read_committed` hides the results of aborted transactions."""
    aborted = look.written.times - look.results.times
    return (
        look.results.times <= look.written.times,
        f"{look.written.times.total():,} results are in the log, {aborted.total():,} of them in"
        " transactions that died with a worker: `read_committed` never shows those",
    )


def _nothing_left(look: Look) -> Verdict:
    return (look.lag == 0, f"{look.lag:,} records are not committed by the workers")


def costs(
    look: Look, earlier: Look, course: Course, peak_memory_bytes: int, took_s: dict[str, float]
) -> list[tuple[str, str]]:
    """The costs, which are shown and not judged."""
    results = earlier.results
    seconds = (results.last_ms - results.first_ms) / 1000 or 1.0
    again = sum(look.billing.invoices.values()) - len(look.billing.invoices)
    return [
        (
            "duplicates",
            f"{look.results.repeated:,} results, {look.tables.repeated:,} rows; {again:,} invoices"
            " (calls of workers that died before the commit)",
        ),
        ("retried", f"{course.retried:,} times an order went through a delay topic"),
        (
            "throughput",
            f"{len(results.times) / seconds:,.0f} orders/s, over {seconds:.1f} s,"
            " deaths and outage included",
        ),
        ("peak memory", f"{peak_memory_bytes / 2**20:.0f} MiB, of the largest worker"),
        ("time", ", ".join(f"{step} {took:.0f} s" for step, took in took_s.items())),
    ]


def show(verdicts: Iterable[Verdict]) -> bool:
    """Prints each verdict; returns True if all hold."""
    judged = list(verdicts)
    for holds, text in judged:
        print(f"  {'ok  ' if holds else 'FAIL'}  {text}")
    return all(holds for holds, _ in judged)


def close(adds_up: bool, spent: Iterable[tuple[str, str]]) -> None:
    """Prints the costs and the conclusion."""
    print()
    for name, text in spent:
        print(f"  {name:<12}{text}")
    print()
    if adds_up:
        print("  It adds up, before the redrive and after it.\n  " + EXACTLY_ONCE)
    else:
        print("  It does NOT add up: see FAIL above.")
