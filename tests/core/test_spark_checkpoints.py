"""What a checkpoint may look like, and which of them a query starts on. No JVM, no broker."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kworker.config import Table
from kworker.core.positions import Move, Standing
from kworker.spark.checkpoint import (
    Damaged,
    Note,
    Survey,
    damaged_state,
    draw_up,
    last_file_batch,
    put_in_place,
    read,
    read_note,
    survey,
    write_note,
)
from kworker.spark.guard import Guard, Topic, next_step
from kworker.spark.reset import Reset, from_committed

RESULTS = Topic("orders.results", "id-1")
NOW_MS = 1_700_000_000_123


class Query:
    """A checkpoint as Spark 4.0 writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.write("metadata", '{"id":"5d3f"}')

    def batch(self, number: int, end: int, *, finished: bool = True) -> None:
        ends = json.dumps({RESULTS.name: {"0": end, "1": 0}})
        self.write(f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0}}\n{ends}')
        if finished:
            self.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        sums = b"crc\0" + (512).to_bytes(4, "big")
        content = text.encode()
        for at in range(0, len(content), 512):
            sums += zlib.crc32(content[at : at + 512]).to_bytes(4, "big")
        path.with_name(f".{path.name}.crc").write_bytes(sums)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path / "orders")
    for number, end in enumerate((100, 250, 300)):
        made.batch(number, end)
    return made


def table(**settings: Any) -> Table:
    return Table.model_validate({"name": "orders", "path": "/nowhere/orders", **settings})


def admit(query: Query, told: dict[int, int] | None = None, **settings: Any) -> Any:
    return Guard(table(**settings), str(query.folder)).admit(RESULTS, told or {})


def test_a_sound_checkpoint_says_how_far_its_table_is(query: Query) -> None:
    """Better than the group, which hears of each batch a moment later."""
    found = read(query.folder, RESULTS.name)
    assert found is not None
    assert (found.planned, found.finished, found.reached) == (2, 2, {0: 300, 1: 0})
    assert found.complete
    query.batch(3, 400, finished=False)
    found = read(query.folder, RESULTS.name)
    assert found is not None
    assert (found.planned, found.finished, found.complete) == (3, 2, False)
    for number in (0, 1, 2):  # Spark plans a batch when the one before it is written
        (query.folder / "commits" / str(number)).unlink()
    assert read(query.folder, RESULTS.name) == found


def test_a_query_that_begins_has_no_checkpoint_yet(tmp_path: Path) -> None:
    """Nor has one that was killed before its first batch was planned."""
    assert read(tmp_path / "none", RESULTS.name) is None
    assert read(Query(tmp_path / "begun").folder, RESULTS.name) is None


def cut(name: str, length: int) -> Callable[[Query], None]:
    """What is left after a power cut; its checksum did not get to the disk."""

    def damage(query: Query) -> None:
        path = query.folder / name
        path.write_bytes(path.read_bytes()[:length])
        path.with_name(f".{path.name}.crc").unlink()

    return damage


def removed(name: str) -> Callable[[Query], None]:
    return lambda query: (query.folder / name).unlink()


def flipped(query: Query) -> None:
    path = query.folder / "offsets" / "2"
    path.write_text(path.read_text().replace("300", "900"))


def of_another_topic(query: Query) -> None:
    query.write("offsets/2", 'v1\n{}\n{"other.results":{"0":1}}')


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (removed("metadata"), "metadata is missing"),
        (cut("metadata", 0), "metadata is empty"),
        (cut("metadata", 7), "metadata is not readable: truncated, or written by something else"),
        (cut("offsets/2", 0), "offsets/2 is empty"),
        (cut("offsets/2", 2), "offsets/2 is truncated"),
        (cut("offsets/2", 40), "offsets/2 is not readable: truncated"),
        (cut("offsets/1", 10), "offsets/1 is truncated"),
        (removed("offsets/1"), "offsets/1 is missing"),
        (removed("offsets/2"), "offsets/2 is missing, though that batch was written"),
        (flipped, "offsets/2 does not match its checksum"),
        (of_another_topic, "offsets/2 is of the topic other.results, not orders.results"),
        (cut("commits/2", 0), "commits/2 is empty"),
        (cut("commits/2", 3), "commits/2 is truncated"),
        (cut("commits/2", 12), "commits/2 is not readable"),
    ],
)
def test_damage_is_told_with_the_files_name(
    query: Query, damage: Callable[[Query], None], told: str
) -> None:
    """FAULTS 31. Without its `metadata` a query has a new id, and a table forgets its batches."""
    damage(query)
    with pytest.raises(Damaged) as caught:
        read(query.folder, RESULTS.name)
    assert str(caught.value).startswith(f"{query.folder}/{told}")


