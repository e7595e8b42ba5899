"""What a checkpoint may look like, and which of them a query starts on. No JVM, no broker."""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, groupby
from math import inf
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

from kworker.config.model import TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.checkpoint import (
    CheckpointSurvey,
    damaged_state,
    read_checkpoint,
    remove_plan,
    survey,
)
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.checkpoints.folders import Folder, LocalFolder
from kworker.spark.checkpoints.guard import Guard, ResultsTopic, next_step
from kworker.spark.checkpoints.note import (
    Note,
    apply_draft,
    current_folder,
    read_note,
    write_draft,
    write_note,
)
from kworker.spark.checkpoints.reset import Reset, from_committed
from tests.support.object_store import Killed, ObjectStore, Order, StoreFolder

RESULTS = ResultsTopic("orders.results", "id-1")
NOW_MS = 1_700_000_000_123


class Query:
    """A checkpoint as Spark 4.0 writes it."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.write("metadata", '{"id":"5d3f"}')

    def batch(self, number: int, end: int, *, finished: bool = True) -> None:
        ends = json.dumps({RESULTS.name: {"0": end, "1": 0}})
        self.write(f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0}}\n{ends}')
        if finished:
            self.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def write(self, name: str, text: str) -> None:
        content = text.encode()
        self.folder.write(name, content)
        if isinstance(self.folder, LocalFolder):  # elsewhere there are no checksums beside a file
            sums = b"crc\0" + (512).to_bytes(4, "big")
            for at in range(0, len(content), 512):
                sums += zlib.crc32(content[at : at + 512]).to_bytes(4, "big")
            self.folder.write(_sums_of(name), sums)

    def read(self, name: str) -> bytes:
        content = self.folder.read(name)
        assert content is not None
        return content

    def remove(self, *names: str) -> None:
        for name in names:
            self.folder.delete(name)
            self.folder.delete(_sums_of(name))


def _sums_of(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(f".{path.name}.crc"))


@pytest.fixture(params=["local", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Where there is no folder yet: on a disk, and in an object store."""
    if request.param == "local":
        return LocalFolder(tmp_path / "orders")
    return StoreFolder(ObjectStore(), "s3a://bucket/c/orders")


@pytest.fixture
def query(place: Folder) -> Query:
    return _with_batches(place)


def _with_batches(folder: Folder) -> Query:
    made = Query(folder)
    for number, end in enumerate((100, 250, 300)):
        made.batch(number, end)
    return made


def table(**settings: Any) -> TableSettings:
    return TableSettings.model_validate({"name": "orders", "path": "/nowhere/orders", **settings})


def admit(query: Query, told: dict[int, int] | None = None, **settings: Any) -> Any:
    return Guard(table(**settings), query.folder).admit(RESULTS, told or {})


def test_a_sound_checkpoint_says_how_far_its_table_is(query: Query) -> None:
    """Better than the group, which hears of each batch a moment later."""
    found = read_checkpoint(query.folder, RESULTS.name)
    assert found is not None
    assert (found.planned, found.finished, found.reached) == (2, 2, {0: 300, 1: 0})
    assert found.complete
    query.batch(3, 400, finished=False)
    found = read_checkpoint(query.folder, RESULTS.name)
    assert found is not None
    assert (found.planned, found.finished, found.complete) == (3, 2, False)
    assert (found.begun, found.reached, found.query) == ({0: 300, 1: 0}, {0: 400, 1: 0}, "5d3f")
    for number in (0, 1, 2):  # Spark plans a batch when the one before it is written
        query.remove(f"commits/{number}")
    assert read_checkpoint(query.folder, RESULTS.name) == found


def test_a_range_that_is_forgotten_is_planned_anew(query: Query) -> None:
    """One too large for the memory would otherwise come again for ever."""
    before = read_checkpoint(query.folder, RESULTS.name)
    query.batch(3, 400, finished=False)
    for name in ("3.delta", "4.delta", ".4.delta.crc", "4.snapshot", "44.delta"):
        query.folder.write(f"state/0/1/{name}", b"sums")
    remove_plan(query.folder, 3)
    assert read_checkpoint(query.folder, RESULTS.name) == before
    assert sorted(query.folder.names("state/0/1")) == ["3.delta", "44.delta"]
    remove_plan(query.folder, 3)  # as after a kill


def test_a_query_that_begins_has_no_checkpoint_yet(place: Folder) -> None:
    """Nor has one that was killed before its first batch was planned."""
    assert read_checkpoint(place, RESULTS.name) is None
    assert read_checkpoint(Query(place).folder, RESULTS.name) is None


def cut(name: str, length: int) -> Callable[[Query], None]:
    """What is left after a power cut; its checksum did not get to the disk."""

    def damage(query: Query) -> None:
        content = query.read(name)
        query.remove(name)
        query.folder.write(name, content[:length])

    return damage


