"""Tables and checkpoints on S3, set up as the README says."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow.dataset as ds
import pytest

from kworker.jars import cache_folder
from tests.support.s3 import PACKAGES, S3
from tests.support.service import ROOT
from tests.support.spark_service import Service
from tests.support.stores import Rows, Store, spark_lines

FIRST, MORE = 200, 100
FORMATS = ("delta", "iceberg", "parquet")
LANDED: Rows = Counter(("orders", number % 4, number) for number in range(FIRST + MORE))


class Landed(NamedTuple):
    service: Service
    store: Store


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, s3: S3) -> Iterator[Landed]:
    """Two jobs, one after the other: the second goes on from what the first left on S3."""
    store = s3.store("landed")
    conf = store.spark | PACKAGES | {"spark.jars.ivy": str(cache_folder() / "packages-of-spark")}
    folder = tmp_path_factory.mktemp("s3-service")
    service = Service(
        folder,
        bootstrap,
        spark_lines(conf, store, FORMATS).removeprefix("[spark.conf]\n"),
        checkpoints=store.at("_checkpoints"),
    )
    service.create_topic()
    # Spark would take what it finds in the user's Maven repository, also if only a part is there.
    options = f"{os.environ['JAVA_TOOL_OPTIONS']} -Duser.home={folder}"
    for first, count in ((0, FIRST), (FIRST, MORE)):
        service.send_orders(first, count)
        job = service.start("--once", JAVA_TOOL_OPTIONS=options)
        assert job.ends() == 0, job.said
    yield Landed(service, store)
    service.close()


def test_the_readme_tells_which_packages_s3_needs() -> None:
    """Those that these tests run with."""
    told = (ROOT / "README.md").read_text()
    for key, value in PACKAGES.items():
        assert f'"{key}" = "{value}"\n' in told


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_each_result_is_a_row_on_s3(landed: Landed, table: str) -> None:
    """For readers that know nothing of Spark."""
    for reader, rows in landed.store.rows(table).items():
        assert rows == LANDED, reader


def test_plain_files_on_s3_hold_each_result(landed: Landed) -> None:
    """Where a rename is a copy, too."""
    found = ds.dataset("landed/parquet", filesystem=landed.store.files).to_table()
    offsets = found.column("source_offset").to_pylist()
    assert sorted(offsets) == list(range(FIRST + MORE))


def test_nothing_of_a_table_on_s3_stays_on_the_host(landed: Landed) -> None:
    """Another host could go on with it."""
    assert not list(landed.service.folder.rglob("*.parquet"))
    assert not (landed.service.folder / "data").exists()
