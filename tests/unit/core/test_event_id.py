"""Ids of events: what tells two apart must stay apart, and what is the same must be one."""

import hashlib

import pytest

from kworker.core.event_id import ID_MOST, NoId, id_of, names_function
from kworker.core.headers import Envelope, Source
from tests.support.records import a_partition, a_record


def made(spec: str, **record: object) -> str:
    return id_of(spec)(a_record(a_partition(), **record))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"id": "o-1"}', "o-1"),
        (b'{"id": 17}', "17"),
        (b'{"id": true}', "true"),
        (b'{"id": 1.50}', "1.50"),
        (b'{"id": {"b": 1, "a": [2, 0.10]}}', '{"a":[2,"0.10"],"b":1}'),
        (b'{"id": "\xc3\xa4"}', "ä"),
        (b'{"other": NaN, "id": "o-1"}', "o-1"),  # what Message.json() reads, this reads
    ],
)
def test_an_id_in_json_is_its_text(value: bytes, expected: str) -> None:
    """A number and its text are one event: two systems may write it differently."""
    assert made("json:id", value=value) == expected


def test_integers_beyond_64_bits_stay_apart() -> None:
    """The fast parser makes floats of them, where these two are equal: one would never run."""
    values = [b'{"id": 18446744073709551617}', b'{"id": 18446744073709551618}']
    assert [made("json:id", value=value) for value in values] == [
        "18446744073709551617",
        "18446744073709551618",
    ]


def test_a_path_goes_through_objects() -> None:
    """Dots part its names."""
    assert made("json:order.line.id", value=b'{"order": {"line": {"id": 5}}}') == "5"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b'"text"',
        b"[1]",
        b"{}",
        b'{"id": null}',
        b'{"id": ""}',
        b"[" * 100_000,
    ],
)
def test_a_record_without_an_id_raises_no_id(value: bytes | None) -> None:
    """Absent, null, empty or unreadable: the policy decides, not an exception."""
    with pytest.raises(NoId):
        made("json:id", value=value)


def test_the_last_header_of_a_name_counts() -> None:
    """As everywhere in Kafka's world."""
    headers = (("event", b"1"), ("event", b"2"), ("other", b"3"))
    assert made("header:event", headers=headers) == "2"
    for without in ((), (("event", b"1"), ("event", None)), (("event", b""),)):
        with pytest.raises(NoId):
            made("header:event", headers=without)


def test_a_record_that_comes_again_has_the_id_it_had() -> None:
    """Reserved names are carried under another name; the user's key names the user's header."""
    record = a_record(a_partition("orders.requeue"), headers=(("kworker-in-id", b"e-1"),))
    record.envelope = Envelope(
        Source("orders", 3, 7, 0),
        attempt=2,
        redriven=0,
        due_ms=0,
        carried=[("kworker-in-id", b"e-1")],
    )
    assert id_of("header:kworker-id")(record) == "e-1"


def test_keys_are_bytes() -> None:
    """What is no text is known by its hash."""
    assert made("key", key=b"k-1") == "k-1"
    data = b"\xff\x00"
    assert made("key", key=data) == f"sha256:{hashlib.sha256(data).hexdigest()}"
    for key in (None, b""):
        with pytest.raises(NoId):
            made("key", key=key)


def test_long_ids_are_known_by_their_hash() -> None:
    """Redis's memory is not the producer's to fill; ids that differ late stay apart."""
    ids = {made("key", key=b"x" * ID_MOST + tail) for tail in (b"", b"a", b"b")}
    assert len(ids) == 3
    assert max(map(len, ids)) == ID_MOST


def test_half_a_surrogate_pair_is_an_id() -> None:
    """JSON may spell it, and no encoding can write it."""
    assert made("json:id", value=b'{"id": "\\ud800"}').startswith("sha256:")


@pytest.mark.parametrize(
    ("spec", "function"),
    [("key", False), ("json:loads", False), ("header:x", False), ("shop.ids:of", True)],
)
def test_only_module_and_function_name_a_function(spec: str, function: bool) -> None:
    """`json:loads` looks like one, and is a path."""
    assert names_function(spec) is function
