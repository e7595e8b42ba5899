"""The columns of a table's rows, as Spark SQL text and schemas: built without a JVM."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from kworker.config.model import TableSettings
from kworker.config.spark_rules import LEADING_COLUMNS, RESCUED_COLUMN
from kworker.spark.checkpoints.guard import is_merged
from kworker.spark.rows.plain import plain_value
from kworker.spark.rows.values import fits, whole_characters, written
from kworker.spark.sql import identifier, literal

SOURCE_COLUMNS = LEADING_COLUMNS[:-1]  # all but the key: they identify a result
LATEST_STAMP_MS = 253_402_300_799_999  # the end of the year 9999: Spark's calendar ends there


def header(name: str) -> str:
    """SQL for a Kafka header as text; NULL if the record does not have the header."""
    return f"CAST(get(filter(headers, h -> h.key = {literal(name)}), 0).value AS STRING)"


def text_of(bytes_: str) -> str:
    """SQL for bytes as text; NULL if the bytes are not UTF-8."""
    return f"CASE WHEN is_valid_utf8(CAST({bytes_} AS STRING)) THEN CAST({bytes_} AS STRING) END"


def encoded(bytes_: str) -> str:
    """SQL that encodes bytes in base64, for a key or value that is not UTF-8."""
    return f"concat('base64:', base64({bytes_}))"


ENVELOPE = (
    "key",
    "value",
    f"split({header('kworker-source')}, '/') AS position",
    f"{header('kworker-index')} AS number",
    f"{header('kworker-table')} AS routed",
    "coalesce(exists(headers, h -> h.key = 'kworker-replay'), false) AS replayed",
    "named_struct('key', key, 'value', value, 'headers', headers, 'time', timestamp) AS record",
)
"""The record and its headers, from Kafka's columns. A topic's name has no slash."""

RESULT = (
    "get(position, 0) AS source_topic",
    "try_cast(get(position, 1) AS INT) AS source_partition",
    "try_cast(get(position, 2) AS BIGINT) AS source_offset",
    "CASE WHEN number IS NULL THEN 0 ELSE try_cast(number AS INT) END AS source_index",
    "try_cast(get(position, 3) AS BIGINT) AS millis",
    f"coalesce({text_of('key')}, {encoded('key')}) AS key",
    f"{text_of('value')} AS text",
    "value",
    "size(position) AS parts",
    "routed",
    "replayed",
    "record",
)
"""A result's columns, from ENVELOPE. A malformed position and a text not in UTF-8 are NULL."""

IS_RESULT = (
    "coalesce(parts = 4 AND source_topic <> '' AND source_partition >= 0"
    " AND source_offset >= 0 AND source_index >= 0 AND millis IS NOT NULL, false)"
)
"""SQL that is true if kworker wrote the record. Other records are counted and left out."""

LEADING = (
    *SOURCE_COLUMNS[:-1],
    # A record without a timestamp has -1 there.
    f"CASE WHEN millis BETWEEN 0 AND {LATEST_STAMP_MS} THEN timestamp_millis(millis) END"
    " AS source_timestamp",
    "key",
)
"""The columns that every row begins with."""


def wanted(table: TableSettings) -> str:
    """SQL that is true for the results that belong to this table."""
    routed = f"routed = {literal(table.select)}" if table.select else "routed IS NULL"
    return routed if table.replays else f"{routed} AND NOT replayed"


def has_schema(table: TableSettings) -> bool:
    """True if the table has a schema. Without a schema its rows hold the text of the results."""
    return "schema_" in table.model_fields_set


def leaves_out_repeats(table: TableSettings) -> bool:
    """True if repeated results are left out: if batches are merged, and the mode is "append"."""
    return is_merged(table) and table.mode == "append"


def missing_columns(table: TableSettings, columns: list[str]) -> list[str]:
    """Returns `key: problem` for each configured column that the rows do not have."""
    known = {name.casefold() for name in columns}
    dedupe = SOURCE_COLUMNS if leaves_out_repeats(table) else ()
    named = {"merge_on": table.merge_on, "partition_by": table.partition_by, "dedupe": dedupe}
    return [
        f"{key}: the rows have no column {name}; they have {', '.join(columns)}"
        for key, names in named.items()
        for name in names
        if name.casefold() not in known
    ]


