"""What is asked of each value before it is written: SQL, made without a JVM.

What it answers is in tests/e2e/test_true_tables.py, of more than 250 values.
"""

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from kworker.spark.values import fits, read_schema, written


def of(type_: DataType) -> StructType:
    return StructType([StructField("a", type_)])


@pytest.mark.parametrize("type_", [LongType(), BinaryType(), BooleanType(), of(LongType())])
def test_types_that_are_read_without_loss_cost_nothing(type_: DataType) -> None:
    schema = of(type_)
    assert read_schema(schema) == schema
    assert written("parsed.`a`", type_) == "parsed.`a`"
    assert fits("parsed", schema) == ""


def test_what_would_be_changed_is_read_as_it_is_and_inside_others_too() -> None:
    schema = of(MapType(StringType(), DateType()))
    assert read_schema(schema) == of(MapType(StringType(), VariantType()))
    assert written("m", schema.fields[0].dataType).startswith("transform_values(m, (k0, v0) -> ")
    assert "forall(map_values(parsed.`a`), v0 -> (v0 IS NULL OR " in fits("parsed", schema)


def test_a_name_with_a_backtick_or_a_quote_stays_one_name() -> None:
    schema = of(StructType([StructField("it's `x`", DateType())]))
    assert "parsed.`a`.`it's ``x```" in fits("parsed", schema)
    assert r"named_struct('it\'s `x`', " in written("parsed.`a`", schema.fields[0].dataType)
