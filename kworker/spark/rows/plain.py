"""Results of which nothing can be lost: what was read of them, written out again, is their text.

That is seen at less cost than by a look at each value, which `values` describes and all others get,
and columns of most types need no more.
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
"""For the reader: a text like "NaN" would come back as one, from a column of numbers."""

_WRITTEN_AGAIN = (BooleanType, NumericType, StringType)
_AS_TEXT = (DateType, TimestampType, TimestampNTZType)


def plain_schema(schema: StructType) -> StructType | None:
    """By which a text is read that may be plain; None where a column's values do not come back."""
    fields = [StructField(field.name, _read_as(field.dataType)) for field in schema.fields]
    return StructType(fields) if all(_comes_back(field.dataType) for field in fields) else None


def _read_as(type_: DataType) -> DataType:
    return StringType() if isinstance(type_, _AS_TEXT) else type_


def _comes_back(type_: DataType) -> bool:
    """Of a map each key would come back, one that stands there twice, too."""
    if isinstance(type_, ArrayType):
        return _comes_back(type_.elementType)
    if isinstance(type_, StructType):
        return all(_comes_back(field.dataType) for field in type_.fields)
    return isinstance(type_, _WRITTEN_AGAIN)


def may_be_plain(text: str, schema: StructType) -> str:
    """SQL that tells whether a text is worth the reading: its first field is the schema's."""
    first = json.dumps(schema.names[0], ensure_ascii=False)
    return f"startswith({text}, {literal(f'{{{first}:')})"


def is_plain(plain: str, text: str, schema: StructType) -> str:
    """SQL that tells whether what was read of a text is all of it, and each column holds its part.

    Of the text go the spaces that Python's own encoder writes before a string or after a name: no
    others, for inside a string stands no quote without a backslash before it, and a space that
    went from there would be missed in what is written again.
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
    """SQL of what is written of a value of a result that is plain."""
    return lossless_cast(value, type_) if isinstance(type_, _AS_TEXT) else value
