"""The ledger example: effect and source position are one transaction, on SQLite and PostgreSQL."""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kworker import Message, Retry, Unavailable
from kworker.config import toml_file
from kworker.core.message import Undecodable
from kworker.worker.handlers import loader
from kworker.worker.handlers.signature import Call
from tests.support.examples import LEDGER, imported

OPENING = 1_000
ACCOUNTS = ("alice", "bob", "carol")
Load = Callable[[], Call]


class Books:
    """The database, as a bystander finds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run((LEDGER / "schema.sql").read_text())
        for account in ACCOUNTS:
            self.open_account(account)

    def open_account(self, account: str) -> None:
        self._run(f"INSERT INTO accounts VALUES ('{account}', {OPENING})")

    def _run(self, script: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(script)

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()

    @property
    def balances(self) -> dict[str, int]:
        """How far each is from where it began; those that are there, nothing else."""
        found = self.rows("SELECT account, balance FROM accounts ORDER BY account")
        return {account: balance - OPENING for account, balance in found if balance != OPENING}

    @property
    def booked(self) -> list[str]:
        found = self.rows("SELECT transfer_id FROM transfers ORDER BY transfer_id")
        return [transfer_id for (transfer_id,) in found]


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "ledger.db")


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with imported(LEDGER, "handlers") as (handlers,):
        yield handlers


@pytest.fixture
def load(books: Books, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Makes the handler by the example's own configuration; several are as several processes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(example, "URL", f"sqlite:///{books.path}")
    made = []

    def load() -> Call:
        made.append(loader.load(toml_file.load(LEDGER / "kworker.toml")))
        return made[-1].of("transfers")

    yield load
    for handlers in made:
        handlers.close()


@pytest.fixture
def book(load: Load) -> Call:
    return load()


def transfer(
    number: int, debit: str = "alice", credit: str = "bob", *, timestamp: int = 1, attempt: int = 1
) -> Message:
    value = {"transfer_id": f"t{number}", "debit": debit, "credit": credit, "amount": 5}
    return Message(
        "transfers", 0, number, timestamp, value=json.dumps(value).encode(), attempt=attempt
    )


def test_a_transfer_is_booked_with_its_position(book: Call, books: Books) -> None:
    book(transfer(7))
    assert books.balances == {"alice": -5, "bob": 5}
    assert books.rows("SELECT * FROM transfers") == [
        ("transfers", 0, 7, 1, "t7", "alice", "bob", 5)
    ]


def test_a_record_that_comes_again_is_booked_once(load: Load, books: Books) -> None:
    """In the same process, in another one, and by a delay topic as another attempt."""
    for call, attempt in ((load(), 1), (load(), 1), (load(), 2)):
        for _ in range(2):
            call(transfer(7, attempt=attempt))
    assert (books.balances, books.booked) == ({"alice": -5, "bob": 5}, ["t7"])


def test_a_transfer_of_a_recreated_topic_is_another(book: Call, books: Books) -> None:
    """Its offsets begin at 0 again; its records are of another time."""
    book(transfer(0, timestamp=1))
    book(transfer(0, timestamp=2))
    assert books.balances == {"alice": -10, "bob": 10}


def test_a_failed_attempt_leaves_nothing_so_the_next_one_books(book: Call, books: Books) -> None:
    """The entry is written and alice's balance moved when zoe is not found."""
    with pytest.raises(Retry, match="no account zoe"):
        book(transfer(7, "alice", "zoe"))
    assert (books.balances, books.booked) == ({}, [])
    books.open_account("zoe")
    book(transfer(7, "alice", "zoe", attempt=2))
    assert (books.balances, books.booked) == ({"alice": -5, "zoe": 5}, ["t7"])


def test_a_transfer_to_itself_moves_nothing(book: Call, books: Books) -> None:
    book(transfer(7, "alice", "alice"))
    assert (books.balances, books.booked) == ({}, ["t7"])


@pytest.mark.parametrize("value", [b"{", b'{"transfer_id": "t1"}', None])
def test_an_invalid_transfer_is_poison(book: Call, books: Books, value: bytes | None) -> None:
    with pytest.raises(Undecodable):
        book(Message("transfers", value=value))
    assert books.booked == []


