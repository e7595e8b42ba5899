"""Plain results: their text stays the same if it is parsed and written as JSON again.

If both texts are equal, the parser has lost nothing. To compare the texts costs less than to check
each value by the module `values`, as is done for all other results. The comparison suffices for
columns of most types.
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
    """Returns the schema for the parser of plain results, in which dates and times are strings.

    `is_plain` checks a result that was parsed with this schema: it writes the result as JSON, and
    compares this JSON with the result's text. Returns None if a column has a type for which equal
    texts do not prove that nothing was lost, such as a map.
    """
    fields = [StructField(field.name, _read_as(field.dataType)) for field in schema.fields]
    return StructType(fields) if all(_comes_back(field.dataType) for field in fields) else None


def _read_as(type_: DataType) -> DataType:
    return StringType() if isinstance(type_, _AS_TEXT) else type_


def _comes_back(type_: DataType) -> bool:
    """True if `is_plain` can check values of the type.

    `is_plain` writes a parsed value as JSON, and is true if this gives the original text. A map
    cannot be checked in this way: a map with a repeated key gives the original text, too, although
    `is_plain` must be false for it.
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
