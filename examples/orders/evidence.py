"""Gathers the facts of the report: from Kafka, from files and from the billing service."""

import json
import time
import urllib.request
from collections.abc import Set
from pathlib import Path

from oracle import UNCOMMITTED, Dead, Orders, Position, Reader, Seen, lag, read_all
from programs import PYTHON, Failed, Programs
from report import Calls, Look, Tables

TABLES = ("invoices", "revenue")
TABLES_TIMEOUT_S = 180.0
LOOK_EVERY_S = 0.5


class Following:
    """Follows results and dead letters, to know which orders have ended."""

    def __init__(self, servers: str) -> None:
        self._results, self._dead = Seen(), Dead()
        self._readers = [
            Reader(servers, "orders.results", self._results.add),
            Reader(servers, "orders.dead", self._dead.add),
        ]

    def read(self) -> None:
        """Reads the records that arrive within a moment."""
        for reader in self._readers:
            reader.read(0.1)

    @property
    def done(self) -> Set[Position]:
        """The orders with a result."""
        return self._results.times.keys()

    @property
    def ended(self) -> Set[Position]:
        """The orders with a result or a dead letter."""
        return self._results.times.keys() | self._dead.times.keys()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


class Evidence:
    """Counts everything anew at each call, without asking kworker."""

    def __init__(self, servers: str, billing_url: str, stage: Path, programs: Programs) -> None:
        self._servers = servers
        self._billing_url = billing_url
        self._stage = stage
        self._programs = programs

    def lag(self) -> int:
        """The number of records that the workers have not committed."""
        return sum(lag(self._servers, "orders", topic) for topic in ("orders", "orders.requeue"))

    def wait_for_tables(self) -> None:
        """Waits until each table has all results, by its committed positions. Raises Failed."""
        deadline = time.monotonic() + TABLES_TIMEOUT_S
        groups = [f"orders.spark.{table}" for table in TABLES]
        while behind := sum(lag(self._servers, group, "orders.results") for group in groups):
            if time.monotonic() > deadline:
                raise Failed(f"the tables are {behind} results behind")
            time.sleep(LOOK_EVERY_S)

    def look(self, orders: Orders) -> Look:
        """Counts everything. Call it when nothing is written."""
        results, dead, written = Seen(), Dead(), Seen()
        read_all(self._servers, "orders.results", results.add)
        read_all(self._servers, "orders.dead", dead.add)
        read_all(self._servers, "orders.results", written.add, UNCOMMITTED)
        return Look(orders, results, written, dead, self._tables(), self._calls(), self.lag())

    def _tables(self) -> Tables:
        example, found = self._stage / "orders", self._stage / "tables.json"
        paths = [example / "data" / table for table in TABLES]
        self._programs.output(PYTHON, example / "tables.py", *paths, found)
        return Tables.of(json.loads(found.read_text()))

    def _calls(self) -> Calls:
        with urllib.request.urlopen(f"{self._billing_url}/calls", timeout=10) as answer:
            return Calls.of(json.load(answer))
