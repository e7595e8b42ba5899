"""A story: checkpoints are damaged, results expire, and a person mends it with `kworker spark`."""

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from tests.support.spark_landing import ORDERS
from tests.support.spark_service import QUIET, SLOW_S, STAMP_MS, Job, Service
from tests.support.tables import Reader, Rows, spark_table
from tests.support.waiting import eventually

MORE = 30
LOSES = "last"  # the table that has to read what is gone
REFUSED = "latest"  # the one whose checkpoint is damaged when the job starts
MOVED = "revenue"  # the one whose path is changed, and nothing else
AGAIN = f"orders/0/0/{STAMP_MS}"  # the source of the first order
REMADE = f"orders/0/0/{STAMP_MS + 1}"  # the same, of a topic that was deleted and made again
OLDER = f"orders/0/0/{STAMP_MS - 1}"

Ran = subprocess.CompletedProcess[str]


class Repaired(NamedTuple):
    """What was seen on the way."""

    unnoted: list[str]
    exit_of_refusal: int
    refused: dict[str, Any]
    resets: dict[str, Ran]
    lost: str
    held: Ran
    uncompacted: Ran  # while the job ran
    compacted: Ran
    meanwhile: dict[str, Any]
    kept: dict[str, list[str]]
    tables: dict[str, Rows]
    old_refunds: Rows  # in the place where they were before
    advised: Ran  # the command that `lost` ends with
    afterwards: dict[str, Any]  # at the end of a job that was started then

    def sources(self, table: str) -> Counter[tuple[Any, ...]]:
        """How often each source record stands in a table."""
        keys = ("source_topic", "source_partition", "source_offset", "source_timestamp")
        return Counter(tuple(row.get(key) for key in keys) for row in self.tables[table])


def repair(made: Service, tables: Reader) -> Repaired:
    """From a service whose tables hold `ORDERS` orders; needs no job of it to run."""
    unnoted = _forget_last_batches(made)
    (made.checkpoint(REFUSED) / "metadata").unlink()
    made.send_orders(ORDERS, MORE)
    made.send('{"order_id": -1}', OLDER)
    made.flush()
    exit_of_refusal = made.start("--once").ends()
    refused = made.progress()
    _damage(made)
    resets = _reset_all(made)
    job = made.start()
    made.send('{"order_id": 0, "customer": "c0"}', AGAIN)
    made.send('{"order_id": 7000, "customer": "c0"}', REMADE)
    made.flush()
    eventually(lambda: _complete(made, job), timeout_s=SLOW_S)
    lost = eventually(lambda: _reason(made, LOSES), timeout_s=SLOW_S)
    held = _reset(made, "ice", "earliest")
    uncompacted = made.kworker("spark", "compact")
    meanwhile = made.progress()
    job.process.send_signal(signal.SIGTERM)
    assert job.ends() == 0
    compacted = made.kworker("spark", "compact", "--json")
    _move(made, f"{MOVED}-2", MOVED)
    old = _of_old_refunds(made)
    found, old_refunds = tables.rows(made.file), tables.rows(old)["refunds"]
    kept = _kept(made, meanwhile)
    _expire_unread(made)
    advised = made.kworker(*lost.partition("then kworker ")[2].split())
    made.start("--once").ends()
    return Repaired(
        unnoted,
        exit_of_refusal,
        refused,
        resets,
        lost,
        held,
        uncompacted,
        compacted,
        meanwhile,
        kept,
        found,
        old_refunds,
        advised,
        made.progress(),
    )


def _kept(made: Service, told: dict[str, Any]) -> dict[str, list[str]]:
    """The old checkpoints of each table."""
    checkpoints = [made.checkpoint(table["name"]) for table in told["tables"]]
    return {at.name: [each.name for each in at.parent.glob(f"{at.name}.2*")] for at in checkpoints}


def _forget_last_batches(made: Service) -> list[str]:
    """As a kill leaves it between a batch's last write and the note of it; the tables' names."""
    found = []
    for table in made.progress()["tables"]:
        if table["name"] != REFUSED:
            (made.checkpoint(table["name"]) / "commits" / str(table["batch"])).unlink()
            found.append(table["name"])
    return found


def _damage(made: Service) -> None:
    """As a full disk, a power cut or a hand may leave them."""
    cut = made.checkpoint("orders") / "offsets" / "1"
    cut.write_bytes(cut.read_bytes()[:40])
    (cut.parent / ".1.crc").unlink()
    for gone in ("ice", "refunds"):
        made.checkpoint(gone).rename(made.folder / gone)


def _reset_all(made: Service) -> dict[str, Ran]:
    """Where nothing real is lost: what expires is what was aborted."""
    found = {LOSES: _reset(made, LOSES, f"{QUIET}:0")}
    _delete_aborted(made)
    found["dry run"] = _reset(made, "orders", "earliest", "--dry-run")
    found["orders"] = _reset(made, "orders", "committed")
    found |= {name: _reset(made, name, "earliest") for name in ("latest", "ice")}
    for name in ("refunds", MOVED):
        _move(made, name, f"{name}-2")
    found["refunds"] = _reset(made, "refunds", "earliest")
    return found


def _expire_unread(made: Service) -> None:
    """Beyond the ends of all tables; what expires is what was aborted, as before."""
    made.send_in_transactions(0, 1)
    _delete_aborted(made)


def _delete_aborted(made: Service) -> None:
    aborted = TopicPartition(made.topic, QUIET, -1)
    made.admin.delete_records([aborted])[aborted].result(30)


def _move(made: Service, was: str, will_be: str) -> None:
    text = made.file.read_text()
    made.file.write_text(text.replace(f'"data/{was}"', f'"data/{will_be}"'))


def _of_old_refunds(made: Service) -> Path:
    """A configuration with that table only."""
    path = made.folder / "old.toml"
    head = made.file.read_text().partition("[[spark.tables]]")[0]
    old = spark_table("refunds", path=f"{made.folder}/data/refunds", format="parquet")
    path.write_text(head + old)
    return path


def _reset(made: Service, table: str, where: str, *more: str) -> Ran:
    return made.kworker("spark", "reset", "--table", table, "--from", where, *more)


def _reason(made: Service, table: str) -> str:
    return next(str(t["reason"]) for t in made.progress()["tables"] if t["name"] == table)


def _complete(made: Service, job: Job) -> bool:
    """Whether all is in the tables but in those that cannot have it."""
    told = made.progress()
    behind = {t["behind"] for t in told["tables"] if t["name"] not in (LOSES, MOVED)}
    return told["pid"] == job.process.pid and behind == {0}
