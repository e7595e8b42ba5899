"""`kworker spark reset`: replaces a table's checkpoint with one at the positions given."""

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
from kworker.config.client_properties import admin_properties, table_group
from kworker.config.model import Config, TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.errors import ConfigError, KworkerError, UsageError
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.checkpoint import CheckpointSurvey, Positions, survey
from kworker.spark.checkpoints.commit_marks import FIRST_WRITE_MARKER
from kworker.spark.checkpoints.folders import Folder, LocalFolder, local_folder
from kworker.spark.checkpoints.guard import is_merged
from kworker.spark.checkpoints.note import Note, apply_draft, current_folder, read_note, write_draft
from kworker.spark.checkpoints.reset import Reset, from_committed

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

TIMEOUT_S = 20.0
COMMITTED = "committed"
WHERE = f"{COMMITTED} (where the table ends), PARTITION:OFFSET,… such as 0:1200,1:900, {GOALS}"
_OFFSETS = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckpointReset:
    """Replaces the checkpoint of one table, so that the job reads on from other positions."""

    config: Config
    table: TableSettings
    folder: Folder
    admin: "Admin"

    def perform(self, where: str, *, dry_run: bool, as_json: bool) -> None:
        """Replaces the checkpoint and prints the new positions; with `dry_run`, only prints them.

        Raises UsageError if `where` has none of the forms of WHERE, and ConfigError if the results
        topic is missing. Without `dry_run`, raises AlreadyRunning if the Spark job runs. Raises
        KworkerError if the checkpoint cannot be locked or replaced, or if a broker refuses or does
        not answer.
        """
        show = _print_json if as_json else _print
        if dry_run:
            show(self._reset(where), None, dry_run=True)
            return
        with held(self.config):
            found = self._reset(where)
            show(found, self._begin(found, where), dry_run=False)

    def _reset(self, where: str) -> Reset:
        if not self.admin.topics([self._topic]):
            raise ConfigError(
                f"topic missing on the brokers: {self._topic}; create with: kworker topics create"
                f" --config {self.config.file}"
            )
        left, rows = self._left()
        return Reset(
            self.table, self._moves(where, rows), left, fresh=not _may_hold_rows(self.table)
        )

    def _left(self) -> tuple[CheckpointSurvey, list[GroupPosition]]:
        """Returns the contents of the old checkpoint, and the table's position in each partition.

        If the topic was recreated after the checkpoint was written, the checkpoint counts as empty,
        and no partition has a position.
        """
        folder = current_folder(self.folder)
        if self._is_of_another_topic(folder):
            return CheckpointSurvey({}, {}), self._positions({}, {})
        left = survey(folder, self._topic)
        return left, self._positions(left.settled, self._committed())

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
        return table_group(self.config, self.table.name)

    def _partitions(self) -> list[tuple[str, int]]:
        count = self.admin.topics([self._topic])[self._topic].partitions
        return [(self._topic, number) for number in range(count)]

    def _committed(self) -> Positions:
        held = self.admin.group_offsets(self._group, self._partitions())
        return {part: committed.position for (_, part), committed in held.items()}

    def _positions(self, settled: Positions, committed: Positions) -> list[GroupPosition]:
        """Returns each partition's position: the checkpoint's, or the group's if that is later."""
        at = self._partitions()
        low = self.admin.list_offsets(at, "earliest")
        high = self.admin.list_offsets(at, "latest", committed=True)
        reached = {each: _further(committed.get(each[1]), settled.get(each[1])) for each in at}
        return [GroupPosition(*each, reached[each], low[each], high[each]) for each in at]

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
            raise UsageError(f'--from: "{where}" is not a position; expected {WHERE}') from None

    def _begin(self, found: Reset, where: str) -> Folder | None:
        """Replaces the checkpoint, and returns the folder in which the old one is kept, if any.

        If this command crashes while it replaces the checkpoint, the Spark job either continues
        from the old one or refuses to start.
        """
        topic_id = self.admin.topic_id(self._topic)
        # At the end of the table, the table itself tells the job more exactly than its group does.
        # But a person decides where to go on if the topic does not hold that end any more.
        missing = found.missing if where == COMMITTED else {}
        at_ms = 0 if where == COMMITTED and not missing else now_ms()
        note = Note(self._topic, topic_id, is_merged(self.table), found.start, at_ms, missing)
        at = {(self._topic, part): offset for part, offset in found.start.items()}
        try:
            write_draft(self.folder, note)
            # Before the exchange: if only this step happens, a job continues from its checkpoint
            # when the group was moved back, and refuses to start when it was moved forward.
            self.admin.set_group_offsets(self._group, at)
            return apply_draft(self.folder, now_ms())
        except OSError as error:
            raise KworkerError(
                f"the checkpoint {self.folder} cannot be replaced: {error}"
            ) from error


def _further(committed: int | None, settled: int | None) -> int | None:
    return max((at for at in (committed, settled) if at is not None), default=None)


def _pair(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    return int(partition), int(offset)


def _may_hold_rows(table: TableSettings) -> bool:
    """Returns True if the table may hold rows.

    Returns False only if the table's folder is local, and is missing or empty. The folder also
    counts as empty if it has only the file that a Spark job writes there before its first rows.
    """
    place = local_folder(table.path) if table.path else None
    if place is None or not place.is_dir():
        return place is None
    return not all(each.name.startswith(FIRST_WRITE_MARKER) for each in place.iterdir())


@contextmanager
def begin(config: Config, name: str | None) -> Iterator[CheckpointReset]:
    """Prepares to reset the checkpoint of the table `name`, or of the only table if None.

    Sends no request to a broker yet. Raises UsageError if no table is called `name`, or if `name`
    is None and there are several tables. Raises ConfigError if the configuration has no [spark]
    section. Raises KworkerError if librdkafka refuses the configured properties, or if the
    checkpoint's folder is not local and Spark cannot open it.
    """
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.clients.admin import Admin

    spark = configured(config)
    table = chosen(spark, name)
    with _folder(config, f"{spark.checkpoints.rstrip('/')}/{table.name}") as folder:
        admin = Admin(admin_properties(config), timeout_s=TIMEOUT_S)
        yield CheckpointReset(config, table, folder, admin)


@contextmanager
def _folder(config: Config, place: str) -> Iterator[Folder]:
    """Opens the folder of a checkpoint. Starts a Spark session if the folder is not local."""
    local = local_folder(place)
    if local is not None:
        yield LocalFolder(local)
        return
    # Spark takes a second to import; a local folder must not wait for it.
    from kworker.spark.session.remote_folder import remote_folder

    typer.echo(f"kworker: starting Spark to reach {place}; this takes some seconds", err=True)
    with remote_folder(config, place) as folder:
        yield folder


def _print(found: Reset, aside: Folder | None, *, dry_run: bool) -> None:
    print_moves(found.moves, dry_run=dry_run)
    for line in found.consequences():
        typer.echo(f"{found.table.name}: {line}")
    if aside is not None:
        typer.echo(f"{found.table.name}: the old checkpoint is kept as {aside}")


def _print_json(found: Reset, aside: Folder | None, *, dry_run: bool) -> None:
    document = {
        "table": found.table.name,
        "dry_run": dry_run,
        "again": found.again,
        "skipped": found.skipped,
        "consequences": list(found.consequences()),
        "aside": aside and str(aside),
        "partitions": [as_data(move) for move in found.moves],
    }
    typer.echo(json.dumps(document, indent=2))
