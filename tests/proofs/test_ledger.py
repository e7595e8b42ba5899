"""The ledger example under `kill -9`: exactly once in a database, though Kafka delivers again."""

import itertools
import shutil
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import kafka, oracles
from tests.support.examples import LEDGER
from tests.support.kafka import New, Writer
from tests.support.ledgers import Fault, Invocation, Produced, invocations
from tests.support.lines import whole_lines
from tests.support.recorded import ENDED
from tests.support.service import Service, service, stop
from tests.support.waiting import eventually

Topic = Callable[..., str]
Load = Callable[..., Service]

KILLS = 6
PORTION, MORE = 850, 50  # before each kill, and whenever too little is in flight for it
BUSY = 40  # records in flight as last told, of which some are still so when the kill comes
SETTLED_IN = 50  # transfers that a process has booked, so that some of them are not yet committed
ACCOUNTS = 200
OPENING = 1_000
LATE = "late"  # an account that is opened when there are transfers for it already
LATE_EVERY = 20

# The example's handler. The ledger's end of a run is the commit; the sleep lies between it and the
# outcome, where a kill hurts.
BOOK = """
import time
import uuid
from ledger import Ledger, Transfer
from kworker import Message
from tests.support.recorded import recorded

class handle(Ledger):
    def __call__(self, transfer: Transfer, message: Message) -> None:
        recorded(lambda message: Ledger.__call__(self, transfer, message))(message)
        time.sleep(0.02)
"""
# The control: all the same, but the entry's key is not where the record stood.
FORGET = """
    def _enter(self, execute, transfer, message):
        somewhere = Message(message.topic, 0, uuid.uuid4().int >> 65, message.timestamp)
        return super()._enter(execute, transfer, somewhere)
"""


class Books:
    """The database of a test, read without the example's code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((LEDGER / "schema.sql").read_text())
        self.open_accounts(account(number) for number in range(ACCOUNTS))

    def open_accounts(self, names: Iterable[str]) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            rows = [(name, OPENING) for name in names]
            connection.executemany("INSERT INTO accounts VALUES (?, ?)", rows)

    def contradictions(self, produced: Sequence[Produced]) -> dict[str, object]:
        """What does not hold; empty when every transfer of the producer's ledger is booked once."""
        times = Counter(self._rows("SELECT transfer_id FROM transfers"))
        positions = self._rows(
            "SELECT source_topic, source_partition, source_offset, transfer_id FROM transfers"
        )
        balances = dict(self._rows("SELECT account, balance FROM accounts"))
        found = {
            "not booked": [each for each in produced if (each.identity,) not in times],
            "booked twice": [row for row, many in times.items() if many > 1],
            "elsewhere": set(positions) ^ {(*each.position, each.identity) for each in produced},
            "wrong balances": balances.items() ^ _due(produced).items(),
        }
        return {name: what for name, what in found.items() if what}

    def _rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            return connection.execute(query).fetchall()


def account(number: int) -> str:
    return f"account-{number % ACCOUNTS:03}"


def _transfer(number: int) -> tuple[str, str, int]:
    """Debit, credit and amount."""
    credit = account(7 * number + 1) if number % LATE_EVERY else LATE
    return account(number), credit, number % 97 + 1


def _due(produced: Iterable[Produced]) -> dict[str, int]:
    """What the balances must be, by the producer's ledger alone."""
    balances = dict.fromkeys([LATE, *map(account, range(ACCOUNTS))], OPENING)
    for each in produced:
        debit, credit, amount = _transfer(int(each.identity))
        balances[debit] -= amount
        balances[credit] += amount
    return balances


