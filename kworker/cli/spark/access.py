"""What the commands that change tables need first: the section, a table, the job's lease."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kworker.config.model import Config, SparkSettings, TableSettings
from kworker.errors import AlreadyRunning, ConfigError, KworkerError, UsageError
from kworker.spark.lease import Lease, LeaseHolder

LOOK_S = 0.5
GONE_S = 2.0


def configured(config: Config) -> SparkSettings:
    """The section. Raises ConfigError."""
    if config.spark is None:
        raise ConfigError("spark: missing; give a [spark] table with [[spark.tables]]")
    return config.spark


def chosen(spark: SparkSettings, name: str | None) -> TableSettings:
    """The table that is named, or the only one there is. Raises UsageError."""
    names = [table.name for table in spark.tables]
    if name is None and len(names) > 1:
        raise UsageError(f"--table: say which one: {', '.join(names)}")
    for table in spark.tables:
        if name in (None, table.name):
            return table
    raise UsageError(f"--table {name}: expected one of {', '.join(names)}")


@contextmanager
def held(config: Config) -> Iterator[Lease]:
    """Keeps the job of this folder away meanwhile. Raises AlreadyRunning, naming who has the lease.

    Or naming jobs elsewhere, which nothing keeps away: they are seen where they are.
    """
    spark = configured(config)
    lease = Lease(spark.checkpoints)
    try:
        taken = lease.take()
    except OSError as error:
        raise KworkerError(f"spark.checkpoints: {spark.checkpoints}: {error}") from error
    if not taken:
        raise AlreadyRunning(_held_by(lease.holder()))
    try:
        _refuse_elsewhere(config)
        yield lease
    finally:
        lease.release()


def _refuse_elsewhere(config: Config) -> None:
    """Waits for those that ended without leaving: Kafka takes them for members a while longer."""
    # Imported by what needs a broker only.
    from kworker.clients import roster
    from kworker.config.client_properties import admin_properties, leader_properties

    member = leader_properties(config)
    group = str(member["group.id"])
    deadline = time.monotonic() + int(member["session.timeout.ms"]) / 1000 + GONE_S
    while True:
        jobs = roster.members(admin_properties(config), group)
        if jobs is None:
            raise KworkerError("Kafka does not tell whether a Spark job runs on another host")
        if not jobs:
            return
        if time.monotonic() >= deadline:
            who = ", ".join(sorted(jobs))
            raise AlreadyRunning(
                f"a Spark job runs elsewhere, as {who} of group {group}: stop it first"
            )
        time.sleep(LOOK_S)


def _held_by(holder: LeaseHolder | None) -> str:
    if holder is not None and holder.gone:
        return f"{holder} has the checkpoints until it ends: wait a moment, or kill it if it hangs"
    return (
        f"the Spark job runs as {holder or 'another process'}: stop it first (kworker stop; or"
        ' spark.run = "elsewhere" and kworker reload, and the workers go on)'
    )
