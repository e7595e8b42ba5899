"""`kworker spark reset`: a table's checkpoint begins anew, where a person says."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kworker.cli.positions import GOALS, as_data, moves, parse_goal, print_moves
from kworker.cli.spark_access import chosen, configured, held
from kworker.clients.properties import admin_properties
from kworker.config import Config, Table
from kworker.core.positions import Move, Standing
from kworker.errors import ConfigError, KworkerError, UsageError
from kworker.spark.checkpoint import (
    Damaged,
    Note,
    Survey,
    last_file_batch,
    read_note,
    renew,
    survey,
)
from kworker.spark.guard import is_merged
from kworker.spark.lease import local_folder
from kworker.spark.reset import Reset, from_committed
from kworker.times import now_ms

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

TIMEOUT_S = 20.0
WHERE = f"committed (where the table stands), {GOALS}, or offsets such as 0:1200,1:900"
_OFFSETS = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Begin:
    """A table's checkpoint that shall begin anew, and who can tell of its topic."""

    config: Config
    table: Table
    folder: Path
    admin: "Admin"

    def perform(self, where: str, *, dry_run: bool, as_json: bool) -> None:
        """Raises UsageError, AlreadyRunning and KworkerError."""
        tell = _print_json if as_json else _print
        if dry_run:
            tell(self._reset(where), None, dry_run=True)
            return
        with held(configured(self.config)):
            found = self._reset(where)
            tell(found, self._begin(found), dry_run=False)

    def _reset(self, where: str) -> Reset:
        if not self.admin.topics([self._topic]):
            raise ConfigError(
                f"{self._topic} does not exist: kworker topics create --config {self.config.file}"
            )
        left = self._survey()
        moved = self._moves(where, self._standings(left))
        return Reset(self.table, moved, left.reached, fresh=not _there(self.table))

    def _survey(self) -> Survey:
        """What the checkpoint still tells; of a topic that was deleted and made again, nothing."""
        with suppress(Damaged):
            note = read_note(self.folder)
            if note is not None and note.topic_id != self.admin.topic_id(self._topic):
                return Survey({}, {})
        return survey(self.folder, self._topic)

    @property
    def _topic(self) -> str:
        return self.config.delivery.results

    @property
    def _group(self) -> str:
        return f"{self.config.name}.spark.{self.table.name}"

    def _standings(self, left: Survey) -> list[Standing]:
        """Where the table stands: as its checkpoint says, or its group, whichever knows more."""
        count = self.admin.topics([self._topic])[self._topic].partitions
        at = [(self._topic, number) for number in range(count)]
        held = self.admin.group_offsets(self._group, at)
        told = {each: committed.position for each, committed in held.items()}
        low = self.admin.list_offsets(at, "earliest")
        high = self.admin.list_offsets(at, "latest", committed=True)
        return [
            Standing(
                *each, _further(told.get(each), left.settled.get(each[1])), low[each], high[each]
            )
            for each in at
        ]

    def _moves(self, where: str, rows: list[Standing]) -> list[Move]:
        if where == "committed":
            return from_committed(rows, {})
        if _OFFSETS.fullmatch(where):
            wanted = dict(_pair(part) for part in where.split(","))
            if unknown := sorted(set(wanted) - {row.partition for row in rows}):
                raise UsageError(f"--from {where}: {self._topic} has no partition {unknown[0]}")
            return from_committed(rows, wanted)
        try:
            return moves(self.admin, rows, parse_goal(where))
        except ValueError:
            raise UsageError(f'--from: expected {WHERE}, got "{where}"') from None

    def _begin(self, found: Reset) -> Path | None:
        """The checkpoint first: with the group alone moved, the job would refuse to start."""
        topic_id = self.admin.topic_id(self._topic)
        note = Note(self._topic, topic_id, is_merged(self.table), found.start)
        try:
            aside = renew(self.folder, note, now_ms())
        except OSError as error:
            raise KworkerError(f"{self.folder}: {error}") from error
        at = {(self._topic, part): offset for part, offset in found.start.items()}
        self.admin.set_group_offsets(self._group, at)
        return aside


def _further(told: int | None, settled: int | None) -> int | None:
    return max((at for at in (told, settled) if at is not None), default=None)


def _pair(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    return int(partition), int(offset)


def _there(table: Table) -> bool:
    """Whether the table may hold rows; one in a catalog or far away is taken to."""
    place = local_folder(table.path) if table.path else None
    return place is None or (place.is_dir() and any(place.iterdir()))


def begin(config: Config, name: str | None) -> Begin:
    """Connects to no broker yet. Raises UsageError and KworkerError for what cannot be reset."""
    # Imported by what needs a broker only: `kworker --help` does not.
    from kworker.clients.admin import Admin

    spark = configured(config)
    table = chosen(spark, name)
    checkpoints = local_folder(spark.checkpoints)
    if checkpoints is None:
        raise KworkerError(
            f"spark.checkpoints: {spark.checkpoints} is not a local folder: move"
            f" {spark.checkpoints.rstrip('/')}/{table.name} away there, and the table begins at"
            " the earliest"
        )
    _refuse_files(table)
    admin = Admin(admin_properties(config), timeout_s=TIMEOUT_S)
    return Begin(config, table, checkpoints / table.name, admin)


def _refuse_files(table: Table) -> None:
    """The file sink skips, without a word, batches whose numbers it has seen."""
    place = local_folder(table.path) if table.path else None
    if table.format != "parquet":
        return
    if place is None or last_file_batch(place) is not None:
        raise KworkerError(
            f"table {table.name} is Parquet, whose log of batches cannot begin anew: give it"
            " another path first (the old files stay readable where they are)"
        )


def _print(found: Reset, aside: Path | None, *, dry_run: bool) -> None:
    print_moves(found.moves, dry_run=dry_run)
    for line in found.consequences():
        typer.echo(f"{found.table.name}: {line}")
    if aside is not None:
        typer.echo(f"{found.table.name}: the old checkpoint is kept as {aside}")


def _print_json(found: Reset, aside: Path | None, *, dry_run: bool) -> None:
    told = {
        "table": found.table.name,
        "dry_run": dry_run,
        "again": found.again,
        "skipped": found.skipped,
        "consequences": list(found.consequences()),
        "aside": aside and str(aside),
        "partitions": [as_data(move) for move in found.moves],
    }
    typer.echo(json.dumps(told, indent=2))