def test_a_damaged_state_is_found_by_its_checksums(query: Query) -> None:
    """Spark may fail on it without a word about which file it was."""
    assert damaged_state(query.folder) is None
    for version in (1, 2):
        (query.folder / "state" / "0" / "1").mkdir(parents=True, exist_ok=True)
        query.write(f"state/0/1/{version}.delta", "so many sums")
    assert damaged_state(query.folder) is None
    broken = query.folder / "state" / "0" / "1" / "2.delta"
    broken.write_text("so m")
    assert damaged_state(query.folder) == broken


def test_an_older_file_that_spark_does_not_read_is_no_damage(query: Query) -> None:
    """Spark removes them itself after a while."""
    (query.folder / "offsets" / "0").unlink()
    (query.folder / "commits" / "1").unlink()
    assert read(query.folder, RESULTS.name) is not None


def test_a_checkpoint_that_is_gone_or_old_is_noticed_by_its_group(
    query: Query, tmp_path: Path
) -> None:
    """The query would read again what the table has, or number its batches like written ones."""
    assert admit(query, {0: 300, 1: 0}).checkpoint.planned == 2
    older = r"orders is older than the table, .* the one ends at 300 of .* the other at 301$"
    with pytest.raises(Damaged, match=older):
        admit(query, {0: 301})
    gone = Guard(table(), str(tmp_path / "gone"))
    with pytest.raises(Damaged, match="gone is gone, though the table was written from it"):
        gone.admit(RESULTS, {0: 1})
    assert gone.admit(RESULTS, {}).checkpoint is None


def test_a_topic_that_was_made_again_is_noticed(query: Query) -> None:
    """Its offsets mean other records: those below the checkpoint's would never be read."""
    assert admit(query).wrote
    again = RESULTS._replace(id="id-2")
    with pytest.raises(Damaged, match=r"orders\.results was deleted and made again") as caught:
        Guard(table(), str(query.folder)).admit(again, {})
    assert caught.value.begin == "earliest"


def test_files_whose_numbers_do_not_fit_the_checkpoint_are_noticed(
    query: Query, tmp_path: Path
) -> None:
    """Spark's file sink skips a batch whose number it knows, whatever is in it."""
    log = tmp_path / "files" / "_spark_metadata"
    log.mkdir(parents=True)
    parquet = {"format": "parquet", "path": str(log.parent)}
    for name in ("0", "1", "2", ".2.crc"):
        (log / name).touch()
    assert last_file_batch(log.parent) == 2
    assert admit(query, **parquet).wrote
    (log / "2").unlink()
    with pytest.raises(Damaged, match="_spark_metadata lacks it"):
        admit(query, **parquet)
    (log / "9.compact").touch()
    with pytest.raises(
        Damaged, match=r"has Parquet's batches up to 9, .* Spark would skip as many"
    ):
        admit(query, **parquet)


def test_a_batch_that_was_being_merged_is_not_finished_by_appending(query: Query) -> None:
    """What of it was merged before the kill would be there twice."""
    assert admit(query, dedupe=True).wrote
    query.batch(3, 400, finished=False)
    assert admit(query, dedupe=True).wrote
    with pytest.raises(Damaged, match=r"a batch that was being merged .* set dedupe or mode back"):
        admit(query)
    query.batch(3, 400)
    assert admit(query).wrote
    # The other way round, the merge knows the rows.
    query.batch(4, 500, finished=False)
    assert admit(query, dedupe=True).wrote


def test_a_checkpoint_far_away_is_left_to_spark() -> None:
    """Like the lease: only a local folder can be looked at."""
    assert Guard(table(), "s3a://bucket/orders").admit(RESULTS, {0: 5}).checkpoint is None


def test_a_reset_keeps_the_old_checkpoint_and_says_where_to_begin(query: Query) -> None:
    """Deleted, nobody could look at it again."""
    note = Note(*RESULTS, merged=False, start={0: 120, 1: 0})
    draw_up(query.folder, note)
    assert admit(query, {0: 120}).wrote
    aside = put_in_place(query.folder, NOW_MS)
    assert aside == query.folder.with_name("orders.20231114T221320.123Z")
    assert read(aside, RESULTS.name) is not None
    assert (read_note(query.folder), list(query.folder.iterdir())) == (
        note,
        [query.folder / "kworker.json"],
    )
    assert admit(query, {0: 300}).start == {0: 120, 1: 0}
    # Once there is a batch, Spark goes by that.
    again = Query(query.folder.with_name("again"))
    write_note(again.folder, note)
    again.batch(0, 200)
    assert admit(again).start is None


def test_a_reset_that_was_cut_off_is_finished_by_a_person(query: Query) -> None:
    """Without a checkpoint, and with a group that says nothing, a query would begin anew."""
    draw_up(query.folder, Note(*RESULTS, merged=False, start={0: 120, 1: 0}))
    query.folder.rename(query.folder.with_name("orders.20231114T221320.123Z"))
    with pytest.raises(Damaged, match="orders is gone: a reset of it was cut off"):
        admit(query)
    draw_up(query.folder, Note(*RESULTS, merged=False, start={0: 130, 1: 0}))
    assert put_in_place(query.folder, NOW_MS) is None
    assert admit(query).start == {0: 130, 1: 0}


