"""`kworker spark reset`: a table's checkpoint begins anew, where a person says."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kworker.cli.positions import GOALS, as_data, moves, parse_goal, print_moves
from kworker.cli.spark.access import chosen, configured, held
from kworker.clock import now_ms
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config, TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.errors import ConfigError, KworkerError, UsageError
from kworker.spark.checkpoint import (
    CheckpointSurvey,
    Damaged,
    Note,
    Positions,
    draw_up,
    in_force,
    put_in_place,
    read_note,
    survey,
)
from kworker.spark.folders import Folder, LocalFolder
from kworker.spark.guard import is_merged
from kworker.spark.lease import local_folder
from kworker.spark.marks import MAKING
from kworker.spark.reset import Reset, from_committed

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

TIMEOUT_S = 20.0
COMMITTED = "committed"
WHERE = f"{COMMITTED} (where the table stands), {GOALS}, or offsets such as 0:1200,1:900"
_OFFSETS = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckpointReset:
    """A table's checkpoint that shall begin anew, and who can tell of its topic."""

    config: Config
    table: TableSettings
    folder: Folder
    admin: "Admin"

    def perform(self, where: str, *, dry_run: bool, as_json: bool) -> None:
        """Raises UsageError, AlreadyRunning and KworkerError."""
        tell = _print_json if as_json else _print
        if dry_run:
            tell(self._reset(where), None, dry_run=True)
            return
        with held(self.config):
            found = self._reset(where)
            tell(found, self._begin(found, where), dry_run=False)

    def _reset(self, where: str) -> Reset:
        if not self.admin.topics([self._topic]):
            raise ConfigError(
                f"{self._topic} does not exist: kworker topics create --config {self.config.file}"
            )
        left, rows = self._left()
        return Reset(self.table, self._moves(where, rows), left, fresh=not _there(self.table))

    def _left(self) -> tuple[CheckpointSurvey, list[GroupPosition]]:
        """What the checkpoint still tells, and where the table stands.

        Of a topic that was deleted and made again, nobody knows: what is told is of the other.
        """
        folder = in_force(self.folder)
        if self._is_of_another_topic(folder):
            return CheckpointSurvey({}, {}), self._standings({}, {})
        left = survey(folder, self._topic)
        return left, self._standings(left.settled, self._told())

    def _is_of_another_topic(self, folder: Folder) -> bool:
        with suppress(Damaged):
            note = read_note(folder)
            return note is not None and note.topic_id != self.admin.topic_id(self._topic)
        return False

    @property
    def _topic(self) -> str:
        return self.config.delivery.results

    @property
    def _group(self) -> str:
        return f"{self.config.name}.spark.{self.table.name}"

    def _partitions(self) -> list[tuple[str, int]]:
        count = self.admin.topics([self._topic])[self._topic].partitions
        return [(self._topic, number) for number in range(count)]

    def _told(self) -> Positions:
        """What the table's group says."""
        held = self.admin.group_offsets(self._group, self._partitions())
        return {part: committed.position for (_, part), committed in held.items()}

    def _standings(self, settled: Positions, told: Positions) -> list[GroupPosition]:
        """As the checkpoint says, or the group, whichever knows more."""
        at = self._partitions()
        low = self.admin.list_offsets(at, "earliest")
        high = self.admin.list_offsets(at, "latest", committed=True)
        stands = {each: _further(told.get(each[1]), settled.get(each[1])) for each in at}
        return [GroupPosition(*each, stands[each], low[each], high[each]) for each in at]

    def _moves(self, where: str, rows: list[GroupPosition]) -> list[Move]:
        if where == COMMITTED:
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

    def _begin(self, found: Reset, where: str) -> Folder | None:
        """Where the old checkpoint is now. Cut off or refused, it leaves none half begun."""
        topic_id = self.admin.topic_id(self._topic)
        # Where the table stands, it tells the job better than its group does.
        at_ms = 0 if where == COMMITTED else now_ms()
        note = Note(self._topic, topic_id, is_merged(self.table), found.start, at_ms)
        at = {(self._topic, part): offset for part, offset in found.start.items()}
        try:
            draw_up(self.folder, note)
            # Before the exchange: a job that finds the group alone moved back goes on as
            # before, and one that finds it moved on refuses to start.
            self.admin.set_group_offsets(self._group, at)
            return put_in_place(self.folder, now_ms())
        except OSError as error:
            raise KworkerError(f"{self.folder}: {error}") from error


def _further(told: int | None, settled: int | None) -> int | None:
    return max((at for at in (told, settled) if at is not None), default=None)


def _pair(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    return int(partition), int(offset)


def _there(table: TableSettings) -> bool:
    """Whether the table may hold rows; one in a catalog or far away is taken to."""
    place = local_folder(table.path) if table.path else None
    if place is None or not place.is_dir():
        return place is None
    return not all(each.name.startswith(MAKING) for each in place.iterdir())


@contextmanager
def begin(config: Config, name: str | None) -> Iterator[CheckpointReset]:
    """Connects to no broker yet. Raises UsageError and KworkerError for what cannot be reset."""
    # Imported by what needs a broker only: `kworker --help` does not.
    from kworker.clients.admin import Admin

    spark = configured(config)
    table = chosen(spark, name)
    with _opened(config, f"{spark.checkpoints.rstrip('/')}/{table.name}") as folder:
        admin = Admin(admin_properties(config), timeout_s=TIMEOUT_S)
        yield CheckpointReset(config, table, folder, admin)


@contextmanager
def _opened(config: Config, place: str) -> Iterator[Folder]:
    """The folder of a checkpoint; what is not local needs a Spark meanwhile."""
    local = local_folder(place)
    if local is not None:
        yield LocalFolder(local)
        return
    # Spark takes a second to import, which a local folder need not wait for.
    from kworker.spark.hadoop import opened

    typer.echo(f"kworker: Spark starts to reach {place}, which takes some seconds", err=True)
    with opened(config, place) as folder:
        yield folder


def _print(found: Reset, aside: Folder | None, *, dry_run: bool) -> None:
    print_moves(found.moves, dry_run=dry_run)
    for line in found.consequences():
        typer.echo(f"{found.table.name}: {line}")
    if aside is not None:
        typer.echo(f"{found.table.name}: the old checkpoint is kept as {aside}")


def _print_json(found: Reset, aside: Folder | None, *, dry_run: bool) -> None:
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
