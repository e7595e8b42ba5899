"""Delta and Iceberg tables, read without Spark: by deltalake, pyiceberg and DuckDB."""

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem
from pyiceberg.table import StaticTable

Rows = Counter[tuple[str, int, int]]
"""How often each source position stands in a table."""

_POSITION = ("source_topic", "source_partition", "source_offset")
_COMMIT = re.compile(r"v?(\d+)(\.metadata)?\.json")


@dataclass(frozen=True)
class Store:
    """A place for tables: a folder, or a URI such as s3a://bucket, and how readers get there."""

    root: str
    files: FileSystem = field(default_factory=LocalFileSystem)
    deltalake: Mapping[str, str] = field(default_factory=dict)
    pyiceberg: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)

    def at(self, table: str) -> str:
        return f"{self.root}/{table}"

    def commits(self, table: str) -> int:
        """The number of the newest commit of a table of either format; -1 for none."""
        names = [*self._names(f"{table}/_delta_log"), *self._names(f"{table}/metadata")]
        found = map(_COMMIT.fullmatch, names)
        return max((int(match[1]) for match in found if match), default=-1)

    def rows(self, table: str) -> dict[str, Rows]:
        """By reader, what it finds."""
        readers = self._of_delta if self._names(f"{table}/_delta_log") else self._of_iceberg
        return {name: read() for name, read in readers(table).items()}

    def _of_delta(self, table: str) -> dict[str, Callable[[], Rows]]:
        there = DeltaTable(self.at(table), storage_options=dict(self.deltalake))

        def by_deltalake() -> Rows:
            found = there.to_pyarrow_table(columns=list(_POSITION))
            return _counted_rows(found)

        def by_duckdb() -> Rows:
            # Its own reader of Delta's log takes local tables; of others it is told the files.
            if self._is_local:
                return _counted(delta_connection(), f"delta_scan('{self.at(table)}')")
            return _counted_dataset(there.to_pyarrow_dataset())

        return {"deltalake": by_deltalake, "duckdb": by_duckdb}

    def _of_iceberg(self, table: str) -> dict[str, Callable[[], Rows]]:
        newest = f"{self.at(table)}/metadata/v{self.commits(table)}.metadata.json"
        there = StaticTable.from_metadata(newest, properties=dict(self.pyiceberg))

        def by_pyiceberg() -> Rows:
            found = there.scan(selected_fields=_POSITION).to_arrow()
            return _counted_rows(found)

        def by_duckdb() -> Rows:
            tasks = there.scan().plan_files()
            assert not any(task.delete_files for task in tasks)
            paths = [_without_scheme(task.file.file_path) for task in tasks]
            return _counted_dataset(ds.dataset(paths, filesystem=self.files))

        return {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb}

    @property
    def _is_local(self) -> bool:
        return isinstance(self.files, LocalFileSystem)

    def _names(self, folder: str) -> list[str]:
        where = FileSelector(_without_scheme(f"{self.root}/{folder}"), allow_not_found=True)
        return [found.base_name for found in self.files.get_file_info(where)]


def spark_lines(conf: Mapping[str, str], store: Store, tables: Iterable[str]) -> str:
    """`[spark.conf]` and tables for a `kworker.toml`: each table is named after its format."""
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items()]
    for table in tables:
        place = f'name = "{table}"\npath = "{store.at(table)}"\nformat = "{table}"'
        lines.append(f"[[spark.tables]]\n{place}")
    return "\n".join(["[spark.conf]", *lines, ""])


def delta_connection() -> duckdb.DuckDBPyConnection:
    """DuckDB with its own reader of Delta's log, from the distribution that brings it."""
    spec = importlib.util.find_spec("duckdb_extension_delta")
    assert spec
    assert spec.submodule_search_locations
    [place] = spec.submodule_search_locations
    [extension] = Path(place).rglob("delta.duckdb_extension")
    connection = duckdb.connect()
    connection.load_extension(str(extension))
    return connection


def _counted_rows(rows: pa.Table) -> Rows:
    return Counter(zip(*(rows.column(name).to_pylist() for name in _POSITION), strict=True))


def _counted_dataset(files: ds.Dataset) -> Rows:
    connection = duckdb.connect()
    connection.register("files", files)
    return _counted(connection, "files")


def _counted(connection: duckdb.DuckDBPyConnection, rows: str) -> Rows:
    keys = ", ".join(_POSITION)
    found = connection.sql(f"SELECT {keys}, count(*) FROM {rows} GROUP BY {keys}").fetchall()
    return Counter({tuple(key): count for *key, count in found})


def _without_scheme(uri: str) -> str:
    """As pyarrow's file systems have it."""
    return re.sub(r"^[a-z0-9]+:(//)?", "", uri)