def test_a_survey_makes_the_best_of_what_is_left(query: Query) -> None:
    """A reset `--from committed` goes by it, and by the group."""
    query.batch(3, 400, finished=False)
    found = survey(query.folder, RESULTS.name)
    assert (found.settled[0], found.reached[0]) == (300, 400)
    cut("offsets/3", 5)(query)
    cut("metadata", 0)(query)
    found = survey(query.folder, RESULTS.name)
    assert (found.settled[0], found.reached[0]) == (300, 300)
    cut("commits/2", 0)(query)  # its name says that the batch was written
    assert survey(query.folder, RESULTS.name).settled[0] == 300
    cut("offsets/2", 5)(query)
    assert survey(query.folder, RESULTS.name).settled[0] == 250
    assert survey(query.folder / "none", RESULTS.name).settled == {}


def test_the_next_step_is_a_command(query: Query) -> None:
    """Parquet's batches cannot be numbered anew in the same place."""
    reset = "kworker spark reset --table orders --from committed"
    assert next_step(table(), "committed") == f"stop the job, then {reset}"
    moved = next_step(table(format="parquet"), "committed")
    assert moved == f"stop the job, give the table another path, then {reset}"


ROWS = [Standing("r", 0, 300, 20, 500), Standing("r", 1, 50, 0, 80)]


def reset(to: dict[int, int], *, fresh: bool = False, **settings: Any) -> Reset:
    left = Survey({0: 300, 1: 50}, {0: 340, 1: 50})  # the last batch was not finished
    return Reset(table(**settings), from_committed(ROWS, to), left, fresh)


def test_a_reset_to_where_the_table_stands_may_repeat_the_batch_in_hand() -> None:
    """Whether it was written nobody knows; without dedupe a person must hear of it."""
    found = reset({})
    assert found.start == {0: 300, 1: 50}
    assert (found.again, found.skipped) == (40, 0)
    assert list(found.consequences()) == [
        "up to 40 results come again: what comes again, is in the table twice (dedupe = true"
        " prevents it: set it first)"
    ]


@pytest.mark.parametrize(
    ("settings", "fate"),
    [
        ({"dedupe": True}, "is not written twice (dedupe)"),
        ({"mode": "update", "merge_on": ["a", "b"]}, "replaces the rows of the same a, b"),
    ],
)
def test_what_comes_again_is_told_by_what_the_table_does_with_it(
    settings: dict[str, Any], fate: str
) -> None:
    """The whole question of a reset."""
    found = reset({0: 0, 1: 0}, **settings)
    assert (found.start, found.again) == ({0: 20, 1: 0}, 320 + 50)
    assert list(found.consequences()) == [f"up to 370 results come again: what comes again, {fate}"]


def test_what_is_skipped_and_what_is_forgotten_is_told() -> None:
    """Positions beyond the table's, and sums that begin anew."""
    found = reset({0: 400}, transform="m:f")
    assert (found.again, found.skipped) == (0, 100)
    assert list(found.consequences()) == [
        "up to 100 results before these positions will not be in the table",
        "what the transform keeps (sums, groups) is forgotten, and begins with these",
    ]
    # A table that is written as a whole holds nothing else than what follows.
    assert reset({}, mode="complete").skipped == 350


def test_what_only_the_group_says_is_told_with_the_command_that_does_not_believe_it() -> None:
    """A group that was moved by hand would have results passed over in silence."""
    left = Survey({0: 220, 1: 50}, {0: 240, 1: 50})
    found = replace(reset({}), left=left)
    assert (found.trusted, found.skipped) == (80, 0)
    assert next(found.consequences()) == (
        "up to 80 results are taken to be in the table because its group says so; its checkpoint"
        " does not: --from 0:220,1:50 reads them"
    )
    assert replace(reset({0: 220, 1: 50}), left=left).trusted == 0
    assert replace(found, left=Survey({}, {})).trusted == 0  # nothing but the group is left


def test_a_table_that_is_not_there_yet_holds_nothing_twice() -> None:
    """A new path is how columns are changed, and how Parquet begins anew."""
    assert (reset({0: 0, 1: 0}, fresh=True).again, reset({}, fresh=True).skipped) == (0, 350)


def test_where_nobody_knows_the_position_that_is_said() -> None:
    """The group's positions expire after a week without a batch."""
    moves = [Move(row._replace(committed=None), 20) for row in ROWS[:1]]
    found = replace(reset({}), moves=moves)
    assert (found.again, found.skipped) == (None, 0)
    assert next(found.consequences()).startswith("nobody knows how far the table had come")
