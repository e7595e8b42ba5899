"""Values that a handler returns become these records, byte for byte."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Any

import pytest
from pydantic import BaseModel

from kworker.core.chunk import Chunk, Columns
from kworker.core.headers import Envelope
from kworker.core.message import HeaderList
from kworker.core.outcome import (
    NO_RESULTS,
    Output,
    PlainResult,
    Result,
    Unpublishable,
    outputs_of,
    size_of,
)
from kworker.core.plain_results import PlainResults
from kworker.core.record import Record
from kworker.worker.handlers.results import ResultEncoder, without_results
from kworker.worker.topic_limits import TopicLimits
from tests.support.records import a_partition, a_record

RESULTS, FURTHER = "orders.results", "audit"
SOURCE = ("kworker-source", b"orders/3/42/1700000000123")


class Order(BaseModel):
    id: int
    note: Any = None


def an_encoder(limit: int = 100_000) -> ResultEncoder:
    facts = TopicLimits([RESULTS, FURTHER])
    facts.update({RESULTS: limit, FURTHER: limit}, {})
    return ResultEncoder(RESULTS, [FURTHER], facts)


def source(**fields: Any) -> Record:
    return a_record(a_partition(number=3), 42, **{"key": b"k", **fields})


def outputs(returned: Any, record: Record | None = None) -> Sequence[Output]:
    return outputs_of(an_encoder().encode(record or source(), returned))


def one(returned: Any, record: Record | None = None) -> Output:
    [output] = outputs(returned, record)
    return output


def test_none_publishes_no_result() -> None:
    assert an_encoder().encode(source(), None) is NO_RESULTS
    assert an_encoder().encode(source(), []) is NO_RESULTS
    assert an_encoder().encode(source(), [None, None]) is NO_RESULTS


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        ({"id": 1, "näme": "é"}, '{"id":1,"näme":"é"}'.encode()),
        ({}, b"{}"),
        (b"\x00raw\xff", b"\x00raw\xff"),
        (b"", b""),
        ("text é", "text é".encode()),
        (Order(id=7), b'{"id":7,"note":null}'),
        (Result({"id": 1}), b'{"id":1}'),
        (Result([1, {"a": 2}]), b'[1,{"a":2}]'),
        (Result([]), b"[]"),
        (Result(Order(id=7)), b'{"id":7,"note":null}'),
        (Result("text"), b"text"),
        (Result(b"raw"), b"raw"),
        (Result(None), None),
    ],
    ids=repr,
)
def test_every_returned_shape_makes_one_value(returned: Any, value: bytes | None) -> None:
    output = one(returned)
    assert (output.topic, output.key, output.value) == (RESULTS, b"k", value)
    assert output.headers == [SOURCE]


def test_a_list_is_several_results_and_later_ones_have_an_index() -> None:
    """An index of zero would cost a microsecond or two on every result."""
    made = outputs([{"id": 1}, None, Result({"id": 2}, key="other"), b"raw"])
    assert [(o.key, o.value) for o in made] == [
        (b"k", b'{"id":1}'),
        (b"other", b'{"id":2}'),
        (b"k", b"raw"),
    ]
    assert [o.headers for o in made] == [
        [SOURCE],
        [SOURCE, ("kworker-index", b"1")],
        [SOURCE, ("kworker-index", b"2")],
    ]


class Bytes(bytes):
    """Of a kind that a worker need not know, to whom a cell sends it."""


def test_bytes_of_any_kind_are_written_as_bytes() -> None:
    output = one(Result(Bytes(b"v"), key=Bytes(b"k"), headers={"a": Bytes(b"h")}))
    written = (output.key, output.value, output.headers[-1][1])
    assert [type(each) for each in written] == [bytes, bytes, bytes]


def test_a_tombstone_has_a_key_and_no_value() -> None:
    output = one(Result(None, key="gone"))
    assert (output.key, output.value) == (b"gone", None)


@pytest.mark.parametrize(("key", "expected"), [("é", "é".encode()), (b"", b""), (None, b"k")])
def test_the_key_is_the_sources_unless_given(key: Any, expected: bytes) -> None:
    assert one(Result({}, key=key)).key == expected


def test_a_source_without_a_key_gives_a_result_without_one() -> None:
    assert one({}, source(key=None)).key is None


def test_the_attempt_header_is_written_above_one() -> None:
    record = source()
    record.attempt = 3
    assert one({}, record).headers == [SOURCE, ("kworker-attempt", b"3")]


def test_headers_come_in_their_order() -> None:
    record = source(headers=(("traceparent", b"00-1"), ("user", b"u")))
    record.attempt = 2
    made = outputs([{}, Result({}, table="eu", headers=[("mine", "é"), ("none", None)])], record)
    assert made[1].headers == [
        SOURCE,
        ("kworker-index", b"1"),
        ("kworker-attempt", b"2"),
        ("traceparent", b"00-1"),
        ("kworker-table", b"eu"),
        ("mine", "é".encode()),
        ("none", None),
    ]


def test_only_trace_headers_of_the_source_are_copied() -> None:
    """What the source claims to be kworker's is never believed."""
    headers = (
        ("traceparent", b"00-abc"),
        ("tracestate", b"x"),
        ("kworker-source", b"forged/0/0/0"),
        ("kworker-index", b"9"),
        ("user", b"u"),
    )
    assert one({}, source(headers=headers)).headers == [SOURCE, ("traceparent", b"00-abc")]


