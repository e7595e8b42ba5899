"""Plain results: written out again after parsing they equal their text, so nothing is lost.

This check costs less than that of each value in `values`, which all other results get, and
suffices for columns of most types.
"""

import json

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kworker.spark.rows.values import lossless_cast
from kworker.spark.sql import identifier, literal

PLAIN_OPTIONS = {"allowNonNumericNumbers": "false"}
"""Options of the reader: else a text like "NaN" in a column of numbers would pass the check."""

_WRITTEN_AGAIN = (BooleanType, NumericType, StringType)
_AS_TEXT = (DateType, TimestampType, TimestampNTZType)


def plain_schema(schema: StructType) -> StructType | None:
    """The schema to parse a result with, so that `is_plain` can compare the result with its text.

    Dates and times are parsed as strings. None if a column has a type, such as a map, that does not
    allow the comparison.
    """
    fields = [StructField(field.name, _read_as(field.dataType)) for field in schema.fields]
    return StructType(fields) if all(_comes_back(field.dataType) for field in fields) else None


def _read_as(type_: DataType) -> DataType:
    return StringType() if isinstance(type_, _AS_TEXT) else type_


def _comes_back(type_: DataType) -> bool:
    """True if a value of the type, parsed from JSON and written as JSON, gives the same text again.

    False for a map: a map with a repeated key would give the same text, but must not be accepted.
    """
    if isinstance(type_, ArrayType):
        return _comes_back(type_.elementType)
    if isinstance(type_, StructType):
        return all(_comes_back(field.dataType) for field in type_.fields)
    return isinstance(type_, _WRITTEN_AGAIN)


def may_be_plain(text: str, schema: StructType) -> str:
    """SQL that is true if a JSON text begins with the schema's first field.

    If it is false, `is_plain` would be false, too, and need not be computed.
    """
    first = json.dumps(schema.names[0], ensure_ascii=False)
    return f"startswith({text}, {literal(f'{{{first}:')})"


def is_plain(plain: str, text: str, schema: StructType) -> str:
    """SQL that is true if `plain`, parsed from `text`, gives `text` again when written as JSON.

    Before it compares, the SQL removes from `text` the spaces that Python's encoder writes after a
    field's colon and before a string. This may also remove a space inside a string. Then the SQL is
    false, and each value of the result is checked on its own, which costs more.
    """
    dense = f"replace(replace({text}, '\": ', '\":'), ', \"', ',\"')"
    same = f"to_json({plain}, map('ignoreNullFields', 'false')) = {dense}"
    held = (
        f"({value} IS NULL OR {lossless_cast(value, field.dataType)} IS NOT NULL)"
        for field in schema.fields
        if isinstance(field.dataType, _AS_TEXT)
        for value in (f"{plain}.{identifier(field.name)}",)
    )
    return f"coalesce({' AND '.join((same, *held))}, false)"


def plain_value(value: str, type_: DataType) -> str:
    """SQL for the value of a column in a result that `is_plain` accepts."""
    return lossless_cast(value, type_) if isinstance(type_, _AS_TEXT) else value