def test_concurrent_bookings_of_a_record_book_it_once(load: Load, books: Books) -> None:
    """As when a handler outlives its partition, and the new owner is at the same record."""
    count = 60
    with ThreadPoolExecutor(8) as pool:
        for call in (load(), load()):
            for number in range(count):
                pool.submit(call, transfer(number, *ACCOUNTS[number % 2 : number % 2 + 2]))
    assert sorted(books.booked) == sorted(f"t{number}" for number in range(count))
    assert books.balances == {"alice": -5 * count // 2, "carol": 5 * count // 2}


def test_an_unwritable_database_is_unavailable(
    book: Call, books: Books, example: ModuleType, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    """Not the record's: it neither counts as an attempt nor leaves anything behind."""
    monkeypatch.setattr(example.database, "WAIT_S", 0.01)
    impatient = load()
    with closing(sqlite3.connect(books.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="database"):
            impatient(transfer(7))
    impatient(transfer(7))
    assert books.booked == ["t7"]


def test_a_committed_transfer_is_synced_to_disk(
    book: Call, example: ModuleType, books: Books
) -> None:
    """A power cut must not undo what Kafka was told is done; readers must not stop the writer."""
    found = example.database.connect(f"sqlite:///{books.path}")
    with closing(found), found.transaction() as execute:
        assert execute("PRAGMA synchronous").fetchone() == (2,)
        assert execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_each_thread_has_a_connection_to_postgresql(example: ModuleType) -> None:
    """The two numbers stand in two files."""
    config = toml_file.load(LEDGER / "kworker.toml")
    assert config.workers.threads == example.database.CONNECTIONS_MAX


def test_any_other_database_is_refused(example: ModuleType) -> None:
    """Without the rest of the URL, which may hold a password."""
    with pytest.raises(ValueError, match="postgresql") as raised:
        example.database.connect("mysql://user:secret@host/name")
    assert "secret" not in str(raised.value)


class FakePool:
    """psycopg's pool as far as the example uses it; keeps what would be sent."""

    made: list["FakePool"]

    def __init__(self, url: str, **options: Any) -> None:
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.ends: list[str] = []
        self.made.append(self)

    @staticmethod
    def check_connection(connection: object) -> None:
        """Nothing is there to check."""

    @contextmanager
    def connection(self) -> Iterator["FakePool"]:
        try:
            yield self
        except BaseException:
            self.ends.append("rollback")
            raise
        self.ends.append("commit")

    def execute(self, sql: str, values: tuple[Any, ...]) -> SimpleNamespace:
        self.sent.append((sql, values))
        return SimpleNamespace(rowcount=0 if "zoe" in values[1:2] else 1)

    def close(self) -> None:
        self.ends.append("closed")


class OperationalError(Exception):
    """psycopg's."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, example: ModuleType) -> type[FakePool]:
    FakePool.made = []
    psycopg = SimpleNamespace(OperationalError=OperationalError)
    monkeypatch.setitem(sys.modules, "psycopg", psycopg)
    monkeypatch.setitem(sys.modules, "psycopg_pool", SimpleNamespace(ConnectionPool=FakePool))
    monkeypatch.setattr(example, "URL", "postgresql://ledger@db/ledger")
    return FakePool


def test_postgresql_gets_the_same_statements_in_its_spelling(
    pool: type[FakePool], example: ModuleType
) -> None:
    """psycopg writes %s where the standard library writes ?. The real one was tried by hand."""
    ledger = example.Ledger()
    ledger(example.Transfer(transfer_id="t1", debit="a", credit="b", amount=5), transfer(1))
    ledger.close()
    [sent] = [used.sent for used in pool.made]
    assert [sql.replace("%s", "?") for sql, _ in sent] == [example.ENTER, *[example.MOVE] * 2]
    assert all("?" not in sql and sql.count("%") == len(values) for sql, values in sent)
    assert pool.made[0].ends == ["commit", "closed"]


def test_a_failure_on_postgresql_undoes_and_is_told_apart(
    pool: type[FakePool], example: ModuleType
) -> None:
    """The record's fault passes through; the server's is Unavailable. Neither is committed."""
    ledger = example.Ledger()
    to_nobody = example.Transfer(transfer_id="t1", debit="a", credit="zoe", amount=5)
    with pytest.raises(Retry):
        ledger(to_nobody, transfer(1))
    with pytest.raises(Unavailable), ledger._database.transaction():
        raise OperationalError("server closed the connection unexpectedly")
    assert pool.made[0].ends == ["rollback", "rollback"]


SOUND = [("t1", "alice", "bob", 5), ("t2", "bob", "carol", 7)]


@pytest.mark.parametrize(
    ("booked", "moved", "wrong"),
    [
        (SOUND, {}, []),
        (SOUND[:1], {"bob": 7, "carol": -7}, ["transfers that are not booked"]),
        ([*SOUND, SOUND[1]], {"bob": -7, "carol": 7}, ["transfers that are booked twice"]),
        (SOUND, {"bob": 1, "carol": -1}, ["balances that differ from the sum of their transfers"]),
        (
            SOUND,
            {"bob": -5},
            ["balances that differ from the sum of their transfers", "cents lost or gained"],
        ),
    ],
)
def test_the_demos_audit_turns_red(
    booked: list[tuple[str, str, str, int]], moved: dict[str, int], wrong: list[str]
) -> None:
    """Each of its lines, for what it names; `moved` is what differs from sound books."""
    with imported(LEDGER, "demo") as (demo,):
        sound = {"alice": -5, "bob": -2, "carol": 7}
        found = {name: demo.OPENING + sound[name] + moved.get(name, 0) for name in sound}
        audit = demo.audit({"t1", "t2"}, booked, found)
    assert [name for name, count in audit.items() if count] == wrong