def test_headers_of_a_result_may_be_a_dict() -> None:
    assert one(Result({}, headers={"a": "1", "b": b"2"})).headers == [
        SOURCE,
        ("a", b"1"),
        ("b", b"2"),
    ]


def test_a_result_may_go_to_a_topic_that_the_configuration_names() -> None:
    assert one(Result({}, topic=FURTHER)).topic == FURTHER
    assert one(Result({}, topic=RESULTS)).topic == RESULTS


@pytest.mark.parametrize("topic", ["elsewhere", "orders", "orders.dead"])
def test_an_unconfigured_result_topic_is_unpublishable(topic: str) -> None:
    with pytest.raises(Unpublishable, match=topic):
        outputs(Result({}, topic=topic))


@pytest.mark.parametrize("name", ["kworker-source", "KWORKER-Table"])
def test_kworkers_own_headers_are_not_the_users_to_set(name: str) -> None:
    with pytest.raises(Unpublishable, match=name):
        outputs(Result({}, headers={name: "x"}))


class Odd:
    """What nothing serialises; named so that a test's name is the same in every process."""

    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    "returned",
    [
        {"value": Odd()},
        {"value": b"bytes"},
        {1: "key"},
        {"value": "\ud800"},
        "\ud800",
        Odd(),
        Result({"value": {1, 2}}),
        Result({}, key="\ud800"),
        Result({}, headers={"a": "\ud800"}),
        Result({}, headers={"\ud800": "a"}),  # the client ends the process of who writes it
        Result({}, headers={"a\0b": "a"}),  # and cuts this
        Result({}, table="\ud800"),
        Order(id=1, note=Odd()),
        Order(id=1, note="\ud800"),
        [{"fine": 1}, {"value": Odd()}],
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_an_unserialisable_result_is_unpublishable(returned: Any) -> None:
    """It will never work: its source is to become a dead letter."""
    with pytest.raises(Unpublishable):
        outputs(returned)


@dataclass
class Point:
    x: float


def a_cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["itself"] = cycle
    return cycle


async def a_coroutine() -> None: ...


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ({"order": {"when": Decimal(1)}}, ".order.when: Decimal is not JSON: convert it, with str"),
        ({"tags": [{"a": 1}, {"b": {2}}]}, ".tags[1].b: set is not JSON: convert it, with list()"),
        ({"raw": b"secret"}, ".raw: bytes is not JSON: convert it, with .decode()"),
        ({"order": Order(id=1)}, ".order: Order is not JSON: convert it, with .model_dump()"),
        ({"at": Point(Decimal(1))}, ".at.x: Decimal is not JSON"),  # type: ignore[arg-type]
        ({"one name": Odd()}, "['one name']: Odd is not JSON: convert it"),
        ({"by id": {7: "x"}}, "['by id']: dict is not JSON: Dict key must be str"),
        ({"by id": {7: Odd()}}, "['by id'][7]: Odd is not JSON: convert it"),
        ({"count": 1 << 70}, ".count: int is not JSON: Integer exceeds 64-bit range"),
        ({"text": "\ud800"}, ".text: str is not JSON: str is not valid UTF-8: surrogates not all"),
        (Result([Odd()]), "[0]: Odd is not JSON: convert it"),
        (Odd(), ": Odd is not JSON: convert it"),
        ([{"fine": 1}, None, {"value": Odd()}], "[1].value: Odd is not JSON: convert it"),
        (Order(id=1, note=[Odd()]), ".note[0]: Odd is not JSON: convert it"),
        (Order(id=1, note=Order(id=2, note=Odd())), ".note.note: Odd is not JSON: convert it"),
        (a_cycle(), ": dict is not JSON: Recursion limit reached"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_is_not_json_is_told_by_its_path_and_type(returned: Any, told: str) -> None:
    """And not by its content, which may be secret."""
    with pytest.raises(Unpublishable) as caught:
        outputs(returned)
    assert str(caught.value).startswith(f"result{told}")
    assert "secret" not in str(caught.value)


def test_a_coroutine_that_was_not_awaited_is_told() -> None:
    """A decorator hides that the handler is `async def`."""
    returned = a_coroutine()
    with pytest.raises(Unpublishable, match=r"^result: coroutine is not JSON: await it$"):
        outputs(returned)
    returned.close()


@pytest.mark.parametrize(
    "returned",
    [Result({}, key=5), Result({}, headers={"a": 5}), Result({}, headers=["a"])],  # type: ignore[arg-type,list-item,dict-item]
    ids=["key", "header", "headers"],
)
def test_a_result_of_wrong_types_is_unpublishable(returned: Any) -> None:
    with pytest.raises(Unpublishable):
        outputs(returned)


def test_the_largest_that_fits_is_taken_and_one_byte_more_is_not() -> None:
    """One oversized record would fail its whole batch, again on every retry."""
    limited = an_encoder(limit=1000)
    overhead = size_of([SOURCE], b"k", b"")
    [fits] = outputs_of(limited.encode(source(), bytes(1000 - overhead)))
    assert fits.size == 1000
    with pytest.raises(Unpublishable, match=r"orders\.results takes 1000"):
        limited.encode(source(), bytes(1001 - overhead))


TRACE = ("traceparent", b"00-1")
UNADDRESSED: list[tuple[Any, dict[str, Any]]] = [
    ({"a": 1}, {}),
    ({"a": None}, {}),
    ({}, {"key": None}),
    ({"a": "x" * 300}, {"key": b"k" * 50}),
    ({"a": nan}, {}),
    ({"a": {1, 2}}, {}),
    ({"a": 1}, {"headers": (("h", b"1"),)}),
    (b"raw", {}),
    (b"", {}),
    ("text", {"key": b"k" * 50}),
    ("\ud800", {}),
    (7, {}),
    (Order(id=1), {}),
]
ADDRESSED: list[tuple[Any, dict[str, Any]]] = [
    ({"a": 1}, {"headers": (("h", b"1"), TRACE)}),
    (Order(id=1), {"headers": (TRACE, ("traceparent", None))}),
    ([{"a": 1}], {}),
    ([None, b"raw"], {"headers": (TRACE,)}),
    ([[1]], {}),
    ([1, 2], {}),
    (Result({"a": 1}), {}),
    (Result({"a": 1}, key="mine", headers={"h": "1"}, table="t"), {"headers": (TRACE,)}),
    (Result(b"raw", key=b"mine"), {"key": None}),
    ([Result(b"raw", headers={"kworker-h": "1"})], {}),
    (Result({"a": 1}, topic=RESULTS), {}),
    (Result({"a": 1}, topic=FURTHER), {}),
    (Result({"a": 1}, topic="unknown"), {}),
    (Result(None, key="gone"), {}),
]


def a_chunk_of(single: Record, memory_bytes: int) -> Chunk:
    headers = single.raw.headers()
    columns = Columns([42], [None], [single.raw], 0, [headers] if headers else None)
    return Chunk(single.partition, columns, memory_bytes)


def encoded(returned: Any, record: Record, limit: int = 100_000) -> Sequence[Output]:
    """Empty for what cannot be written."""
    try:
        return outputs_of(an_encoder(limit).encode(record, returned))
    except Unpublishable:
        return ()


@pytest.mark.parametrize("more", range(-2, 3))
@pytest.mark.parametrize(("returned", "fields"), UNADDRESSED)
def test_a_chunk_takes_the_same_plain_results(
    returned: Any, fields: dict[str, Any], more: int
) -> None:
    """And no other value: the size limit is kept to the byte, whatever the others take."""
    single = source(**fields)
    limit = max((each.size for each in encoded(returned, single)), default=100) + more
    chunk = a_chunk_of(single, memory_bytes=60 if more % 2 else 1000)
    plain = [each for each in encoded(returned, single, limit) if type(each) is PlainResult]
    value = an_encoder(limit).for_chunk(chunk)(0, single.raw, returned)
    assert (value is not None) == bool(plain)
    if value is not None:
        assert chunk.values == [value]
        own = chunk.results_topic, single.partition, [42], [single.raw], chunk.values
        [result], [expected] = outputs_of(PlainResults.of(*own).outcome(0)), plain
        assert isinstance(result, PlainResult)
        names = PlainResult.__mro__[1].__slots__
        assert [getattr(result, n) for n in names] == [getattr(expected, n) for n in names]


@pytest.mark.parametrize(("returned", "fields"), ADDRESSED)
def test_a_chunk_takes_what_is_one_result_for_the_topic(
    returned: Any, fields: dict[str, Any]
) -> None:
    """But for a tombstone; and nothing that is over the limit."""
    single = source(**fields)
    outputs = encoded(returned, single)
    plain = [output for output in outputs if output.topic == RESULTS and output.value is not None]
    chunk = a_chunk_of(single, memory_bytes=1000)
    value = an_encoder().for_chunk(chunk)(0, single.raw, returned)
    assert (value is not None) == (len(outputs) == len(plain) == 1)
    if value is None:
        return
    own = chunk.results_topic, single.partition, [42], [single.raw], chunk.values
    [result] = outputs_of(PlainResults.of(*own).outcome(0))
    [expected] = plain
    assert told(result) == told(expected)
    assert result.size >= expected.size
    small = an_encoder(expected.size - 1).for_chunk(a_chunk_of(single, memory_bytes=1000))
    assert small(0, single.raw, returned) is None


def told(output: Output) -> tuple[object, ...]:
    return output.topic, output.key, output.value, output.headers, output.partition


@pytest.mark.parametrize(
    ("returned", "expected"),
    [(None, True), ([], True), ([None], True), ([None, 1], False), ({}, False), ((), False)],
)
def test_what_has_no_results_is_told(returned: Any, expected: bool) -> None:
    assert without_results(returned) == expected == (not outputs(returned))


def test_a_replays_results_are_no_plain_ones() -> None:
    encoder = ResultEncoder(RESULTS, [], TopicLimits([RESULTS]), "0a1b2c")
    columns = Columns([42], [None], [source().raw], 0)
    add = encoder.for_chunk(Chunk(a_partition(), columns, 500))
    assert add(0, source().raw, {"a": 1}) is None


def test_each_topic_has_its_own_limit() -> None:
    facts = TopicLimits([RESULTS, FURTHER])
    facts.update({RESULTS: 500, FURTHER: 5000}, {})
    encoder = ResultEncoder(RESULTS, [FURTHER], facts)
    assert encoder.encode(source(), Result(bytes(1000), topic=FURTHER))
    with pytest.raises(Unpublishable):
        encoder.encode(source(), Result(bytes(1000)))


def test_an_untold_topic_limit_keeps_its_value() -> None:
    facts = TopicLimits([RESULTS, FURTHER])
    assert not facts.complete
    facts.update({RESULTS: 500}, {RESULTS: 4, FURTHER: 2})
    assert facts.missing == FURTHER
    facts.update({FURTHER: 700}, {})
    assert facts.complete
    assert (facts.max_bytes(RESULTS), facts.smallest, facts.largest) == (500, 500, 700)
    assert [facts.partition_for(FURTHER, source) for source in range(4)] == [0, 1, 0, 1]


def test_the_size_covers_header_names_of_any_script() -> None:
    """Measured by characters, a name in another script would pass and be refused."""
    names = ["a" * 50, "é" * 50, "漢" * 50, "🎉" * 50]
    for name in names:
        output = Output(RESULTS, None, b"", [(name, None)])
        assert output.size >= len(name.encode())


@pytest.mark.parametrize("returned", [{"id": 1}, b"raw", Result({"id": 1}), [{"id": 1}]])
@pytest.mark.parametrize(
    ("claim", "headers"),
    [
        (None, [SOURCE, ("kworker-replay", b"0a1b2c")]),
        ("", [SOURCE, ("kworker-replay", b"0a1b2c")]),
        ("order-7", [SOURCE]),
    ],
)
def test_a_replays_results_are_marked_unless_claimed(
    returned: Any, claim: str | None, headers: HeaderList
) -> None:
    """Tables skip them; but what was claimed ends here first. Without an id nobody knows."""
    facts = TopicLimits([RESULTS])
    facts.update({RESULTS: 100_000}, {})
    record = source()
    record.claim = claim
    encoder = ResultEncoder(RESULTS, [], facts, "0a1b2c")
    [output] = outputs_of(encoder.encode(record, returned))
    assert output.headers == headers


@pytest.mark.parametrize(
    ("claim", "marks"), [(None, [("kworker-replay", b"0a1b2c")]), ("order-7", [])]
)
def test_a_redriven_failure_of_a_replay_has_marked_results(
    claim: str | None, marks: HeaderList
) -> None:
    """In a worker as in the replay, or a table would take the result a second time."""
    record = source()
    record.comes_again(Envelope(record.source, 1, 1, 0, [], b"0a1b2c"), 0)
    record.claim = claim
    [output] = outputs({"id": 1}, record)
    assert output.headers == [SOURCE, *marks]


class Reading(BaseModel):
    celsius: float
    note: str | None = None
    raw: dict[str, Any] = {}


class Worded(BaseModel, ser_json_inf_nan="strings"):
    celsius: float
    note: str | None = None


class Level(Enum):
    TOP = inf


@pytest.mark.parametrize(
    ("returned", "name"),
    [
        ({"total": nan, "note": None}, "result.total is nan"),
        ({"a": [1.0, {"b": (2.0, -inf)}]}, "result.a[1].b[1] is -inf"),
        ({"deep": [[[[inf]]]]}, "result.deep[0][0][0][0] is inf"),
        ({"at": Point(nan)}, "result.at.x is nan"),
        ({"level": Level.TOP}, "result.level.value is inf"),
        (Result([nan]), "result[0] is nan"),
        (Result({"total": inf}), "result.total is inf"),
        ([{"fine": 1.0}, {"total": nan}], "result[1].total is nan"),
        (Reading(celsius=nan), "result.celsius is nan"),
        (Reading(celsius=1.0, raw={"x": [inf]}), "result.raw.x[0] is inf"),
    ],
)
def test_nan_and_infinity_are_unpublishable_and_not_null(returned: Any, name: str) -> None:
    """A table would hold NULL where there was a number, and nobody would know."""
    with pytest.raises(Unpublishable, match=f"^{re.escape(name)}, which JSON cannot hold$"):
        outputs(returned)


@pytest.mark.parametrize(
    ("returned", "written"),
    [
        ({"total": None, "text": "null"}, b'{"total":null,"text":"null"}'),
        ({"at": [None, Point(1.5)], "true": True}, b'{"at":[null,{"x":1.5}],"true":true}'),
        (Reading(celsius=1.5), b'{"celsius":1.5,"note":null,"raw":{}}'),
        (Worded(celsius=nan), b'{"celsius":"NaN","note":null}'),
        (b'{"mine": NaN}', b'{"mine": NaN}'),
        ('{"mine": NaN, "null": null}', b'{"mine": NaN, "null": null}'),
    ],
)
def test_an_explicit_null_and_raw_bytes_are_written_as_given(returned: Any, written: bytes) -> None:
    output = one(returned)
    assert output.value == written