def transfers() -> Iterator[New]:
    for number in itertools.count():
        debit, credit, amount = _transfer(number)
        value = (
            f'{{"transfer_id": "{number}", "debit": "{debit}",'
            f' "credit": "{credit}", "amount": {amount}}}'
        )
        yield New(str(number), value.encode(), debit.encode())


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    monkeypatch.setenv("LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    return Books(tmp_path / "ledger.db")


@pytest.fixture
def load(tmp_path: Path, bootstrap: str) -> Iterator[Load]:
    """Makes a service in a folder of its own, with the example's code and configuration."""
    given = tomllib.loads((LEDGER / "kworker.toml").read_text())
    settings = {
        "workers": given["workers"],
        "retry": {"delays": ["500ms", "1s", "2s", "4s"]},
        # So that every kill finds transfers that are booked, and whose positions are not committed.
        "delivery": {"commit_interval": "1s"},
    }
    with ExitStack() as undo:

        def load(instance: str, topic: str, **options: Any) -> Service:
            folder = tmp_path / instance
            options |= {"instance": instance, "settings": settings}
            made = undo.enter_context(service(folder, bootstrap, [topic], **options))
            shutil.copy(LEDGER / "handlers.py", folder / "ledger.py")
            shutil.copy(LEDGER / "database.py", folder)
            return made

        yield load


def test_each_transfer_is_booked_once_whatever_dies_or_joins(
    tmp_path: Path, bootstrap: str, topic: Topic, books: Books, load: Load
) -> None:
    """Kills of workers, of the supervisor, a second instance, retries: at least once made exact."""
    source = topic("transfers", partitions=8)
    writer = Writer(bootstrap, tmp_path / "produced")
    here = load("here", source, handlers=BOOK)
    there = load("there", source, handlers=BOOK, name=here.name, ledger=here.ledger)
    here.serve()
    stream = transfers()
    for turn in range(KILLS):
        _kill(here, turn % 2, writer, source, stream)
        match turn:
            case 0:
                books.open_accounts([LATE])
            case 1:
                there.start()
            case 3:
                for slot in (0, 1):
                    _at_work(here, slot, writer, source, stream)
                orphans = set(here.worker_pids().values())
                here.kill_supervisor()
                here.serve()
                eventually(lambda: _shared(there), what="the other has its share")
    writer.finish()
    joined = set(there.worker_pids().values())
    eventually(lambda: not _missing(here, writer.acked), what="every handler has returned")
    here.caught_up()
    assert (here.stop(), there.stop()) == (0, 0)
    runs = invocations(here.ledger)
    workers = {fault.pid for fault in here.faults.faults if fault.slot >= 0}
    assert _skipped(runs).keys() >= workers, "an invalid run: a kill after which none was skipped"
    assert len(workers) == KILLS
    assert _busy_when_orphaned(runs, orphans, here.faults.faults), "an invalid run"
    assert joined & {run.pid for run in runs}, "an invalid run: the other had nothing to do"
    assert any(run.ended and run.attempt > 1 for run in runs), "an invalid run: no retries"
    assert len(writer.acked) >= KILLS * PORTION
    assert books.contradictions(writer.acked) == {}
    assert kafka.read_all(bootstrap, f"{here.name}.dead") == []


def test_without_the_position_the_same_handler_books_twice(
    tmp_path: Path, bootstrap: str, topic: Topic, books: Books, load: Load
) -> None:
    """The control: one kill is enough, and the audit sees it in entries and in balances."""
    source = topic("transfers", partitions=2)
    writer = Writer(bootstrap, tmp_path / "produced")
    books.open_accounts([LATE])
    here = load("here", source, handlers=BOOK + FORGET)
    here.serve()
    stream = transfers()
    _kill(here, 0, writer, source, stream)
    writer.finish()
    here.caught_up()
    assert here.stop() == 0
    assert books.contradictions(writer.acked).keys() == {
        "booked twice",
        "elsewhere",
        "wrong balances",
    }


def _kill(struck: Service, slot: int, writer: Writer, topic: str, stream: Iterator[New]) -> None:
    writer.begin(topic, islice(stream, PORTION))

    def killed() -> bool:
        """Stopped first, so that what is not committed stays so."""
        _at_work(struck, slot, writer, topic, stream)
        worker = psutil.Process(struck.worker(slot)["pid"])
        stop(worker)
        if _uncommitted(struck, worker.pid):
            struck.kill_worker(slot)
            return True
        worker.resume()
        return False

    eventually(killed, what="it has booked what is not committed")


def _at_work(struck: Service, slot: int, writer: Writer, topic: str, stream: Iterator[New]) -> None:
    """Waits until that worker has booked some transfers and has others in flight; feeds it."""

    def works() -> bool:
        row = struck.workers().get(slot, {"phase": "gone"})
        if row["phase"] != "running" or row["pid"] in struck.killed:
            return False
        if row["in_flight"] < BUSY:
            writer.begin(topic, islice(stream, MORE))
        return row["in_flight"] >= BUSY and _booked(struck.ledger, row["pid"]) >= SETTLED_IN

    eventually(works, every_s=0.01, what="it is at work")


def _uncommitted(struck: Service, pid: int) -> bool:
    """Whether a worker has booked what the group does not hold as done."""
    positions = struck.committed()
    beyond = kafka.named_beyond(struck.bootstrap, struck.name)
    return any(
        run.offset >= positions.get(run.at, 0)
        and not any(run.offset in done for done in beyond.get(run.at, []))
        for run in invocations(struck.ledger)
        if run.pid == pid and run.ended
    )


def _booked(ledger: Path, pid: int) -> int:
    lines = [line for path in ledger.glob(f"{pid}-*.handler") for line in whole_lines(path)]
    return sum(line.startswith(ENDED) for line in lines)


def _busy_when_orphaned(
    runs: Sequence[Invocation], orphans: set[int], faults: Sequence[Fault]
) -> bool:
    """Workers of the killed supervisor were booking: it did not die at rest."""
    [killed] = [fault for fault in faults if fault.slot < 0]
    ends = [run.end_ns or 0 for run in runs if run.pid in orphans]
    return any(end > killed.from_ns for end in ends)


def _shared(joining: Service) -> bool:
    """Each of its workers has joined and has partitions of the source."""
    shares = joining.shares()
    return bool(shares) and all(shares)


def _missing(handling: Service, produced: Sequence[Produced]) -> list[Any]:
    return oracles.lost(produced, invocations(handling.ledger))


def _skipped(runs: Sequence[Invocation]) -> Counter[int]:
    """How many records had been booked and came again, by the process that had booked them."""
    pairs = [(before, again) for before, again in oracles.repeated(runs) if before.ended]
    skipped = Counter(before.pid for before, _ in pairs)
    print("booked and came again, by process:", dict(skipped))
    return skipped