def misfit_column(schema: StructType) -> str:
    """Chooses a name that the schema lacks, for the column of texts that do not fit the schema."""
    taken = {name.casefold() for name in schema.names}
    name = "_misfit"
    while name in taken:
        name += "_"
    return name


def parsed_columns(schema: StructType, *, plain: bool) -> list[str]:
    """SQL for the columns of a table's row, computed from a result's text and its parsed JSON.

    If the argument `plain` is True, the input has two more columns: `plain`, parsed from the text,
    and `is_plain`, true where this parsing lost nothing. Where `is_plain` is true, values are taken
    from `plain` unchecked. The column `_rescued` holds the whole text of a result, unless the other
    columns hold all of it. They do if the text is one JSON object, and each of its fields occurs
    once, is in the schema, and fits its type. A value that is not UTF-8 is in `_rescued` in base64.
    """
    misfit = f"parsed.{identifier(misfit_column(schema))}"
    conditions = (
        f"parsed IS NOT NULL AND {misfit} IS NULL",
        _is_single_object("text"),
        fits("parsed", schema),
        whole_characters("text"),
        _names_every_field("fields", "text", schema),
    )
    whole = f"coalesce({' AND '.join(filter(None, conditions))}, false)"
    lost = f"NOT is_plain AND NOT {whole}" if plain else f"NOT {whole}"
    rescued = (
        f"CASE WHEN text IS NULL THEN {encoded('value')} WHEN {lost} THEN text END"
        f" AS {RESCUED_COLUMN}"
    )
    columns = (_column(each, plain=plain) for each in schema.fields)
    return [*LEADING_COLUMNS, *columns, rescued]


def _column(field: StructField, *, plain: bool) -> str:
    name = identifier(field.name)
    value = written(f"parsed.{name}", field.dataType)
    if plain:
        at_once = plain_value(f"plain.{name}", field.dataType)
        value = f"CASE WHEN is_plain THEN {at_once} ELSE {value} END"
    return f"{value} AS {name}"


TEXT_COLUMNS = (
    *LEADING_COLUMNS,
    "text AS value",
    f"CASE WHEN text IS NULL THEN {encoded('value')} END AS {RESCUED_COLUMN}",
)
"""The row of a table without a schema."""


def _is_single_object(text: str) -> str:
    """SQL that is true if a text is one JSON object and nothing follows the object.

    The parser would ignore any text after it. A text whose first closing brace is its last
    character is accepted at once; in any other text the values are counted.
    """
    at_a_glance = f"octet_length(substring_index({text}, '}}', 1)) = octet_length({text}) - 1"
    return f"({at_a_glance} OR json_array_length(concat('[', {text}, ']')) = 1)"


def _names_every_field(keys: str, text: str, schema: StructType, depth: int = 0) -> str:
    """SQL that is true if each field of an object is in the schema and occurs once.

    Checks the fields of nested objects, too. The SQL compares the number of fields with the number
    that is left by `array_intersect`, which drops unknown and repeated fields.
    """
    known = f"array({', '.join(literal(name) for name in schema.names)})"
    named = f"size({keys}) = size(array_intersect({keys}, {known}))"
    return " AND ".join((named, *_inner_objects_named(text, schema, depth)))


def _inner_objects_named(text: str, schema: StructType, depth: int) -> Iterator[str]:
    for field in schema.fields:
        if _holds_objects(field.dataType):
            fields = f"from_json({text}, 'MAP<STRING, STRING>')"
            member = f"array(try_element_at({fields}, {literal(field.name)}))"
            yield _all_objects_named(member, field.dataType, depth + 1)


def _all_objects_named(texts: str, type_: DataType, depth: int) -> str:
    """SQL that is true if no object in an array of JSON texts has an unknown or repeated field."""
    text = f"t{depth}"
    if isinstance(type_, StructType):
        named = _names_every_field(f"json_object_keys({text})", text, type_, depth)
    elif isinstance(type_, ArrayType):
        items = f"from_json({text}, 'ARRAY<STRING>')"
        named = _all_objects_named(items, type_.elementType, depth + 1)
    else:
        assert isinstance(type_, MapType)
        values = f"map_values(from_json({text}, 'MAP<STRING, STRING>'))"
        named = _all_objects_named(values, type_.valueType, depth + 1)
    return f"forall({texts}, {text} -> {text} IS NULL OR ({named}))"


