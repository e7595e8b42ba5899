"""Rules for `[spark]` and its tables: the form of values, keys that exclude each other. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from kworker.config.keys import Key, nearest
from kworker.config.model import Settings, SparkSettings, TableSettings
from kworker.config.secrets import without_secrets
from kworker.config.validation import Problem
from kworker.core.duration import parse_duration

LEADING_COLUMNS = (
    "source_topic",
    "source_partition",
    "source_offset",
    "source_index",
    "source_timestamp",
    "key",
)
RESCUED_COLUMN = "_rescued"
RECORD_COLUMN = "_record"  # passed to transforms, never written
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,80}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TRANSACTIONAL = ("delta", "iceberg")
_OWN_CATALOG = "spark_catalog"  # the catalog of a name without one
_JAVA_OPTIONS = tuple(
    f"spark.{process}.{kind}JavaOptions"
    for process in ("driver", "executor")
    for kind in ("extra", "default")
)


def tables(config: Settings) -> Iterator[Problem]:
    """Checks `[spark]` and each of its tables, if there is a `[spark]`."""
    if config.spark is None:
        return
    yield from _trigger(config.spark)
    yield from _shared(config.spark)
    yield from _public_options(config.spark.conf)
    for index, table in enumerate(config.spark.tables):
        key: Key = ("spark", "tables", index)
        for rule in (_name, _place, _mode, _dedupe, _transform, _columns):
            yield from rule(table, key)
        yield from _catalog(table, key, config.spark.conf)


def _trigger(spark: SparkSettings) -> Iterator[Problem]:
    if spark.trigger == "available-now":
        return
    try:
        parse_duration(spark.trigger)
    except ValueError:
        expected = f'expected a duration such as "5s", or "available-now", got "{spark.trigger}"'
        yield Problem(("spark", "trigger"), expected)


def _shared(spark: SparkSettings) -> Iterator[Problem]:
    """Checks that no two tables have the same name, or write to the same path or table."""
    for what in ("name", "path", "table"):
        values = Counter(getattr(table, what) for table in spark.tables)
        for value, count in values.items():
            if value and count > 1:
                text = f'{count} tables have {what} = "{value}"; each needs its own'
                yield Problem(("spark", "tables"), text)


def _public_options(conf: Mapping[str, str]) -> Iterator[Problem]:
    """Checks that no option of a JVM holds a password: `ps` shows its command line to all users."""
    for name in _JAVA_OPTIONS:
        if without_secrets(options := conf.get(name, "")) != options:
            yield Problem(
                ("spark", "conf", name),
                "a password in it is shown by ps; put the option into a file that only the"
                " service's user may read, and give @ and the file's path in its place",
            )


def _name(table: TableSettings, at: Key) -> Iterator[Problem]:
    if not _NAME.fullmatch(table.name):
        yield Problem(
            (*at, "name"),
            "expected letters, digits, dots, - or _, since it names a consumer group,"
            f' got "{table.name[:80]}"',
        )


def _place(table: TableSettings, at: Key) -> Iterator[Problem]:
    if table.path and table.table:
        yield Problem((*at, "path"), "path and table exclude each other; keep one")
    if table.table and table.format == "parquet":
        yield Problem((*at, "table"), "a parquet table is a folder of files; give path instead")
    if not table.path and not table.table:
        text = 'missing; give path = "data/orders" or table = "catalog.schema.orders"'
        yield Problem((*at, "path"), text, ((*at, "table"),))


def _catalog(table: TableSettings, at: Key, conf: Mapping[str, str]) -> Iterator[Problem]:
    """Checks that a table is not in a catalog that forgets its tables when Spark ends.

    The table's folder would remain without the table, and make the next start fail.
    """
    if not table.table:
        return
    first, *others = table.table.split(".")
    named = len(others) > 1 or f"spark.sql.catalog.{first}" in conf
    catalog = first if named else conf.get("spark.sql.defaultCatalog", _OWN_CATALOG)
    if catalog == _OWN_CATALOG and not _own_lasts(conf):
        yield Problem(
            (*at, "table"),
            f'"{table.table}" is in Spark\'s own catalog, which forgets its tables when Spark ends;'
            " give path instead, or a table of a catalog that [spark.conf] defines with"
            ' "spark.sql.catalog.…"',
        )


def _own_lasts(conf: Mapping[str, str]) -> bool:
    """Returns True if Spark's own catalog is configured to outlive the session, as Hive's does."""
    properties = f"spark.sql.catalog.{_OWN_CATALOG}."
    hive = conf.get("spark.sql.catalogImplementation") == "hive"
    return hive or any(key.startswith(properties) for key in conf)


def _mode(table: TableSettings, at: Key) -> Iterator[Problem]:
    also = ((*at, "mode"), (*at, "format"), (*at, "merge_on"))
    if table.mode == "complete" and table.format == "parquet":
        text = 'parquet files cannot be rewritten as a whole; set format = "delta"'
        yield Problem((*at, "mode"), text, also)
    if table.mode == "update" and table.format not in _TRANSACTIONAL:
        text = f'{table.format} cannot be updated; set format = "delta" or "iceberg"'
        yield Problem((*at, "mode"), text, also)
    if table.mode == "update" and not table.merge_on:
        text = 'missing for mode = "update"; give the columns that tell rows apart'
        yield Problem((*at, "merge_on"), text, also)
    if table.mode != "update" and table.merge_on:
        text = f'has no effect with mode = "{table.mode}"; set mode = "update", or leave it out'
        yield Problem((*at, "merge_on"), text, also)


def _dedupe(table: TableSettings, at: Key) -> Iterator[Problem]:
    if table.dedupe and table.format not in _TRANSACTIONAL:
        text = f'{table.format} cannot merge; set format = "delta" or "iceberg"'
        yield Problem((*at, "dedupe"), text, ((*at, "format"),))


def _transform(table: TableSettings, at: Key) -> Iterator[Problem]:
    if table.transform and not _FUNCTION.fullmatch(table.transform):
        text = f'expected "module:function", got "{table.transform}"'
        yield Problem((*at, "transform"), text)


def _columns(table: TableSettings, at: Key) -> Iterator[Problem]:
    own = [name.casefold() for name in column_names(table.schema_)]
    if not own:
        text = 'expected columns such as "order_id BIGINT, total DOUBLE"'
        yield Problem((*at, "schema"), text)
    for name, count in Counter(own).items():
        if name in (*LEADING_COLUMNS, RESCUED_COLUMN, RECORD_COLUMN):
            text = f'column "{name}" is added by kworker to every row; rename yours'
            yield Problem((*at, "schema"), text)
        if count > 1:
            yield Problem((*at, "schema"), f'column "{name}" is listed {count} times; keep one')
    if not table.transform:  # a transform's output has other columns
        yield from _named_columns(table, at, [*LEADING_COLUMNS, *own, RESCUED_COLUMN])


def _named_columns(table: TableSettings, at: Key, known: list[str]) -> Iterator[Problem]:
    for key, names in (("merge_on", table.merge_on), ("partition_by", table.partition_by)):
        for name in names:
            if name.casefold() not in known:
                text = f'the table has no column "{name}"{nearest(name, known)}'
                yield Problem((*at, key), text, ((*at, "schema"), (*at, "transform")))


def column_names(ddl: str) -> list[str]:
    """Returns the column names of a DDL schema; a comma inside a type separates no columns."""
    return [match[1] or match[2] for part in _top_level(ddl) if (match := _COLUMN.match(part))]


_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:`]+))")
# Brackets, which may hold commas of their own, from the inside out.
_NESTED = re.compile(r"\([^()<>]*\)|<[^()<>]*>")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def _top_level(ddl: str) -> list[str]:
    text = _QUOTED.sub("", ddl)
    while (shorter := _NESTED.sub("", text)) != text:
        text = shorter
    return text.split(",")
