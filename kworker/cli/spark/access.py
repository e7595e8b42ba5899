"""Gives commands that change tables the `[spark]` section, a table, and the job's lease."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kworker.config.model import Config, SparkSettings, TableSettings
from kworker.errors import AlreadyRunning, ConfigError, KworkerError, UsageError
from kworker.spark.checkpoints.lease import Lease, LeaseHolder

POLL_S = 0.5
GONE_S = 2.0


def configured(config: Config) -> SparkSettings:
    """Returns the `[spark]` table of the configuration. Raises ConfigError if it has none."""
    if config.spark is None:
        raise ConfigError("spark: the section is missing; add [spark] with [[spark.tables]]")
    return config.spark


def chosen(spark: SparkSettings, name: str | None) -> TableSettings:
    """Returns the table `name`, or the only table if `name` is None.

    Raises UsageError if no table has this name, or if `name` is None and there are several tables.
    """
    names = [table.name for table in spark.tables]
    if name is None and len(names) > 1:
        raise UsageError(f"--table is required, since there are several tables: {', '.join(names)}")
    for table in spark.tables:
        if name in (None, table.name):
            return table
    raise UsageError(f"--table {name}: no such table; expected one of {', '.join(names)}")


@contextmanager
def held(config: Config) -> Iterator[Lease]:
    """Holds the lease, a lock on the folder of checkpoints, so that no Spark job starts meanwhile.

    Raises AlreadyRunning if another process holds the lease, or if the service has Spark jobs on
    other hosts, where the lease has no effect. Raises KworkerError if the folder cannot be locked,
    or if Kafka does not answer.
    """
    spark = configured(config)
    lease = Lease(spark.checkpoints)
    try:
        taken = lease.take()
    except OSError as error:
        raise KworkerError(
            f"spark.checkpoints: {spark.checkpoints} cannot be locked: {error}"
        ) from error
    if not taken:
        raise AlreadyRunning(_held_by(lease.holder()))
    try:
        _refuse_elsewhere(config)
        yield lease
    finally:
        lease.release()


def _refuse_elsewhere(config: Config) -> None:
    """Raises AlreadyRunning if the service has Spark jobs on other hosts.

    These jobs are members of a consumer group. A killed job stays in it until its session times
    out, so the check waits that long for the group to be empty.
    """
    # Imported only where a broker is needed.
    from kworker.clients import roster
    from kworker.config.client_properties import admin_properties, leader_properties

    member = leader_properties(config)
    group = str(member["group.id"])
    deadline = time.monotonic() + int(member["session.timeout.ms"]) / 1000 + GONE_S
    while True:
        jobs = roster.members(admin_properties(config), group)
        if jobs is None:
            raise KworkerError(
                "Kafka does not answer, so it is not known whether a Spark job runs on another"
                " host; try again"
            )
        if not jobs:
            return
        if time.monotonic() >= deadline:
            members = ", ".join(sorted(jobs))
            raise AlreadyRunning(
                f"a Spark job runs on another host, as {members} of group {group}: stop it first"
            )
        time.sleep(POLL_S)


def _held_by(holder: LeaseHolder | None) -> str:
    if holder is not None and holder.gone:
        return (
            f"{holder} holds the checkpoints until it ends: wait a moment, or kill it if it hangs"
        )
    return (
        f"the Spark job runs as {holder or 'another process'}: stop it first (kworker stop; or, to"
        ' keep the workers running, spark.run = "elsewhere" and kworker reload)'
    )
