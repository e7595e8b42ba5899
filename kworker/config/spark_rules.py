"""Rules over `[spark]`: what each table is made of, and what does not go together. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from kworker.config.keys import Key, nearest
from kworker.config.model import Settings, SparkSettings, TableSettings
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
RECORD_COLUMN = "_record"  # for transforms, and not written
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,80}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TRANSACTIONAL = ("delta", "iceberg")
_OWN_CATALOG = "spark_catalog"  # where a name without a catalog is


def tables(config: Settings) -> Iterator[Problem]:
    """The rules of all tables; nothing without `[spark]`."""
    if config.spark is None:
        return
    yield from _trigger(config.spark)
    yield from _shared(config.spark)
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
    """Names are groups and checkpoints, places are data: neither may be shared."""
    for what in ("name", "path", "table"):
        values = Counter(getattr(table, what) for table in spark.tables)
        for value, count in values.items():
            if value and count > 1:
                text = f'{count} tables have {what} = "{value}"; each needs its own'
                yield Problem(("spark", "tables"), text)


def _name(table: TableSettings, at: Key) -> Iterator[Problem]:
    if not _NAME.fullmatch(table.name):
        expected = "expected letters, digits, dots, - or _, since it names a consumer group"
        yield Problem((*at, "name"), f'{expected}, got "{table.name[:80]}"')


def _place(table: TableSettings, at: Key) -> Iterator[Problem]:
    if table.path and table.table:
        yield Problem((*at, "path"), "not together with table; keep one")
    if table.table and table.format == "parquet":
        yield Problem((*at, "table"), "parquet tables are plain files in a folder; give a path")
    if not table.path and not table.table:
        text = 'missing; give path = "data/orders" or table = "catalog.schema.orders"'
        yield Problem((*at, "path"), text, ((*at, "table"),))


def _catalog(table: TableSettings, at: Key, conf: Mapping[str, str]) -> Iterator[Problem]:
    """The session's own catalog forgets its tables; their folders then stop the next start."""
    if not table.table:
        return
    first, *others = table.table.split(".")
    named = len(others) > 1 or f"spark.sql.catalog.{first}" in conf
    catalog = first if named else conf.get("spark.sql.defaultCatalog", _OWN_CATALOG)
    if catalog == _OWN_CATALOG and not _own_lasts(conf):
        text = f'"{table.table}" is in Spark\'s own catalog, which forgets its tables at each end'
        step = 'give catalog.schema.table, with "spark.sql.catalog.…" in [spark.conf], or path'
        yield Problem((*at, "table"), f"{text}; {step}")


def _own_lasts(conf: Mapping[str, str]) -> bool:
    """Hive's does, and one with properties; Delta's alone hands on to the one in memory."""
    properties = f"spark.sql.catalog.{_OWN_CATALOG}."
    hive = conf.get("spark.sql.catalogImplementation") == "hive"
    return hive or any(key.startswith(properties) for key in conf)


def _mode(table: TableSettings, at: Key) -> Iterator[Problem]:
    also = ((*at, "mode"), (*at, "format"), (*at, "merge_on"))
    if table.mode == "complete" and table.format == "parquet":
        text = 'parquet files cannot be rewritten as a whole; set format = "delta"'
        yield Problem((*at, "mode"), text, also)
    if table.mode == "update" and table.format not in _TRANSACTIONAL:
        text = f'{table.format} takes no updates; set format = "delta" or "iceberg"'
        yield Problem((*at, "mode"), text, also)
    if table.mode == "update" and not table.merge_on:
        text = 'missing for mode = "update"; give the columns that tell rows apart'
        yield Problem((*at, "merge_on"), text, also)
    if table.mode != "update" and table.merge_on:
        text = f'means nothing in mode = "{table.mode}"; set mode = "update", or leave it out'
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
            text = f'column "{name}" is one that kworker adds to every row; name it differently'
            yield Problem((*at, "schema"), text)
        if count > 1:
            yield Problem((*at, "schema"), f'column "{name}" is there {count} times')
    if not table.transform:  # whose output has columns of its own
        yield from _named_columns(table, at, [*LEADING_COLUMNS, *own, RESCUED_COLUMN])


def _named_columns(table: TableSettings, at: Key, known: list[str]) -> Iterator[Problem]:
    for key, names in (("merge_on", table.merge_on), ("partition_by", table.partition_by)):
        for name in names:
            if name.casefold() not in known:
                text = f'the table has no column "{name}"{nearest(name, known)}'
                yield Problem((*at, key), text, ((*at, "schema"), (*at, "transform")))


def column_names(ddl: str) -> list[str]:
    """The columns of a DDL schema, without their types: commas inside a type part nothing."""
    return [match[1] or match[2] for part in _top_level(ddl) if (match := _COLUMN.match(part))]


_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:`]+))")
# Whatever holds commas of its own, from the inside out.
_NESTED = re.compile(r"\([^()<>]*\)|<[^()<>]*>")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def _top_level(ddl: str) -> list[str]:
    text = _QUOTED.sub("", ddl)
    while (shorter := _NESTED.sub("", text)) != text:
        text = shorter
    return text.split(",")
