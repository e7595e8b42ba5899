"""One contract of a folder: on a disk, by Spark's Hadoop, and in the tests' own object store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kworker.config import toml_file
from kworker.spark.checkpoints.checkpoint import read_checkpoint, remove_plan
from kworker.spark.checkpoints.folders import Folder, LocalFolder
from kworker.spark.checkpoints.hadoop import HadoopFolder, folder_at
from kworker.spark.checkpoints.note import (
    Note,
    apply_draft,
    current_folder,
    is_half_reset,
    read_note,
    write_draft,
)
from kworker.spark.session.session import close_session, open_session
from tests.support.object_store import ObjectStore, StoreFolder
from tests.support.tables import spark_config, spark_table

pytestmark = pytest.mark.timeout(300)

MOUNT = "viewfs://kworker/c"


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark knows as `MOUNT`."""
    return tmp_path_factory.mktemp("mounted")


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory, mounted: Path) -> Iterator[SparkSession]:
    """In this process, whose environment it changes meanwhile."""
    file = tmp_path_factory.mktemp("folders") / "kworker.toml"
    mount = '"spark.hadoop.fs.viewfs.mounttable.kworker.link./c"'
    spark = f'[spark]\nmaster = "local[1]"\n[spark.conf]\n{mount} = "{mounted.as_uri()}"\n'
    file.write_text(spark_config("folders", spark + spark_table("files", format="parquet")))
    config = toml_file.load(str(file))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
            patch.setenv(name, os.environ.get(name, ""))
        patch.delenv("PYSPARK_PYTHON")
        made = open_session(config, [])
        yield made
        close_session(made, config)


@pytest.fixture(params=["local", "store", "file", "viewfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """One that is not there yet, nor is the one above it."""
    match request.param:
        case "local":
            return LocalFolder(tmp_path / "c" / "orders")
        case "store":
            return StoreFolder(ObjectStore(), "s3a://bucket/c/orders")
    session = request.getfixturevalue("session")
    if request.param == "file":
        return HadoopFolder(session, f"{tmp_path.as_uri()}/c/orders/")
    return folder_at(session, f"{MOUNT}/{tmp_path.name}/orders")


def test_a_missing_folder_reads_as_empty(folder: Folder) -> None:
    """So the first start of a query is no case of its own."""
    assert not folder.exists()
    assert not folder.exists("offsets")
    assert folder.read("offsets/0") is None
    assert list(folder.names("")) == list(folder.names("offsets")) == []
    assert list(folder.walk("")) == list(folder.walk("state")) == []
    folder.delete("offsets/0")
    folder.remove()
    assert not folder.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00" * 100_000])
def test_a_file_is_read_as_it_was_written_last(folder: Folder, content: bytes) -> None:
    """Of bytes and of none; longer or shorter than what was there."""
    for each in (b"before", content):
        folder.write("state/0/1/2.zip", each)
        assert folder.read("state/0/1/2.zip") == each
    assert folder.exists("state/0/1/2.zip")
    assert list(folder.walk("")) == ["state/0/1/2.zip"]  # and no draft


def test_names_are_of_one_folder_and_a_walk_of_all_below(folder: Folder) -> None:
    """As a path below the folder, which the other calls take."""
    names = ["kworker.json", "offsets/0", "offsets/10", "offsets/9", "state/0/1/1.delta"]
    for name in reversed(names):
        folder.write(name, b"x")
    assert sorted(folder.names("")) == ["kworker.json", "offsets", "state"]
    assert sorted(folder.names("offsets")) == ["0", "10", "9"]
    assert list(folder.walk("")) == names
    assert list(folder.walk("state")) == ["state/0/1/1.delta"]
    assert all(folder.exists(name) for name in (*names, "offsets", "state/0"))


def test_a_delete_removes_nothing_else(folder: Folder) -> None:
    """A file, or the folder; not the one beside it, whose name begins alike."""
    other = folder.beside("orders-2")
    other.write("a", b"x")
    for name in ("a", "b"):
        folder.write(name, b"x")
    folder.delete("a")
    assert (folder.read("a"), folder.read("b")) == (None, b"x")
    folder.remove()
    assert not folder.exists()
    assert other.read("a") == b"x"


def test_a_folder_that_is_renamed_takes_all_along(folder: Folder) -> None:
    """Its new name has points and a hidden folder's beginning, as those of a reset have."""
    folder.write("metadata", b"m")
    folder.write("state/0/1/1.delta", b"s")
    moved = folder.rename(".orders.20231114T221320.123Z")
    assert not folder.exists()
    assert (folder.name, moved.name) == ("orders", ".orders.20231114T221320.123Z")
    assert str(moved) == str(folder).replace("/orders", f"/{moved.name}")
    assert list(moved.walk("")) == ["metadata", "state/0/1/1.delta"]
    assert moved.read("state/0/1/1.delta") == b"s"


def test_a_checkpoint_is_read_forgotten_in_part_and_begun_anew(folder: Folder) -> None:
    """What a job and a reset do, one after the other."""
    folder.write("metadata", b'{"id":"5d3f"}')
    for batch in range(3):
        folder.write(f"offsets/{batch}", b'v1\n{}\n{"r":{"0":%d}}' % (batch * 10))
        folder.write(f"state/0/1/{batch + 1}.delta", b"sums")
    folder.write("commits/1", b"v1\n{}")
    found = read_checkpoint(folder, "r")
    assert found is not None
    assert (found.planned, found.finished, found.begun) == (2, 1, {0: 10})
    remove_plan(folder, 2)
    assert list(folder.walk("state")) == ["state/0/1/1.delta", "state/0/1/2.delta"]
    note = Note("r", "id-1", merged=False, start={0: 5})
    write_draft(folder, note)
    assert (is_half_reset(folder), current_folder(folder)) == (False, folder)
    draft = folder.beside(".orders.new")
    draft.write("moving", b"")  # as a kill leaves it
    assert is_half_reset(folder)
    assert str(current_folder(folder)) == str(draft)
    aside = apply_draft(folder, 1_700_000_000_123)
    assert aside is not None
    assert (read_note(folder), list(folder.walk(""))) == (note, ["kworker.json"])
    assert read_checkpoint(aside, "r")
    assert not is_half_reset(folder)
    assert not draft.exists()


def test_a_folder_is_local_where_it_can_be(session: SparkSession, tmp_path: Path) -> None:
    """Its errors then are Python's own, and its checksums are looked at."""
    for place in (str(tmp_path), tmp_path.as_uri()):
        assert folder_at(session, place) == LocalFolder(tmp_path)


def test_a_file_with_a_wrong_checksum_raises_its_error(
    session: SparkSession, mounted: Path
) -> None:
    """Other errors of Java's may pass, and are left as they are."""
    folder = HadoopFolder(session, f"{MOUNT}/damaged")
    folder.write("offsets/0", b"v1")
    (mounted / "damaged" / "offsets" / "0").write_bytes(b"v2")
    with pytest.raises(OSError) as caught:
        folder.read("offsets/0")
    assert caught.value.strerror == "the file does not match its checksum"