def _holds_objects(type_: DataType) -> bool:
    if isinstance(type_, ArrayType):
        return _holds_objects(type_.elementType)
    if isinstance(type_, MapType):
        return _holds_objects(type_.valueType)
    return isinstance(type_, StructType)


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A new column, and the column after which it is placed; None if it comes first."""

    field: StructField
    after: str | None


def added_columns(have: StructType, want: StructType) -> list[AddedColumn]:
    """Returns the columns that only `want` has. Raises ValueError for other differences."""
    of_table = {field.name.casefold(): field for field in have.fields}
    of_rows = {field.name.casefold(): field for field in want.fields}
    for name, field in of_table.items():
        if name not in of_rows:
            raise ValueError(f"the table has a column {field.name}, but the rows do not")
        if not _same_type(field.dataType, of_rows[name].dataType):
            new, old = of_rows[name].dataType.simpleString(), field.dataType.simpleString()
            raise ValueError(f"column {field.name} is {old} in the table, but {new} in the rows")
    previous = [None, *want.names]
    return [
        AddedColumn(field, after)
        for field, after in zip(want.fields, previous, strict=False)
        if field.name.casefold() not in of_table
    ]


class Repartitioned(ValueError):
    """Raised when a table is partitioned by other columns than the configuration says."""


def check_partitions(have: Sequence[str], want: Sequence[str]) -> None:
    """Raises Repartitioned if the partition columns differ: a table can only have one layout."""
    if [name.casefold() for name in have] != [name.casefold() for name in want]:
        in_table, given = ", ".join(have) or "nothing", ", ".join(want) or "empty"
        raise Repartitioned(f"the table is partitioned by {in_table}, but partition_by is {given}")


# Iceberg has no shorter integers.
_WIDENED = {"tinyint": "int", "smallint": "int"}


def _same_type(have: DataType, want: DataType) -> bool:
    of_table, of_rows = have.simpleString(), want.simpleString()
    return of_table in (of_rows, _WIDENED.get(of_rows))


IN_PARTITION = ("source_offset", "source_index")
"""The order of two rows of one source partition: timestamps may go back."""
LATEST = ("source_timestamp", *SOURCE_COLUMNS[:-1])
"""The order of two rows of different partitions, in whatever order they arrive."""

SEEN = "_kworker_seen"
"""A column for updates: the batch's last offset with the row's keys, by source partition."""


def merge_statement(
    target: str, rows: str, columns: Collection[str], keys: Iterable[str], *, update: bool
) -> str:
    """Returns the MERGE that inserts the rows whose keys are not in the table.

    With `update`, a row replaces the table's row with the same keys in two cases. First, if it is
    not older: rows of one source partition are compared by offset, other rows by timestamp. Second,
    if the batch had any row with these keys that came from the source partition of the table's row,
    but from a higher offset. The column SEEN has the offsets for this comparison.
    """
    on = " AND ".join(f"t.{identifier(key)} <=> r.{identifier(key)}" for key in keys)
    ordered = set(LATEST) <= set(columns)
    later = f" AND {_LATER}" if ordered else ""
    names = [identifier(column) for column in columns if column != SEEN]
    assignments = ", ".join(f"t.{name} = r.{name}" for name in names)
    matched = f" WHEN MATCHED{later} THEN UPDATE SET {assignments}" if update else ""
    values = ", ".join(f"r.{name}" for name in names)
    return (
        f"MERGE INTO {target} t USING {rows} r ON {on}{matched}"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )


def _later(columns: Iterable[str]) -> str:
    r, t = (", ".join(f"{alias}.{column}" for column in columns) for alias in "rt")
    return f"struct({r}) >= struct({t})"


_LATER = (
    "(CASE WHEN r.source_topic = t.source_topic AND r.source_partition = t.source_partition"
    f" THEN {_later(IN_PARTITION)} ELSE {_later(LATEST)} END"
    f" OR exists(r.{SEEN}, s -> s.source_topic = t.source_topic"
    " AND s.source_partition = t.source_partition"
    " AND struct(s.source_offset, s.source_index) > struct(t.source_offset, t.source_index)))"
)
