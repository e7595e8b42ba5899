"""The demo's report: it holds what is counted against the producer's ledger, and tells what lies.

A report that could not turn red would prove nothing, so each of its lines is made to.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kworker.core.message import Fields
from tests.support.orders_example import imported

CUT_OFF, NEW_CUSTOMER, DAMAGED = (0, 1), (0, 2), (1, 0)
SOUND = [(0, 0), (0, 3), (1, 1), (1, 2)]
FLAWS = {CUT_OFF: "cut off", NEW_CUSTOMER: "new customer", DAMAGED: "damaged attachment"}
WHY = {
    CUT_OFF: ("undecodable", "not JSON"),
    NEW_CUSTOMER: ("rejected", "unknown customer"),
    DAMAGED: ("crashed", "SIGSEGV"),
}
EVERY = [*SOUND, *FLAWS]
PUT_OFF, AGAIN = SOUND[1], SOUND[2]  # one was put off by billing, one died and was done again


@pytest.fixture(scope="module")
def modules() -> Iterator[list[ModuleType]]:
    with imported("report", "oracle", "produce", "scene") as found:
        yield found


@pytest.fixture(scope="module")
def report(modules: list[ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture(scope="module")
def oracle(modules: list[ModuleType]) -> ModuleType:
    return modules[1]


def number(position: tuple[int, int]) -> int:
    return EVERY.index(position) + 1


@dataclasses.dataclass
class Play:
    """The evidence of a small demo in which all is as it should be."""

    look: Any
    earlier: Any
    course: Any
    listing: Any


@pytest.fixture
def play(report: ModuleType, oracle: ModuleType) -> Play:
    acked = {p: oracle.Order(number(p), Decimal(number(p)), FLAWS.get(p)) for p in EVERY}
    orders = oracle.Orders(acked)

    def look(done: list[tuple[int, int]]) -> Any:
        times, runs = Counter(done), Counter([*done, AGAIN])
        total = orders.total(times)
        return report.Look(
            orders=orders,
            results=oracle.Seen(Counter(times), total, {PUT_OFF: 2}, 1_000, 3_000),
            written=oracle.Seen(runs),
            dead=oracle.Dead(Counter(FLAWS.keys()), dict(WHY)),
            tables=report.Tables(Counter(times), total, 0, 4, times.total(), total),
            billing=report.Calls(
                {"201": runs.total(), "429": 1, "503": 9},
                {number(p): n for p, n in runs.items()},
                {number(PUT_OFF): 1},
            ),
            lag=0,
        )

    course = report.Course(kills=1, undone_at_kill=5, replaced=True, restarts=2, retried=1)
    return Play(look(EVERY), look(SOUND), course, report.Listing(0, 3))


def before(report: ModuleType, play: Play) -> list[str]:
    """The lines that do not hold."""
    return [text for holds, text in report.before(play.earlier, play.course) if not holds]


def after(report: ModuleType, play: Play) -> list[str]:
    verdicts = report.after(play.look, play.earlier, play.listing)
    return [text for holds, text in verdicts if not holds]


def test_a_sound_report_adds_up(report: ModuleType, play: Play) -> None:
    assert before(report, play) == after(report, play) == []


def lose(times: Counter[Any]) -> None:
    del times[SOUND[0]]


def repeat(times: Counter[Any]) -> None:
    times[SOUND[0]] += 1


BEFORE: list[tuple[str, Callable[[Any], object], str]] = [
    ("an order without a result", lambda e: lose(e.results.times), "one or the other"),
    ("a dead letter too few", lambda e: e.dead.times.pop(CUT_OFF), "one or the other"),
    ("both", lambda e: e.dead.times.update([SOUND[0]]), "one or the other"),
    ("a letter twice", lambda e: e.dead.times.update([CUT_OFF]), "1 duplicates"),
    ("a result without a row", lambda e: lose(e.tables.times), "rows + dead letters"),
    ("a result with two rows", lambda e: repeat(e.tables.times), "rows + dead letters"),
    ("another reason", lambda e: e.dead.reasons.update({CUT_OFF: ("rejected", "")}), "flaw"),
    ("no signal", lambda e: e.dead.reasons.update({DAMAGED: ("crashed", "?")}), "found to kill"),
    ("an innocent", lambda e: e.dead.reasons.update({CUT_OFF: WHY[DAMAGED]}), "found to kill"),
    ("none convicted", lambda e: e.dead.reasons.pop(DAMAGED), "only order none was found"),
    ("an attempt too many", lambda e: e.results.attempts.update({PUT_OFF: 3}), "put off"),
    ("another's attempt", lambda e: e.results.attempts.update({AGAIN: 2}), "put off"),
    ("no attempt at all", lambda e: e.results.attempts.clear(), "put off"),
    (
        "a phantom's letter",
        lambda e: e.dead.reasons.update({(7, 7): WHY[DAMAGED]}),
        "only order 7, 0 was",
    ),
    ("a phantom's attempt", lambda e: e.results.attempts.update({(7, 7): 2}), "put off"),
    ("no outage", lambda e: e.billing.answers.pop("503"), "outage"),
]


@pytest.mark.parametrize(("spoil", "told"), [b[1:] for b in BEFORE], ids=[b[0] for b in BEFORE])
def test_each_flaw_before_the_redrive_is_reported(
    report: ModuleType, play: Play, spoil: Callable[[Any], object], told: str
) -> None:
    spoil(play.earlier)
    assert any(told in text for text in before(report, play))


COURSES: list[tuple[dict[str, Any], str]] = [
    ({"restarts": 1}, "0 restart of a worker"),
    ({"restarts": 5}, "4 restart of a worker"),
    ({"kills": 0}, "killed with SIGKILL"),
    ({"replaced": False}, "killed with SIGKILL"),
    ({"undone_at_kill": 0}, "killed with SIGKILL"),
]


@pytest.mark.parametrize(("change", "told"), COURSES)
def test_kills_that_prove_nothing_are_reported(
    report: ModuleType, play: Play, change: dict[str, Any], told: str
) -> None:
    """A kill that hit nothing, and a crash that took more workers than it may."""
    play.course = dataclasses.replace(play.course, **change)
    assert any(told in text for text in before(report, play))


AFTER: list[tuple[str, Callable[[Any], object], str]] = [
    ("an order without a result", lambda e: lose(e.results.times), "orders in = rows"),
    ("an order without a row", lambda e: lose(e.tables.times), "orders in = rows"),
    ("a phantom", lambda e: e.results.times.update([(7, 7)]), "orders in = rows"),
    (
        "a second death",
        lambda e: e.dead.times.update([CUT_OFF]),
        "1 of them became dead letters again",
    ),
    ("no invoice", lambda e: e.billing.invoices.pop(1), "invoices"),
    ("a result without an invoice", lambda e: e.billing.invoices.update({3: 0}), "invoices"),
    ("a row too many", lambda e: repeat(e.tables.times), "exactly once"),
    ("a row twice", lambda e: repeat(e.tables.times), "1 duplicates"),
    ("a result twice", lambda e: repeat(e.results.times), "1 duplicates"),
    ("a result from nowhere", lambda e: lose(e.written.times), "are in the log"),
]


@pytest.mark.parametrize(("spoil", "told"), [a[1:] for a in AFTER], ids=[a[0] for a in AFTER])
def test_each_flaw_after_the_redrive_is_reported(
    report: ModuleType, play: Play, spoil: Callable[[Any], object], told: str
) -> None:
    spoil(play.look)
    assert any(told in text for text in after(report, play))


FIELDS: list[tuple[str, str, dict[str, Any], str]] = [
    ("look", "", {"lag": 1}, "1 records are not committed"),
    ("listing", "", {"count": 1}, "1 dead letters are left"),
    ("listing", "", {"hidden": 2}, "2 are resolved"),
    ("look", "results", {"total": Decimal(1)}, "sum of the rows"),
    ("look", "tables", {"total": Decimal(1)}, "sum of the rows"),
    ("look", "tables", {"rescued": 1}, "exactly once"),
    ("look", "tables", {"revenue_orders": 1}, "sum of the table `revenue`"),
    ("look", "tables", {"revenue_total": Decimal(1)}, "sum of the table `revenue`"),
]


@pytest.mark.parametrize(("of", "part", "change", "told"), FIELDS)
def test_a_wrong_figure_is_told(
    report: ModuleType, play: Play, of: str, part: str, change: dict[str, Any], told: str
) -> None:
    whole = getattr(play, of)
    if part:
        change = {part: dataclasses.replace(getattr(whole, part), **change)}
    setattr(play, of, dataclasses.replace(whole, **change))
    assert any(told in text for text in after(report, play))


def test_failed_and_uncommitted_orders_are_told_at_once(
    report: ModuleType, oracle: ModuleType, play: Play
) -> None:
    orders = oracle.Orders(play.earlier.orders.acked, failed=2)
    play.earlier = dataclasses.replace(play.earlier, orders=orders, lag=3)
    told = before(report, play)
    assert len(told) == 2
    assert "2 failed" in told[0]
    assert told[1].startswith("3 records")


def test_the_last_page_says_whether_all_pages_added_up(
    report: ModuleType, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = report.costs(play.look, play.earlier, play.course, 64 << 20, {"work": 2.0})
    report.close(True, costs)
    page = capsys.readouterr().out
    assert "It adds up" in page
    assert "0 results, 0 rows; 1 invoices" in page
    assert "2 orders/s, over 2.0 s" in page
    assert "64 MiB" in page
    report.close(False, costs)
    assert "It does NOT add up" in capsys.readouterr().out


def test_the_ledger_is_read_as_it_is_written(
    modules: list[ModuleType], oracle: ModuleType, tmp_path: Path
) -> None:
    """What Kafka did not acknowledge is no order, but is counted."""
    produce = modules[2]
    when = datetime(2025, 1, 1, tzinfo=UTC)
    orders = list(produce.orders(3, when))
    with (tmp_path / "ledger").open("w") as file:
        ledger = produce.Ledger(file)
        for at, order in enumerate(orders):
            raw = Fields(("orders", 1, at), 0, None, None, ())
            wrong = produce.Flaw.CUT_OFF if at == 1 else None
            ledger.note(order, wrong, "no leader" if at == 2 else None, raw)
    found = oracle.Orders.of(tmp_path / "ledger")
    assert found.failed == 1
    assert {p: order.flaw for p, order in found.acked.items()} == {(1, 0): None, (1, 1): "cut off"}
    assert found.total(Counter({(1, 0): 2})) == 2 * Decimal(str(orders[0]["total"]))
    assert found.undone({(1, 0)}) == {1: 1}


def test_results_and_dead_letters_are_counted_by_source(oracle: ModuleType) -> None:
    """Results of one order at different attempts, and a dead letter."""
    seen, dead = oracle.Seen(), oracle.Dead()
    for at_ms, attempt in ((20, b"2"), (10, None)):
        headers = [("kworker-source", b"or/ders/3/41/99")]
        headers += [("kworker-attempt", attempt)] if attempt else []
        seen.add(Fields(("results", 0, 0), at_ms, None, b'{"total": 1.10}', tuple(headers)))
    assert (seen.times, seen.repeated, seen.total) == ({(3, 41): 2}, 1, Decimal("2.2"))
    assert (seen.attempts, seen.first_ms, seen.last_ms) == ({(3, 41): 2}, 10, 20)
    letter = (("kworker-source", b"orders/3/41/99"), ("kworker-reason", b"crashed"))
    dead.add(Fields(("dead", 0, 0), 0, None, b"", (*letter, ("kworker-message", b"SIGSEGV"))))
    assert dead.reasons == {(3, 41): ("crashed", "SIGSEGV")}


def test_orders_have_each_flaw_and_mending_repairs_the_cut_off(
    modules: list[ModuleType], tmp_path: Path
) -> None:
    """Of many orders few shall fail, or the breaker would open; and each flaw is there."""
    produce, scene = modules[2], modules[3]
    orders = list(produce.orders(2_000, datetime.now(UTC)))
    flaws = Counter(produce.flaw(order, 2_000) for order in orders)
    assert flaws[produce.Flaw.DAMAGED] == 1
    assert flaws[produce.Flaw.CUT_OFF] == 4
    assert 0 < flaws[produce.Flaw.NEW_CUSTOMER] < 100
    cut_off = [order for order in orders if produce.flaw(order, 2_000) is produce.Flaw.CUT_OFF]
    values = [produce.written(order, produce.Flaw.CUT_OFF).decode() for order in cut_off]
    exported, mended = tmp_path / "cut-off", tmp_path / "mended"
    exported.write_text("".join(json.dumps({"n": 1, "value": v}) + "\n" for v in values))
    scene.mend(exported, mended)
    lines = [json.loads(line) for line in mended.read_text().splitlines()]
    assert [json.loads(line["value"]) for line in lines] == cut_off
    assert all(line["n"] == 1 for line in lines)
