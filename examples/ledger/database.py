"""Transactions on SQLite or PostgreSQL, by URL.

`sqlite:///ledger.db` (from this folder; four slashes: from the root) needs nothing, and
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
WAIT_S = 10.0  # for SQLite's one writer, or for a connection to PostgreSQL
CONNECTIONS_MAX = 16  # as many as `workers.threads`: each has one

Execute = Callable[..., Any]
"""Runs one statement, with `?` for each of the values; returns the driver's cursor."""


class Database(Protocol):
    """Owned by one process; any of its threads may ask for a transaction."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """Committed at the end of the block, and undone whole when it raises.

        Raises Unavailable when it is the database that fails. That may be at the commit, with its
        answer lost: the record comes again then, and finds out.
        """

    def close(self) -> None: ...


def connect(url: str) -> Database:
    """Raises ValueError for a URL of something else."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return Sqlite(HERE / parts.path[1:])
        case "postgresql":
            return Postgres(url)
    raise ValueError(f"neither sqlite:///… nor postgresql://…: {parts.scheme}://…")


class Sqlite:
    """One connection, whose lock is the threads' queue: SQLite has one writer at a time anyway."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        # Transactions are begun by hand. Another process's is waited for.
        self._connection = sqlite3.connect(
            path, timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )
        # Readers do not stop the writer; and what is committed is on the disk: without FULL the
        # last commits may be gone after a power cut, and Kafka would not deliver them again.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        try:
            with self._lock:
                # IMMEDIATE: it waits for the other writers here. One that only becomes a writer
                # later is refused when another was faster, and need not have waited at all.
                self._connection.execute("BEGIN IMMEDIATE")
                with self._connection:
                    yield self._connection.execute
        except sqlite3.OperationalError as error:
            raise Unavailable("database") from error

    def close(self) -> None:
        self._connection.close()


class Postgres:
    """A connection for each thread that needs one, from the pool of psycopg."""

    def __init__(self, url: str) -> None:
        import psycopg  # only who uses it needs to have it
        import psycopg_pool

        self._down = psycopg.OperationalError
        # Tried before use: after a restart of the server all of them would fail, one by one.
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
