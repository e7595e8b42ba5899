"""Transactions on SQLite or PostgreSQL, by URL.

`sqlite:///ledger.db` is relative to this folder (with four slashes, absolute), and needs nothing.
`postgresql://user@host/name` needs `pip install "psycopg[binary,pool]"`.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import urlsplit

from kworker import Unavailable

HERE = Path(__file__).resolve().parent
WAIT_S = 10.0  # to become SQLite's one writer, or to get a connection to PostgreSQL
CONNECTIONS_MAX = 16  # `workers.threads`: each thread has one

Execute = Callable[..., Any]
"""Runs a statement, with `?` for each value; returns the driver's cursor."""


class Database(Protocol):
    """A database of one process; any of its threads may open a transaction."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """Commits at the end of the block; rolls back when the block raises.

        Raises Unavailable when the database fails. If it fails during the commit, the outcome is
        unknown: the record comes again, and its position tells whether it was booked.
        """

    def close(self) -> None: ...


def connect(url: str) -> Database:
    """Opens the database of a URL. Raises ValueError for any other scheme."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return Sqlite(HERE / parts.path[1:])
        case "postgresql":
            return Postgres(url)
    raise ValueError(f"expected sqlite:///… or postgresql://…, got {parts.scheme}://…")


class Sqlite:
    """One connection behind a lock: SQLite has one writer at a time anyway."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        # Transactions are begun by hand; `timeout` is the wait for another process's.
        self._connection = sqlite3.connect(
            path, timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )
        # WAL: readers do not block the writer. FULL: commits survive a power cut, after which Kafka
        # would not deliver their records again.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        try:
            with self._lock:
                # IMMEDIATE waits for other writers here. A transaction that becomes a writer later
                # fails when another was faster.
                self._connection.execute("BEGIN IMMEDIATE")
                with self._connection:
                    yield self._connection.execute
        except sqlite3.OperationalError as error:
            raise Unavailable("database") from error

    def close(self) -> None:
        self._connection.close()


class Postgres:
    """A connection for each thread that needs one, from psycopg's pool."""

    def __init__(self, url: str) -> None:
        import psycopg  # imported here: only PostgreSQL needs it
        import psycopg_pool

        self._down = psycopg.OperationalError
        # Connections are checked before use: after a restart of the server all of them are broken.
        self._pool = psycopg_pool.ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS_MAX,
            timeout=WAIT_S,
            check=psycopg_pool.ConnectionPool.check_connection,
            open=True,
        )

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        try:
            with self._pool.connection() as connection:
                yield lambda sql, values=(): connection.execute(sql.replace("?", "%s"), values)
        except self._down as error:
            raise Unavailable("database") from error

    def close(self) -> None:
        self._pool.close()
