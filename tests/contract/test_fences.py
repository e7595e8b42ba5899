"""What a table takes of two jobs at once: one suite for each format, on the real thing."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructType

from kworker.config import toml_file
from kworker.spark.checkpoints.commit_marks import FIRST_WRITE_MARKER, CommitMark
from kworker.spark.launch import fence_of
from kworker.spark.rows.frames import keeps_state
from kworker.spark.session.archives import archives
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.session import close_session, open_session
from kworker.spark.tables import delta_log
from kworker.spark.tables.fences import TableFenced
from kworker.spark.tables.sinks import Sink, sinks
from tests.support.tables import spark_config, spark_table

pytestmark = pytest.mark.timeout(300)

FORMATS = ("delta", "iceberg", "parquet")
MERGED = ("delta", "iceberg")
WRITER = "orders/t"
SPARK = '[spark]\n[spark.conf]\n"spark.sql.shuffle.partitions" = "2"\n'
CASES = (
    "zombie",
    "turns",
    "racing",
    "foreign",
    "merged",
    "anew",
    "claimed",
    "slept_false",
    "slept_true",
    "made",
    "made_taken",
    "forgotten",
    "made_by_rows",
    "made_by_two",
    "made_among",
    "made_again",
    "made_half",
    "made_empty",
    "made_plainly",
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkSession, list[Sink]]]:
    folder = tmp_path_factory.mktemp("fences")
    names = [(f"{case}_{name}", name) for name in FORMATS for case in CASES]
    tables = "".join(spark_table(name, format=format_) for name, format_ in names)
    (folder / "kworker.toml").write_text(spark_config("orders", SPARK + tables))
    (folder / "state" / "spark").mkdir(parents=True)
    config = toml_file.load(folder / "kworker.toml")
    assert config.spark
    found = archives(config.spark.tables, progress=lambda _: None)
    session = open_session(config, found)
    yield session, sinks(config.spark)
    close_session(session, config)


COLUMNS = StructType().add("id", LongType()).add("v", StringType())


class Place:
    """One table, and as many jobs as want to write it."""

    def __init__(self, session: SparkSession, sink: Sink) -> None:
        self.session = session
        self.sink = sink
        if sink.table.format != "parquet" and not sink.table.name.startswith("made"):
            self.make(session)

    def make(self, session: SparkSession, how: str = "") -> None:
        columns = "(id BIGINT, v STRING)"
        session.sql(f"CREATE TABLE {how} {self.sink.name} {columns} USING {self.sink.table.format}")

    def job(self, query: str = "", writer: str = WRITER) -> "Job":
        return Job(self, query, writer)

    def ids(self) -> list[int]:
        if self.sink.table.format == "parquet":
            found = self.session.read.parquet(self.sink.table.path)
        else:
            self.session.sql(f"REFRESH TABLE {self.sink.name}")
            found = self.session.table(self.sink.name)
        return sorted(row["id"] for row in found.collect())

    @property
    def folder(self) -> Path:
        return Path(self.sink.table.path)


class Job:
    """Takes a table, and adds rows whose ids are their offsets."""

    def __init__(self, place: Place, query: str, writer: str) -> None:
        self.place = place
        self.session = place.session.newSession()  # a query's batches have one of their own
        self.fence = fence_of(self.session, place.sink, writer)
        self.query = query or "q"
        self.held = self.fence.take(query or uuid.uuid4().hex)
        self.batch = self.held.batch if self.held and self.held.query == query else -1
        self.at = self.held.positions[0] if self.held else 0

    def mark(self, end: int) -> CommitMark:
        self.batch, self.at = self.batch + 1, end
        fence = self.fence
        return CommitMark(fence.writer, fence.epoch, self.query, self.batch, "id", {0: end}, 7)

    def rows(self, begin: int, end: int) -> DataFrame:
        return self.session.range(begin, end).select("id", f.lit("x").alias("v"))

    def add(self, end: int, *, overwrite: bool = False) -> None:
        rows = self.rows(0 if overwrite else self.at, end)
        self.fence.write(rows, self.mark(end), overwrite=overwrite)

    def merge(self, begin: int, end: int) -> None:
        self.fence.merge(self.rows(begin, end), ["id"], self.mark(end), update=False)

    def update(self, begin: int, end: int) -> None:
        self.fence.merge(self.rows(begin, end), ["id"], self.mark(end), update=True)


@pytest.fixture
def place(
    places: tuple[SparkSession, list[Sink]], request: pytest.FixtureRequest
) -> Callable[[str, str], Place]:
    session, every = places

    def made(case: str, format_: str) -> Place:
        [sink] = [sink for sink in every if sink.table.name == f"{case}_{format_}"]
        return Place(session, sink)

    return made


Places = Callable[[str, str], Place]


@pytest.mark.parametrize("name", FORMATS)
def test_a_job_that_slept_writes_nothing(place: Places, name: str) -> None:
    """It was paused, another took over from what the table says, and it wakes in mid-batch."""
    table = place("zombie", name)
    first = table.job()
    assert first.held is None
    first.add(10)
    first.add(20)
    second = table.job()
    assert second.held
    assert (second.held.query, second.held.batch, second.held.positions) == ("q", 1, {0: 20})
    second.query = "other"
    second.add(30)
    for _ in range(2):
        with pytest.raises(TableFenced):
            first.add(25)
        first.at = 20
    second.add(40)
    assert table.ids() == list(range(40))


@pytest.mark.parametrize("name", FORMATS)
def test_two_jobs_that_take_turns_go_on_where_the_other_ended(place: Places, name: str) -> None:
    table = place("turns", name)
    epochs = []
    for turn in range(4):
        query = "ab"[turn % 2]
        job = table.job("")
        job.query = query
        assert job.at == 10 * turn
        job.add(10 * turn + 5)
        again = table.job(query)  # it started anew, and is still the one that wrote last
        assert (again.batch, again.at) == (job.batch, 10 * turn + 5)
        again.add(10 * turn + 10)
        epochs.append(job.fence.epoch)
    assert epochs == sorted(set(epochs))
    assert table.ids() == list(range(40))


def is_refused(job: Job) -> bool:
    """A thousand rows more; or the other was first, or its files are in the way."""
    try:
        job.add(job.at + 1_000)
    except (TableFenced, *CALL_FAILED):
        return True
    return False


@pytest.mark.parametrize("name", FORMATS)
def test_one_of_two_concurrent_jobs_is_refused(place: Places, name: str) -> None:
    """Whatever each believes, and however often: each row is there once."""
    table = place("racing", name)
    table.job().add(1)
    for _ in range(3):
        jobs: list[Job] = []
        for query in "ab":
            jobs.append(table.job())
            jobs[-1].query = query

        with ThreadPoolExecutor() as pool:
            refused = sum(pool.map(is_refused, jobs))
        assert refused < len(jobs)
        held = table.job().held
        assert held
        assert table.ids() == list(range(held.positions[0]))


LATE = {"delta": "_committing", "iceberg": "_commit"}
STEP = {"delta": "_claim", "iceberg": "_write_first_snapshot", "parquet": "_seal"}


@pytest.mark.parametrize("name", FORMATS)
def test_one_of_two_concurrent_takers_has_the_table(place: Places, name: str) -> None:
    """The other is paused between its look and its claim, and both are new to the table."""
    table = place("claimed", name)
    late = fence_of(table.session, table.sink, WRITER)
    claim = getattr(late, STEP[name])

    def after_another(*arguments: object) -> None:
        table.job().add(10)
        claim(*arguments)

    setattr(late, STEP[name], after_another)
    with pytest.raises(TableFenced):
        late.take("late")
    second = table.job()
    assert second.at == 10
    second.add(20)
    assert table.ids() == list(range(20))


def test_the_maker_of_a_table_keeps_it_until_another_takes_it(place: Places) -> None:
    """A commit more, at the first start of each table, would be a second of waiting."""
    table = place("made", "delta")
    maker = fence_of(table.session, table.sink, WRITER)
    assert maker.take("a") is None
    with maker.creating(COLUMNS):
        table.make(table.session)
    assert maker.take("a") is None
    assert [path.name for path in log_of(table)] == [f"{0:020d}.json"]
    rows = table.session.range(10).select("id", f.lit("x").alias("v"))
    maker.write(rows, CommitMark(WRITER, maker.epoch, "q", 0, "id", {0: 10}, 7))
    again = table.job("q")
    assert again.fence.epoch == maker.epoch
    again.add(20)
    other = table.job()
    other.query = "other"
    with pytest.raises(TableFenced):
        maker.write(rows, CommitMark(WRITER, maker.epoch, "q", 2, "id", {0: 30}, 7))
    other.add(30)
    assert table.ids() == list(range(30))


def test_a_table_taken_before_its_makers_write_is_the_takers(place: Places) -> None:
    table = place("made_taken", "delta")
    maker = fence_of(table.session, table.sink, WRITER)
    maker.take("a")
    with maker.creating(COLUMNS):
        table.make(table.session)
    maker.take("a")
    other = table.job()
    rows = table.session.range(10).select("id", f.lit("x").alias("v"))
    with pytest.raises(TableFenced):
        maker.write(rows, CommitMark(WRITER, maker.epoch, "q", 0, "id", {0: 10}, 7))
    other.add(10)
    assert table.ids() == list(range(10))


def test_a_first_write_makes_the_table_and_has_it(place: Places) -> None:
    table = place("made_by_rows", "delta")
    first, late = table.job("q"), table.job("late")
    assert first.fence.prepare_first_write(COLUMNS)
    first.add(10)
    assert [path.name for path in log_of(table)] == [f"{0:020d}.json"]
    with pytest.raises(TableFenced):
        late.add(10)
    first.add(20)
    again = table.job("q")
    assert (again.at, again.fence.epoch) == (20, first.fence.epoch)
    other = table.job("other")
    with pytest.raises(TableFenced):
        first.add(30)
    other.add(30)
    assert table.ids() == list(range(30))
    assert not other.fence.prepare_first_write(COLUMNS)


def test_one_of_two_first_writes_makes_the_table(place: Places) -> None:
    """Both look before either commits."""
    table = place("made_by_two", "delta")
    jobs = [table.job(f"q{number}") for number in range(4)]
    with ThreadPoolExecutor(len(jobs)) as threads:
        ends = [threads.submit(job.add, 1000) for job in jobs]
        errors = [end.exception() for end in ends]
    assert [type(error) for error in errors if error] == [TableFenced] * (len(jobs) - 1)
    assert table.ids() == list(range(1000))


def test_a_table_is_not_made_among_files_of_others(place: Places) -> None:
    """They would go when the table is rid of what it has outlived."""
    table = place("made_among", "delta")
    table.folder.mkdir(parents=True)
    (table.folder / "theirs.parquet").write_text("rows")
    assert not table.job().fence.prepare_first_write(COLUMNS)
    with pytest.raises(CALL_FAILED):
        table.make(table.session)
    (table.folder / "theirs.parquet").unlink()
    assert table.job().fence.prepare_first_write(COLUMNS)


@pytest.mark.parametrize("left", [FIRST_WRITE_MARKER, f"{FIRST_WRITE_MARKER}.part"])
def test_a_cut_off_first_write_does_not_block_the_next(place: Places, left: str) -> None:
    table = place("made_again" if left == FIRST_WRITE_MARKER else "made_half", "delta")
    table.folder.mkdir(parents=True)
    for name in (left, "part-0.parquet"):
        (table.folder / name).write_text("half")
    other = table.job("other")
    assert other.fence.prepare_first_write(COLUMNS)
    other.add(10)
    assert table.ids() == list(range(10))
    assert not [path for path in table.folder.iterdir() if path.name.startswith(FIRST_WRITE_MARKER)]


def test_a_cut_off_first_write_does_not_block_an_empty_table(place: Places) -> None:
    """The topic is empty by now, or the table is one that merges."""
    table = place("made_empty", "delta")
    assert table.job("killed").fence.prepare_first_write(COLUMNS)
    fence = fence_of(table.session, table.sink, WRITER)
    assert fence.take("a") is None
    with fence.creating(COLUMNS):
        table.make(table.session, "IF NOT EXISTS")
    assert fence.take("a") is None
    assert fence.taken
    assert [path.name for path in log_of(table)] == [f"{0:020d}.json"]
    assert not [path for path in table.folder.iterdir() if path.name.startswith(FIRST_WRITE_MARKER)]


@pytest.mark.parametrize(
    "columns",
    [
        "id BIGINT, `a b` STRING",
        "id BIGINT, v VOID",
        "id BIGINT, ID STRING",
        "s STRUCT<`a,b`: INT>",
    ],
)
def test_a_table_with_refusable_columns_is_made_without_rows(place: Places, columns: str) -> None:
    assert (
        not place("made_plainly", "delta")
        .job()
        .fence.prepare_first_write(StructType.fromDDL(columns))
    )


def test_the_delta_checkpoint_keeps_forgotten_commits(
    place: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta removes a table's older commits; of who wrote them, the checkpoint tells."""
    table = place("forgotten", "delta")
    job = table.job()
    job.add(10)
    version = job.mark(10).version - 1
    for number in range(12):  # each tenth commit is a checkpoint
        table.session.sql(f"INSERT INTO {table.sink.name} VALUES ({-number - 1}, 'y')")
    log = delta_log.DeltaLog(table.session, table.sink)
    assert log.last_version(f"kworker/{WRITER}") == version
    for path in log_of(table)[:8]:
        path.unlink()
    assert log.last_version(f"kworker/{WRITER}") == version
    monkeypatch.setattr(delta_log, "_RECENT", 3)
    assert log.last_version(f"kworker/{WRITER}") == version
    assert log.last_version("kworker/nobody") == -1


