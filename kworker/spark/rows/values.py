"""The lossless conversion of JSON to a column's type, as Spark SQL text: built without a JVM.

Spark's JSON reader silently rounds, truncates and wraps around. So values of types that it would
change are read as a VARIANT, which keeps the original, and written only if nothing is lost.
"""

from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kworker.spark.sql import identifier, literal

# Only Spark reads year 0 and years of five digits.
_DAY = r"(?!0000)\d{4}-\d{2}-\d{2}"
_TIME = r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6}0*)?)?"
_ZONE = r" ?(Z|UTC|[+-]\d{2}(:?\d{2})?)"
# A character beyond 16 bits is two escapes; one without the other is no character.
_HIGH, _LOW = r"\\u[dD][89abAB]..", r"\\u[dD][c-fC-F].."
_HALF = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_CHANGED = (
    StringType,
    DecimalType,
    DoubleType,
    FloatType,
    DateType,
    TimestampType,
    TimestampNTZType,
)


def read_schema(schema: StructType) -> StructType:
    """The schema with which a result's JSON is parsed.

    It has VARIANT in place of each type for which Spark's parser might change a value, for example
    by rounding. It has SMALLINT in place of TINYINT.
    """
    return StructType([StructField(f.name, _read_as(f.dataType)) for f in schema.fields])


def written(value: str, type_: DataType, depth: int = 0) -> str:
    """SQL that converts `value`, which was parsed with `read_schema`, to the column's type.

    The result is NULL if the conversion would lose anything.
    """
    if _read_as(type_) == type_:
        return value
    inner = f"v{depth}"
    if isinstance(type_, ArrayType):
        return f"transform({value}, {inner} -> {written(inner, type_.elementType, depth + 1)})"
    if isinstance(type_, MapType):
        each = written(inner, type_.valueType, depth + 1)
        return f"transform_values({value}, (k{depth}, {inner}) -> {each})"
    if isinstance(type_, StructType):
        fields = (
            f"{literal(field.name)}, {written(_of(value, field), field.dataType, depth)}"
            for field in type_.fields
        )
        return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"
    if isinstance(type_, ByteType):
        return f"try_cast({value} AS TINYINT)"
    if isinstance(type_, (DoubleType, FloatType)):
        return _number(value, type_)
    return _text(value, type_)


def fits(value: str, type_: DataType, depth: int = 0) -> str:
    """SQL that is true if `value` can become the type without loss; "" if no check is needed."""
    if _read_as(type_) == type_:
        return ""
    inner = f"v{depth}"
    if isinstance(type_, StructType):
        each = (fits(_of(value, field), field.dataType, depth) for field in type_.fields)
        return " AND ".join(filter(None, each))
    if isinstance(type_, ArrayType):
        every = fits(inner, type_.elementType, depth + 1)
        return f"({value} IS NULL OR forall({value}, {inner} -> {every}))"
    if isinstance(type_, MapType):
        every = fits(inner, type_.valueType, depth + 1)
        return f"({value} IS NULL OR forall(map_values({value}), {inner} -> {every}))"
    nothing = f"{value} IS NULL"
    if not isinstance(type_, ByteType):
        nothing += f" OR {_kind(value)} = 'VOID'"
    return f"({nothing} OR {written(value, type_)} IS NOT NULL)"


def lossless_cast(text: str, type_: DataType) -> str:
    """SQL that casts a text to a date, time or decimal; NULL if that would lose anything."""
    matches = f"{text} RLIKE {literal(f'^({_pattern(type_)})$')}"
    return f"CASE WHEN {matches} THEN try_cast({text} AS {type_.simpleString()}) END"


def whole_characters(text: str) -> str:
    """SQL that is true if no Unicode escape in a text is an unpaired surrogate."""
    return f"NOT (contains({text}, {literal(chr(92) + 'u')}) AND {text} RLIKE {literal(_HALF)})"


def _read_as(type_: DataType) -> DataType:
    if isinstance(type_, _CHANGED):
        return VariantType()
    if isinstance(type_, ByteType):
        return ShortType()  # as a byte, 200 would be read as -56
    if isinstance(type_, ArrayType):
        return _inside(type_, type_.elementType, ArrayType)
    if isinstance(type_, MapType):
        return _inside(type_, type_.valueType, lambda value: MapType(StringType(), value))
    if isinstance(type_, StructType):
        fields = [StructField(f.name, _read_as(f.dataType)) for f in type_.fields]
        changes = any(f.dataType != g.dataType for f, g in zip(fields, type_.fields, strict=True))
        return StructType(fields) if changes else type_
    return type_


def _inside(type_: DataType, inner: DataType, rebuilt: Callable[[DataType], DataType]) -> DataType:
    read = _read_as(inner)
    return type_ if read == inner else rebuilt(read)


def _text(value: str, type_: DataType) -> str:
    """SQL that converts the VARIANT `value` to text, and then this text to `type_`.

    The result is NULL if the value is of a kind that does not fit, such as a number for a date. It
    is also NULL if the conversion would lose anything.
    """
    text = f"variant_get({value}, '$', 'string')"
    if isinstance(type_, StringType):
        return f"CASE WHEN {_is_string(value)} THEN {text} END"
    # A VARIANT holds a number with an exponent or over 38 digits as a DOUBLE: digits may be lost.
    kind = f"{_kind(value)} <> 'DOUBLE'" if isinstance(type_, DecimalType) else _is_string(value)
    return f"CASE WHEN {kind} THEN {lossless_cast(text, type_)} END"


def _pattern(type_: DataType) -> str:
    """A regular expression for texts of `type_`.

    For a text that does not match, the SQL of `lossless_cast` is NULL.
    """
    if isinstance(type_, DateType):
        return _DAY
    if isinstance(type_, TimestampType):
        return f"{_DAY}({_TIME}({_ZONE})?)?"
    if isinstance(type_, TimestampNTZType):
        return f"{_DAY}({_TIME})?"
    assert isinstance(type_, DecimalType)
    return rf"-?\d+(\.\d{{0,{type_.scale}}}0*)?"


def _number(value: str, type_: DataType) -> str:
    """SQL that converts a number to DOUBLE or FLOAT.

    NULL for an integer that the type cannot hold exactly, and for a number that would become 0 or
    infinite. A fraction becomes the nearest DOUBLE. It only becomes the nearest FLOAT if that FLOAT
    is written with the same digits; otherwise it becomes NULL.
    """
    number, kind = f"try_variant_get({value}, '$', 'double')", _kind(value)
    whole = f"try_cast({number} AS BIGINT) = try_variant_get({value}, '$', 'bigint')"
    exact = (
        f"CASE WHEN {kind} = 'BIGINT' OR {kind} LIKE 'DECIMAL(%,0)' THEN {whole}"
        f" WHEN {kind} LIKE 'DECIMAL%' THEN true"
        f" WHEN {kind} = 'DOUBLE' THEN {number} <> 0 AND abs({number}) < double('Infinity') END"
    )
    if isinstance(type_, FloatType):
        single = f"try_variant_get({value}, '$', 'float')"
        exact = f"{exact} AND double(string({single})) = {number}"
        return f"CASE WHEN {exact} THEN {single} END"
    return f"CASE WHEN {exact} THEN {number} END"


def _kind(value: str) -> str:
    return f"schema_of_variant({value})"


def _is_string(value: str) -> str:
    return f"{_kind(value)} = 'STRING'"


def _of(value: str, field: StructField) -> str:
    return f"{value}.{identifier(field.name)}"
