"""Checkpoints that are not in a local folder: guarded, made smaller and begun anew like others.

On a file system that only Hadoop knows, which needs no network: a mount table onto this disk.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.spark_service import PARTITIONS, QUIET, Service
from tests.support.tables import Reader, spark_table

FIRST, SECOND, THIRD = 40, 20, 100
SMALL = 10
CHECKPOINTS = "viewfs://kworker/c"

Ran = subprocess.CompletedProcess[str]


class Story(NamedTuple):
    """What was seen, in this order."""

    refused: dict[str, Any]
    dry: Ran
    beside: list[str]  # after that
    done: Ran
    kept: list[str]
    said_of_range: str
    batches: list[str]
    rows: list[int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, bootstrap: str) -> Iterator[Service]:
    table = spark_table("orders", schema="order_id BIGINT")
    service = Service(tmp_path_factory.mktemp("distant"), bootstrap, table)
    folder = service.checkpoint("orders").parent
    mount = '"spark.hadoop.fs.viewfs.mounttable.kworker.link./c"'
    text = service.file.read_text()
    text = text.replace('"data/_checkpoints"', f'"{CHECKPOINTS}"')
    text = text.replace("[spark.conf]\n", f'[spark.conf]\n{mount} = "{folder.as_uri()}"\n')
    service.file.write_text(text)
    yield service
    service.close()


@pytest.fixture(scope="module")
def story(made: Service, tables: Reader) -> Story:
    made.create_topic()
    made.send_orders(0, FIRST)
    assert _job(made) == (0, "stopped")
    (made.checkpoint("orders") / "metadata").unlink()
    assert _job(made) == (1, "failed")
    refused = made.progress()
    dry = _reset(made, "--dry-run", "--json")
    beside = _beside(made)
    done = _reset(made)
    made.send_orders(FIRST, SECOND)
    assert _job(made) == (0, "stopped")
    kept = _beside(made)
    made.send_orders(FIRST + SECOND, THIRD)
    _plan_all(made)
    made.file.write_text(
        made.file.read_text().replace("[spark]", f"[spark]\nbatch_records={SMALL}")
    )
    last = made.start("--once")
    assert last.ends() == 0, last.said
    rows = sorted(row["order_id"] for row in tables.rows(made.file)["orders"])
    commits = (made.checkpoint("orders") / "commits").glob("[0-9]*")
    return Story(refused, dry, beside, done, kept, last.said, [path.name for path in commits], rows)


def _job(made: Service) -> tuple[int, str]:
    """The exit code of one that takes what is there, and what became of it."""
    job = made.start("--once")
    return job.ends(), made.progress()["state"]


def _reset(made: Service, *more: str) -> Ran:
    return made.kworker("spark", "reset", "--table", "orders", "--from", "committed", *more)


def _beside(made: Service) -> list[str]:
    """All that stands where the checkpoints are."""
    return sorted(path.name for path in made.checkpoint("orders").parent.iterdir())


def _plan_all(made: Service) -> None:
    """As a kill leaves it when the range of a batch is fixed, and nothing of it is written."""
    offsets = made.checkpoint("orders") / "offsets"
    last = max(int(path.name) for path in offsets.glob("[0-9]*"))
    *head, _ends = (offsets / str(last)).read_text().splitlines()
    each = (FIRST + SECOND + THIRD) // QUIET
    ends = {str(part): each if part < QUIET else 0 for part in range(PARTITIONS)}
    planned = json.dumps({made.topic: ends})
    (offsets / str(last + 1)).write_text("\n".join([*head, planned]))


def test_damage_is_told_by_the_name_that_spark_knows(story: Story) -> None:
    """Damage is named by its file, wherever the checkpoint is."""
    [told] = story.refused["tables"]
    assert told["reason"] == (
        f"{CHECKPOINTS}/orders/metadata is missing: stop the job, then kworker spark reset"
        " --table orders --from committed"
    )


def test_a_dry_run_tells_of_the_reset_and_changes_nothing(story: Story) -> None:
    """On standard output for a program; what a person waits for stands on the other one."""
    assert story.dry.returncode == 0, story.dry.stderr
    told = json.loads(story.dry.stdout)
    positions = {each["partition"]: each["after"] for each in told["partitions"]}
    assert positions == dict.fromkeys(range(QUIET), FIRST // QUIET) | {QUIET: 0}
    assert (told["dry_run"], told["aside"]) == (True, None)
    assert "starting Spark to reach viewfs://kworker/c/orders" in story.dry.stderr
    assert story.beside == ["orders"]


def test_a_reset_keeps_the_old_distant_checkpoint(story: Story) -> None:
    """Under the name that it says."""
    assert story.done.returncode == 0, story.done.stderr
    aside, now = sorted(story.kept, key=len, reverse=True)
    assert now == "orders"
    assert f"the old checkpoint is kept as {CHECKPOINTS}/{aside}" in story.done.stdout


def test_a_too_large_range_of_a_distant_checkpoint_is_forgotten(story: Story) -> None:
    """One that does not fit into the memory would come again for ever."""
    told = "the batch that Spark has planned exceeds the table's present batch limit"
    assert told in story.said_of_range
    assert len(story.batches) > THIRD // SMALL // 2


def test_every_result_is_in_the_table_once(story: Story) -> None:
    """After the damage, the reset and the range that was forgotten."""
    assert story.rows == list(range(FIRST + SECOND + THIRD))
