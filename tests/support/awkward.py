"""Results with one awkward field each: what its column must hold, or that it must be rescued.

Of a time it must hold the microseconds since 1970, of all else Python's own value.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

SCHEMA = """
    tiny TINYINT, small SMALLINT, whole INT, big BIGINT, price DECIMAL(12,2), exact DECIMAL(38,18),
    day DATE, at TIMESTAMP, x DOUBLE, f FLOAT, s STRING, b BOOLEAN, bin BINARY,
    st STRUCT<a: DECIMAL(4,1), t: TINYINT>, xs ARRAY<DOUBLE>, ps ARRAY<DECIMAL(4,1)>,
    days MAP<STRING, DATE>
"""


def _us(*parts: int, micros: int = 0) -> int:
    moment = datetime(*parts, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)  # type: ignore[misc, arg-type]
    return (moment + timedelta(microseconds=micros)) // timedelta(microseconds=1)


NOON = _us(2024, 1, 1, 12)
HUGE = "h" * 900_000

FITS: dict[str, dict[str, Any]] = {
    "tiny": {"0": 0, "127": 127, "-128": -128, "null": None, "-0": 0},
    "small": {"32767": 32767, "-32768": -32768},
    "whole": {"2147483647": 2**31 - 1, "-2147483648": -(2**31)},
    "big": {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "0": 0},
    "price": {
        "1": Decimal(1),
        "1.5": Decimal("1.5"),
        "1.50": Decimal("1.5"),
        "1.000": Decimal(1),
        '"12.34"': Decimal("12.34"),
        "9999999999.99": Decimal("9999999999.99"),
        "-0.01": Decimal("-0.01"),
        "0.00": Decimal(0),
        "-0": Decimal(0),
        "null": None,
    },
    "exact": {
        "12345678901234567890.123456789012345678": Decimal(
            "12345678901234567890.123456789012345678"
        ),
        "-0.000000000000000001": Decimal("-0.000000000000000001"),
        "0.1": Decimal("0.1"),
    },
    "day": {
        '"2024-02-29"': date(2024, 2, 29),
        '"0001-01-01"': date(1, 1, 1),
        '"1582-10-10"': date(1582, 10, 10),
        '"1970-01-01"': date(1970, 1, 1),
        '"9999-12-31"': date(9999, 12, 31),
        "null": None,
    },
    "at": {
        '"2024-01-01T12:00:00Z"': NOON,
        '"2024-01-01T12:00:00"': NOON,
        '"2024-01-01 12:00:00"': NOON,
        '"2024-01-01T14:00:00+02:00"': NOON,
        '"2024-01-01T14:00:00+0200"': NOON,
        '"2024-01-01T07:00:00.000-05:00"': NOON,
        '"2024-01-01T12:00:00.1Z"': NOON + 100_000,
        '"2024-01-01T12:00:00.123456Z"': NOON + 123_456,
        '"2024-01-01T12:00:00.123456000Z"': NOON + 123_456,
        '"2024-01-01"': _us(2024, 1, 1),
        '"1969-12-31T23:59:59.999999Z"': -1,
        '"1883-11-18T12:00:00Z"': _us(1883, 11, 18, 12),
        '"0001-01-01T00:00:00Z"': _us(1, 1, 1),
        '"9999-12-31T23:59:59.999999Z"': _us(9999, 12, 31, 23, 59, 59, micros=999_999),
        "null": None,
    },
    "x": {
        "0": 0.0,
        "-0.0": 0.0,
        "0.1": 0.1,
        "1E5": 1e5,
        "1e10": 1e10,
        "0.30000000000000004": 0.30000000000000004,
        "123456789.123456789": 123456789.123456789,
        "9007199254740991": 2.0**53 - 1,
        "9007199254740992": 2.0**53,
        "-9007199254740992": -(2.0**53),
        "1000000000000000000": 1e18,
        "1.7976931348623157e308": 1.7976931348623157e308,
        "2.2250738585072014e-308": 2.2250738585072014e-308,
        "5e-324": 5e-324,
        "0.0000000000000000000": 0.0,
        "null": None,
    },
    "f": {"0.5": 0.5, "16777216": 2.0**24, "-0.25": -0.25, "1e10": 1e10, "null": None},
    "s": {
        '""': "",
        '"null"': "null",
        '"ä\\u00e4"': "ää",
        '"\\u0000"': "\0",
        '"\\ud83d\\ude00"': "\U0001f600",
        '"😀"': "\U0001f600",
        '"\\\\"': "\\",
        '"\\u2028"': "\u2028",
        '"e\\u0301"': "e\u0301",
        f'"{HUGE}"': HUGE,
        "null": None,
    },
    "b": {"true": True, "false": False, "null": None},
    "bin": {'"YQ=="': b"a", '""': b"", '"//79"': b"\xff\xfe\xfd", "null": None},
    "st": {
        '{"a": 1.5, "t": 5}': {"a": Decimal("1.5"), "t": 5},
        '{"a": null, "t": null}': {"a": None, "t": None},
        "{}": {"a": None, "t": None},
        "null": None,
    },
    "xs": {"[1, 2.5, null]": [1.0, 2.5, None], "[]": [], "[1e300]": [1e300], "null": None},
    "ps": {"[1.5, null, 2]": [Decimal("1.5"), None, Decimal(2)], "[]": []},
    "days": {
        '{"k": "2024-02-29", "n": null}': {"k": date(2024, 2, 29), "n": None},
        "{}": {},
    },
}

RESCUED: dict[str, list[str]] = {
    "tiny": ["128", "200", "255", "-129", "1.0", "1e1", '"5"', "true", "[1]", "{}", "32768"],
    "small": ["32768", "-32769", "65535", "0.5"],
    "whole": ["2147483648", "-2147483649", '"1"', "1.5"],
    "big": ["9223372036854775808", "-9223372036854775809", "1e3", "0.5", '"7"', "1" + "0" * 400],
    "price": [
        "1.005",
        "0.001",
        "10000000000",
        "10000000000.00",
        "1e2",
        "1E-7",
        '"abc"',
        '""',
        '"1.2.3"',
        '"NaN"',
        '" 1"',
        "true",
        "[1]",
        "1" * 60,
        "0." + "1" * 60,
    ],
    "exact": ["123456789012345678901.5", "0.1234567890123456789", "1e-18"],
    "day": [
        '"2023-02-29"',
        '"2024-01-01T00:00:00"',
        '"2024-01-01T23:59:59Z"',
        '"2024-01-01 "',
        '"2024-1-1"',
        '"2024-01"',
        '"20240101"',
        "20240101",
        "19000",
        '"0000-01-01"',
        '"10000-01-01"',
        '"-0001-01-01"',
        '"today"',
        '""',
        '"01.02.2024"',
        "true",
    ],
    "at": [
        "1700000000000",
        "1700000000",
        "1700000000.5",
        '"1700000000000"',
        '"2024-01-01T12:00:00.123456789Z"',
        '"2024-01-01T12:00:00,5Z"',
        '"2024-01-01T12:00Z"',
        '"12:00:00"',
        '"T12:00"',
        '"2024-13-01T00:00:00Z"',
        '"2024-01-01T25:00:00Z"',
        '"2024-01-01T24:00:00Z"',
        '"2024-06-30T23:59:60Z"',
        '"2024-01-01T12:00:00 Europe/Berlin"',
        '"2024-01-01T12:00:00+19:00"',
        '"0000-01-01T00:00:00Z"',
        '"+10000-01-01T00:00:00Z"',
        '"Mon, 01 Jan 2024 12:00:00 GMT"',
        '"now"',
        '""',
        "true",
        "{}",
    ],
    "x": [
        "9007199254740993",
        "-9007199254740993",
        "12345678901234567890",
        "1e400",
        "-1e400",
        "1e-400",
        "0e400",
        "1" + "0" * 400,
        "NaN",
        "Infinity",
        "-Infinity",
        '"NaN"',
        '"Infinity"',
        '"1.5"',
        '""',
        "true",
        "[1]",
    ],
    "f": ["16777217", "0.123456789", "1e39", "1e-60", "NaN", '"0.5"', "9007199254740993"],
    "s": [
        '"\\ud800"',
        '"\\udc00x"',
        '"a\\ud83d"',
        '"\\ud83d\\ud83d\\ude00"',
        '"\\uDE00\\uD83D"',
        "1.50",
        "5",
        "12345678901234567890123",
        "true",
        '{"a": [1, 2.50]}',
        '{"a": 1, "a": 2}',
        "[]",
        "1e400",
    ],
    "b": ['"true"', "1", "0", '""', '"yes"'],
    "bin": ["5", '"!!!"', "true", "[1]"],
    "st": [
        '{"a": 1.55}',
        '{"A": 1}',
        '{"a": 1, "b": 2}',
        '{"t": 200}',
        "5",
        '"x"',
        '{"a": 1, "a": 2}',
    ],
    "xs": ["[9007199254740993]", "[1e400]", '["x"]', "5", "[[1]]", "[NaN]"],
    "ps": ["[1.55]", '["x"]', "[1, 1000]"],
    "days": ['{"k": "2024-01-01T00:00"}', '{"k": 5}', "[]", '{"k": "2023-02-29"}'],
}

WHOLE_ROWS = [
    '{"S": "x"}',
    '{"s": "a", "s": "b"}',
    '{"s": "a"}{"s": "b"}',
    '{"s": "a"} x',
    '{"s": "a"',
    '{"s": "a",}',
    "{'s': 'a'}",
    "[]",
    '[{"s": "a"}]',
    "5",
    '"s"',
    "null",
    "true",
    "",
    " ",
    "\ufeff{}",
    '{"\\u0073": "a", "x\\ud800": 1}',
    '{"unknown": null}',
    '{"": 1}',
    '{"s": ' + "[" * 2_000 + "]" * 2_000 + "}",
]
"""None of these is one object of the schema's fields."""


