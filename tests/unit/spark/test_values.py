"""What is asked of each value before it is written: SQL, made without a JVM.

What it answers is in tests/proofs/test_true_tables.py, of more than 250 values.
"""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from kworker.spark.rows.plain import is_plain, may_be_plain, plain_schema
from kworker.spark.rows.values import fits, read_schema, written


def of(type_: DataType) -> StructType:
    return StructType([StructField("a", type_)])


@pytest.mark.parametrize("type_", [LongType(), BinaryType(), BooleanType(), of(LongType())])
def test_types_that_are_read_without_loss_cost_nothing(type_: DataType) -> None:
    schema = of(type_)
    assert read_schema(schema) == schema
    assert written("parsed.`a`", type_) == "parsed.`a`"
    assert fits("parsed", schema) == ""


def test_a_lossy_type_is_read_as_variant_inside_others_too() -> None:
    schema = of(MapType(StringType(), DateType()))
    assert read_schema(schema) == of(MapType(StringType(), VariantType()))
    assert written("m", schema.fields[0].dataType).startswith("transform_values(m, (k0, v0) -> ")
    assert "forall(map_values(parsed.`a`), v0 -> (v0 IS NULL OR " in fits("parsed", schema)


def test_a_name_with_a_backtick_or_a_quote_stays_one_name() -> None:
    schema = of(StructType([StructField("it's `x`", DateType())]))
    assert "parsed.`a`.`it's ``x```" in fits("parsed", schema)
    assert r"named_struct('it\'s `x`', " in written("parsed.`a`", schema.fields[0].dataType)


def test_a_plain_value_is_recognised_by_its_whole_text() -> None:
    inner = of(DoubleType())
    schema = StructType().add('a"', inner).add("b", ArrayType(StringType())).add("c", DateType())
    plain = plain_schema(schema)
    assert plain == StructType().add('a"', inner).add("b", ArrayType(StringType())).add(
        "c", StringType()
    )
    assert may_be_plain("text", schema) == r"""startswith(text, '{"a\\"":')"""
    assert "plain.`c` IS NULL OR CASE WHEN plain.`c` RLIKE" in is_plain("plain", "text", schema)
    assert "plain.`b`" not in is_plain("plain", "text", schema)


@pytest.mark.parametrize(
    "type_",
    [BinaryType(), VariantType(), MapType(StringType(), LongType()), ArrayType(DateType())],
)
def test_an_ambiguous_type_is_not_plain(type_: DataType) -> None:
    """Bytes and times are read from more than one text, and a map may hold a key twice."""
    assert plain_schema(of(type_)) is None
    assert plain_schema(of(of(type_))) is None
