"""Tells by a table's columns if a write of rows may create the table, without CREATE TABLE."""

import re
from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

_SIMPLE_NAME = re.compile(r"\w+")
_SIMPLE = (BinaryType, BooleanType, DateType, NumericType, TimestampType)


def is_simple(columns: StructType, partitions: Sequence[str]) -> bool:
    """True if the first write of rows may create a table with these columns.

    False if CREATE TABLE must create the table before that write, because CREATE TABLE might
    change or refuse one of the columns.
    """
    names = {name.casefold() for name in partitions}
    within = [each.dataType for each in columns.fields if each.name.casefold() in names]
    nested = any(isinstance(each, ArrayType | MapType | StructType) for each in within)
    return len(within) < len(columns.fields) and not nested and _is_simple_type(columns)


def _is_simple_type(kind: DataType) -> bool:
    match kind:
        case StructType(fields=fields):
            names = {each.name.casefold() for each in fields if _SIMPLE_NAME.fullmatch(each.name)}
            return len(names) == len(fields) and all(
                not each.metadata and _is_simple_type(each.dataType) for each in fields
            )
        case ArrayType(elementType=element):
            return _is_simple_type(element)
        case MapType(keyType=key, valueType=value):
            return _is_simple_type(key) and _is_simple_type(value)
    return kind == StringType() or isinstance(kind, _SIMPLE)