LOST = object()
"""The value of what must be rescued."""


class Result(NamedTuple):
    """What was sent, and what its column must hold."""

    column: str
    text: str
    value: Any


def results() -> list[Result]:
    """Each with one field; what is rescued comes last."""
    alone = [Result(name, f'{{"{name}": {text}}}', value) for name, text, value in _values()]
    return [*alone, *(Result("", text, LOST) for text in WHOLE_ROWS)]


COMPLETE = SCHEMA.replace(" bin BINARY,", "").partition(",\n    days")[0]
"""The columns of which a result that has them all is known by its whole text."""


def complete() -> Iterator[Result]:
    """The same values with all the other fields beside them, as two encoders write them."""
    names = [field.split()[0] for field in re.split(r",(?![^<(]*[>)])", COMPLETE)]
    for colon, comma in ((":", ","), (": ", ", ")):
        for name, text, value in _values():
            if name in names:
                fields = (f'"{each}"{colon}{text if each == name else "null"}' for each in names)
                yield Result(name, f"{{{comma.join(fields)}}}", value)


def _values() -> Iterator[Result]:
    for column, values in FITS.items():
        for text, value in values.items():
            yield Result(column, text, value)
    for column, texts in RESCUED.items():
        for text in texts:
            yield Result(column, text, LOST)