def removed(name: str) -> Callable[[Query], None]:
    return lambda query: query.remove(name)


def of_another_topic(query: Query) -> None:
    query.write("offsets/2", 'v1\n{}\n{"other.results":{"0":1}}')


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (removed("metadata"), "metadata is missing"),
        (cut("metadata", 0), "metadata is empty"),
        (
            cut("metadata", 7),
            "metadata is not a JSON object, since it is truncated or another program wrote it;"
            " reset the checkpoint",
        ),
        (cut("offsets/2", 0), "offsets/2 is empty"),
        (cut("offsets/2", 2), "offsets/2 is truncated"),
        (cut("offsets/2", 40), "offsets/2 is not a JSON object, since it is truncated"),
        (cut("offsets/1", 10), "offsets/1 is truncated"),
        (removed("offsets/1"), "offsets/1 is missing"),
        (removed("offsets/2"), "offsets/2 is missing, although Spark finished this batch"),
        (
            of_another_topic,
            "offsets/2 holds offsets of the topic other.results, not of orders.results",
        ),
        (cut("commits/2", 0), "commits/2 is empty"),
        (cut("commits/2", 3), "commits/2 is truncated"),
        (cut("commits/2", 12), "commits/2 is not a JSON object"),
    ],
)
def test_damage_is_told_with_the_files_name(
    query: Query, damage: Callable[[Query], None], told: str
) -> None:
    """Without its `metadata` a query has a new id, and a table forgets its batches."""
    damage(query)
    with pytest.raises(Damaged) as caught:
        read_checkpoint(query.folder, RESULTS.name)
    assert str(caught.value).startswith(f"{query.folder}/{told}")


def test_a_file_that_was_changed_is_found_by_its_checksum(tmp_path: Path) -> None:
    """On a local disk, where they stand beside the file."""
    query = _with_batches(LocalFolder(tmp_path / "orders"))
    changed = query.read("offsets/2").replace(b"300", b"900")
    query.folder.write("offsets/2", changed)
    with pytest.raises(Damaged, match="offsets/2 does not match its checksum"):
        read_checkpoint(query.folder, RESULTS.name)


def test_a_damaged_state_is_found_by_its_checksums(tmp_path: Path) -> None:
    """Spark may fail on it without a word about which file it was."""
    query = _with_batches(LocalFolder(tmp_path / "orders"))
    assert damaged_state(query.folder) is None
    for version in (1, 2):
        query.write(f"state/0/1/{version}.delta", "so many sums")
    assert damaged_state(query.folder) is None
    query.folder.write("state/0/1/2.delta", b"so m")
    assert damaged_state(query.folder) == f"{query.folder}/state/0/1/2.delta"


def test_an_older_file_that_spark_does_not_read_is_no_damage(query: Query) -> None:
    """Spark removes them itself after a while."""
    query.remove("offsets/0", "commits/1")
    assert read_checkpoint(query.folder, RESULTS.name) is not None


def test_a_missing_or_old_checkpoint_is_detected_by_its_group(query: Query) -> None:
    """The query would read again what the table has, or number its batches like written ones."""
    assert admit(query, {0: 300, 1: 0}).checkpoint.planned == 2
    older = "orders is older than the table, .* ends at offset 300, but the group's position is 301"
    with pytest.raises(Damaged, match=older):
        admit(query, {0: 301})
    gone = Guard(table(), query.folder.beside("gone"))
    with pytest.raises(Damaged, match="gone is gone, though its query has written to the table;"):
        gone.admit(RESULTS, {0: 1})
    assert gone.admit(RESULTS, {}).checkpoint is None


def test_a_topic_that_was_made_again_is_noticed(query: Query) -> None:
    """Its offsets mean other records: those below the checkpoint's would never be read."""
    assert admit(query).wrote
    again = RESULTS._replace(id="id-2")
    with pytest.raises(Damaged, match=r"orders\.results was deleted and made again") as caught:
        Guard(table(), query.folder).admit(again, {})
    assert caught.value.begin == "earliest"


def test_a_batch_begun_as_a_merge_is_not_finished_by_append(query: Query) -> None:
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


def test_a_reset_keeps_the_old_checkpoint_and_notes_its_start(query: Query) -> None:
    """Deleted, nobody could look at it again."""
    note = Note(*RESULTS, merged=False, start={0: 120, 1: 0})
    write_draft(query.folder, note)
    assert admit(query, {0: 120}).wrote
    aside = apply_draft(query.folder, NOW_MS)
    assert aside is not None
    assert str(aside) == f"{query.folder}.20231114T221320.123Z"
    assert read_checkpoint(aside, RESULTS.name) is not None
    assert (read_note(query.folder), query.folder.walk("")) == (note, ["kworker.json"])
    assert admit(query, {0: 300}).start == {0: 120, 1: 0}
    # Once there is a batch, Spark goes by that.
    again = Query(query.folder.beside("again"))
    write_note(again.folder, note)
    again.batch(0, 200)
    assert admit(again).start is None


