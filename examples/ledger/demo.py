"""Books transfers while workers are killed, then audits the books.

Type `kworker sandbox up`, then `python demo.py`. It can be repeated on the same books.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import database
from confluent_kafka import Producer
from handlers import URL

from kworker.config import toml_file

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "kworker.toml"
KWORKER = Path(sys.executable).with_name("kworker")
ACCOUNTS = [f"account-{number:02}" for number in range(40)]
OPENING = 1_000_000  # cents, in each of them
KILL_EVERY_S = 1.0
PATIENCE_S = 120.0

Entry = tuple[str, str, str, int]
"""Transfer, debit, credit, amount."""


def open_books(books: database.Database) -> None:
    """Creates the tables and the accounts that do not exist yet."""
    with books.transaction() as execute:
        for statement in (HERE / "schema.sql").read_text().split(";")[:-1]:
            execute(statement)
        for account in ACCOUNTS:
            execute("INSERT INTO accounts VALUES (?, ?) ON CONFLICT DO NOTHING", (account, OPENING))


def write(count: int) -> set[str]:
    """Writes transfers, keyed by the debit account; returns their ids once Kafka has them all."""
    config = toml_file.load(CONFIG)
    servers = config.kafka.common["bootstrap.servers"]
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    run = uuid.uuid4().hex[:8]
    for number in range(count):
        debit, credit = random.sample(ACCOUNTS, 2)
        transfer = {"transfer_id": f"{run}-{number}", "debit": debit, "credit": credit}
        value = json.dumps(transfer | {"amount": random.randint(1, 10_000)})
        producer.produce(config.source.topics[0], value, debit)
    if unacknowledged := producer.flush(PATIENCE_S):
        raise TimeoutError(f"Kafka has not acknowledged {unacknowledged:,} transfers")
    return {f"{run}-{number}" for number in range(count)}


def kill_until_booked(books: database.Database, written: set[str]) -> int:
    """Kills a worker every second until all transfers are booked; returns the number of kills."""
    kills, deadline = 0, time.monotonic() + PATIENCE_S
    while missing := written - {transfer_id for transfer_id, *_ in entries(books)}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing):,} transfers are not booked")
        time.sleep(KILL_EVERY_S)
        if running := [row["pid"] for row in status()["workers"] if row["phase"] == "running"]:
            pid = random.choice(running)
            print(f"{len(missing):6,} transfers to book: kill -9 {pid}", flush=True)
            os.kill(pid, signal.SIGKILL)
            kills += 1
    return kills


def status() -> dict[str, Any]:
    return json.loads(kworker("status", "--json", well=(0, 1)))  # 1: red, as after a kill


def entries(books: database.Database) -> list[Entry]:
    with books.transaction() as execute:
        return execute("SELECT transfer_id, debit, credit, amount FROM transfers").fetchall()


def balances(books: database.Database) -> dict[str, int]:
    with books.transaction() as execute:
        return dict(execute("SELECT account, balance FROM accounts").fetchall())


def audit(written: set[str], booked: list[Entry], found: dict[str, int]) -> dict[str, int]:
    """Counts every kind of error in the books; all counts must be 0."""
    times = Counter(transfer_id for transfer_id, *_ in booked)
    due = dict.fromkeys(found, OPENING)
    for _, debit, credit, amount in booked:
        due[debit] -= amount
        due[credit] += amount
    return {
        "transfers that are not booked": len(written - times.keys()),
        "transfers that are booked twice": sum(each > 1 for each in times.values()),
        "balances that differ from the sum of their transfers": sum(
            found[a] != due[a] for a in due
        ),
        "cents lost or gained": abs(sum(found.values()) - OPENING * len(found)),
    }


def kworker(*verb: str, well: tuple[int, ...] = (0,)) -> str:
    """Runs a command and returns its stdout. Raises CalledProcessError; the reason is on stderr."""
    command = [KWORKER, *verb, "--config", CONFIG]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in well:
        done.check_returncode()
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Books transfers while workers are killed.")
    parser.add_argument("--transfers", type=int, default=20_000)
    arguments = parser.parse_args()
    with closing(database.connect(URL)) as books:
        open_books(books)
        kworker("topics", "create", "--partitions", "4")
        kworker("start", "--daemon")
        try:
            written = write(arguments.transfers)
            kills = kill_until_booked(books, written)
            delivered = status()["counters"]["consumed"]
        finally:
            kworker("stop")
        wrong = audit(written, entries(books), balances(books))
    print(f"{len(written):6,} transfers, {kills} times kill -9, {delivered:,} deliveries")
    for what, count in wrong.items():
        print(f"{count:6,} {what}")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