def test_stateful_queries_are_told_from_stateless_ones(
    places: tuple[SparkSession, list[Sink]],
) -> None:
    """What remembers goes on from its own checkpoint alone, and is not written without a result."""
    session, _ = places
    rows = session.readStream.format("rate").load()
    double = f.udf("long")(lambda value: 2 * value)
    alone = rows.where("value > 1").select("*", double("value").alias("twice"))
    remembering = {
        "sums": alone.groupBy("twice").count(),
        "once": alone.dropDuplicates(["value"]),
        "joined": alone.join(rows.select(f.col("value").alias("other")), f.expr("other = value")),
        "windows": rows.withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 minute"))
        .count(),
    }
    assert not keeps_state(alone)
    assert [name for name, each in remembering.items() if not keeps_state(each)] == []


def log_of(table: Place) -> list[Path]:
    return sorted((table.folder / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("name", MERGED)
def test_a_merge_that_slept_adds_nothing(place: Places, name: str, *, update: bool) -> None:
    """Its keys were new when it looked."""
    table = place(f"slept_{update}".lower(), name)
    first = table.job()
    first.add(10)
    merge = first.update if update else first.merge

    def after_another(*arguments: object, **more: object) -> Any:
        second = table.job()
        second.query = "other"
        second.merge(10, 30)
        setattr(first.fence, LATE[name], step)
        return step(*arguments, **more)

    step = getattr(first.fence, LATE[name])
    setattr(first.fence, LATE[name], after_another)
    with pytest.raises(TableFenced):
        merge(10, 20)
    assert table.ids() == list(range(30))


@pytest.mark.parametrize("name", MERGED)
def test_foreign_rows_do_not_disturb_a_job(place: Places, name: str) -> None:
    """A backfill by hand, an OPTIMIZE, another service: they have no mark, or another's."""
    table = place("foreign", name)
    job, other = table.job(), table.job(writer="billing/t")
    job.add(10)
    table.session.sql(f"INSERT INTO {table.sink.name} VALUES (-1, 'y')")
    job.add(20)
    other.add(5)
    job.add(30)
    compact(table)
    job.add(40)
    held = table.job("q").held
    assert held
    assert held.positions == {0: 40}
    assert table.ids() == [-1, *sorted([*range(5), *range(40)])]


@pytest.mark.parametrize("name", MERGED)
def test_merges_record_their_position(place: Places, name: str) -> None:
    """One that finds nothing new, too: else its batch would come again for ever."""
    table = place("merged", name)
    job = table.job()
    job.merge(0, 10)
    job.merge(5, 15)
    job.merge(5, 15)
    second = table.job()
    assert second.held
    assert (second.held.batch, second.held.positions) == (2, {0: 15})
    second.query = "other"
    second.merge(10, 20)
    with pytest.raises(TableFenced):
        job.merge(10, 30)
    assert table.ids() == list(range(20))


@pytest.mark.parametrize("name", MERGED)
def test_a_complete_table_is_rewritten_by_one_job(place: Places, name: str) -> None:
    table = place("anew", name)
    first = table.job()
    first.add(10, overwrite=True)
    second = table.job()
    second.query = "other"
    second.add(20, overwrite=True)
    with pytest.raises(TableFenced):
        first.add(15, overwrite=True)
    assert table.ids() == list(range(20))


def compact(table: Place) -> None:
    name = table.sink.name
    if table.sink.table.format == "delta":
        table.session.sql(f"OPTIMIZE {name}").collect()
        return
    catalog, _, rest = name.partition(".")
    table.session.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{rest}')").collect()