def test_a_reset_past_expired_results_moves_no_other_partition(query: Query) -> None:
    """The table knows its end there; the group, by which a reset goes, may be told late."""
    mark = CommitMark("orders/orders", 1, "old", 9, RESULTS.id, {0: 100, 1: 60}, at_ms=NOW_MS - 1)
    note = Note(*RESULTS, False, {0: 200, 1: 50}, NOW_MS, missing={0: 100})
    write_draft(query.folder, note)
    apply_draft(query.folder, NOW_MS)
    guard = Guard(table(), query.folder)
    for _ in range(2):
        found = guard.admit(RESULTS, {}, mark)
        assert (found.checkpoint, found.start) == (None, {0: 200, 1: 60})
    begun = Query(query.folder)
    begun.batch(0, 280, finished=False)
    again = guard.admit(RESULTS, {}, mark).checkpoint
    assert again is not None
    assert (again.planned, again.begun) == (0, {0: 200, 1: 60})
    written = CommitMark("orders/orders", 2, "5d3f", 0, RESULTS.id, {0: 280}, at_ms=NOW_MS + 1)
    assert guard.admit(RESULTS, {}, written).checkpoint == again


def test_sums_go_on_after_a_reset_past_expired_results(query: Query) -> None:
    """The command has said that they begin anew; no job has written meanwhile."""
    mark = CommitMark("orders/orders", 1, "old", 9, RESULTS.id, {0: 100}, at_ms=NOW_MS - 1)
    write_draft(query.folder, Note(*RESULTS, False, {0: 200, 1: 0}, NOW_MS, missing={0: 100}))
    apply_draft(query.folder, NOW_MS)
    guard = Guard(table(), query.folder)
    assert guard.admit(RESULTS, {}, mark, lambda: True).start == {0: 200, 1: 0}
    with pytest.raises(Damaged, match="made again since the table was written"):
        guard.admit(RESULTS, {}, replace(mark, topic_id="id-0"), lambda: True)


def test_a_reset_that_was_cut_off_is_finished_by_a_person(query: Query) -> None:
    """Without a checkpoint, and with a group that says nothing, a query would begin anew."""
    write_draft(query.folder, Note(*RESULTS, merged=False, start={0: 120, 1: 0}))
    query.folder.rename("orders.20231114T221320.123Z")
    with pytest.raises(
        Damaged, match="orders is missing or incomplete, since its reset was interrupted"
    ):
        admit(query)
    write_draft(query.folder, Note(*RESULTS, merged=False, start={0: 130, 1: 0}))
    assert apply_draft(query.folder, NOW_MS) is None
    assert admit(query).start == {0: 130, 1: 0}


class Cut(NamedTuple):
    """A reset in an object store, killed after so many changes."""

    query: Query
    old: set[bytes]
    over: bool

    def admitted(self) -> str:
        """What a query would start from: the old checkpoint, the new one, or none."""
        try:
            found = admit(self.query, {0: 120})
        except Damaged as error:
            if not str(error).endswith("its reset was interrupted; reset it again"):
                raise
            return "none"
        if found.start is None:
            assert (found.checkpoint.planned, found.checkpoint.reached[0]) == (2, 300)
            return "old"
        assert (found.start, found.checkpoint) == (START, None)
        return "new"


START = {0: 120, 1: 0}


def cut_off(changes: int, order: Order) -> Cut:
    store = ObjectStore(order)
    query = _with_batches(StoreFolder(store, "s3a://bucket/c/orders"))
    write_note(query.folder, Note(*RESULTS, merged=False))
    old = set(store.objects.values())
    store.changes = changes
    over = False
    with suppress(Killed):
        write_draft(query.folder, Note(*RESULTS, merged=False, start=START))
        apply_draft(query.folder, NOW_MS)
        over = True
    store.changes = inf
    return Cut(query, old, over)


def backwards(keys: Iterable[str]) -> Sequence[str]:
    return sorted(keys, reverse=True)


@pytest.mark.parametrize("order", [sorted, backwards])
def test_a_reset_cut_off_anywhere_starts_no_query_from_elsewhere(order: Order) -> None:
    """In an object store a folder moves file by file: half of it may look like an older one."""
    seen = []
    for changes in count():
        cut = cut_off(changes, order)
        seen.append(cut.admitted())
        if cut.over:
            break
    assert [kind for kind, _ in groupby(seen)] == ["old", "none", "new"]
    assert len(seen) > 20


@pytest.mark.parametrize("order", [sorted, backwards])
def test_a_reset_after_one_that_was_cut_off_keeps_every_old_file(order: Order) -> None:
    """It begins where it says, whatever the other has left."""
    for changes in count():
        cut = cut_off(changes, order)
        folder = cut.query.folder
        write_draft(folder, Note(*RESULTS, merged=False, start=START))
        apply_draft(folder, NOW_MS + 1)
        assert cut.admitted() == "new"
        assert folder.walk("") == ["kworker.json"]
        asides = [folder.beside(f"orders.20231114T221320.{ms}Z") for ms in (123, 124)]
        assert cut.old <= {aside.read(name) for aside in asides for name in aside.walk("")}
        if cut.over:
            break


@pytest.mark.parametrize("order", [sorted, backwards])
def test_a_cut_off_reset_leaves_no_position(order: Order) -> None:
    """A reset `--from committed` then goes by the group, which was told before a file moved."""
    for changes in count():
        cut = cut_off(changes, order)
        found = current_folder(cut.query.folder)
        state = cut.admitted()
        assert (found.name == ".orders.new") is (state == "none")
        if state != "old":
            assert survey(found, RESULTS.name) == CheckpointSurvey({}, {})
            assert read_note(found) == Note(*RESULTS, merged=False, start=START)
        if cut.over:
            break


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
    assert survey(query.folder.beside("none"), RESULTS.name).settled == {}


def test_the_next_step_is_a_command(query: Query) -> None:
    reset = "kworker spark reset --table orders --from committed"
    assert next_step(table(), "committed") == f"stop the job, then {reset}"


ROWS = [GroupPosition("r", 0, 300, 20, 500), GroupPosition("r", 1, 50, 0, 80)]


def reset(to: dict[int, int], *, fresh: bool = False, **settings: Any) -> Reset:
    left = CheckpointSurvey({0: 300, 1: 50}, {0: 340, 1: 50})  # the last batch was not finished
    return Reset(table(**settings), from_committed(ROWS, to), left, fresh)


def test_a_reset_to_the_tables_end_may_repeat_its_last_batch() -> None:
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
def test_repeated_results_are_told_with_what_the_table_does(
    settings: dict[str, Any], fate: str
) -> None:
    """The whole question of a reset."""
    found = reset({0: 0, 1: 0}, **settings)
    assert (found.start, found.again) == ({0: 20, 1: 0}, 320 + 50)
    assert list(found.consequences()) == [f"up to 370 results come again: what comes again, {fate}"]


def test_skipped_and_forgotten_results_are_told() -> None:
    """Positions beyond the table's, and sums that begin anew."""
    found = reset({0: 400}, transform="m:f")
    assert (found.again, found.skipped) == (0, 100)
    assert list(found.consequences()) == [
        "up to 100 results before these positions will not be in the table",
        "what the transform keeps (sums, groups) is forgotten, and begins with these",
    ]
    # A table that is written as a whole holds nothing else than what follows.
    assert reset({}, mode="complete").skipped == 350


def test_a_reset_to_the_groups_position_warns_with_another_way() -> None:
    """A group that was moved by hand would have results passed over in silence."""
    left = CheckpointSurvey({0: 220, 1: 50}, {0: 240, 1: 50})
    found = replace(reset({}), left=left)
    assert (found.trusted, found.skipped) == (80, 0)
    assert next(found.consequences()) == (
        "up to 80 results are taken to be in the table because its group says so; its checkpoint"
        " does not: --from 0:220,1:50 reads them"
    )
    assert replace(reset({0: 220, 1: 50}), left=left).trusted == 0
    assert (
        replace(found, left=CheckpointSurvey({}, {})).trusted == 0
    )  # nothing but the group is left


def test_a_reset_of_a_missing_table_repeats_nothing() -> None:
    """A new path is how columns are changed."""
    assert (reset({0: 0, 1: 0}, fresh=True).again, reset({}, fresh=True).skipped) == (0, 350)


def test_positions_that_the_topic_does_not_hold_are_noted() -> None:
    """There, and nowhere else, the job cannot continue where its table ends."""
    gone = [row._replace(low=70) for row in ROWS]
    assert replace(reset({}), moves=from_committed(gone, {})).missing == {1: 50}
    assert reset({}).missing == {}
    unknown = [row._replace(committed=None) for row in gone]
    assert replace(reset({}), moves=from_committed(unknown, {})).missing == {}


def test_an_unknown_position_is_told() -> None:
    """The group's positions expire after a week without a batch."""
    moves = [Move(row._replace(committed=None), 20) for row in ROWS[:1]]
    found = replace(reset({}), moves=moves)
    assert (found.again, found.skipped) == (None, 0)
    assert next(found.consequences()).startswith("it is not known how far the table had come")
