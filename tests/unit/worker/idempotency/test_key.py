"""The user's own function for ids: it gets what the handler gets, and cannot do harm."""

import sys
import types

import pytest

from kworker.core.event_id import IdOf, NoId
from kworker.core.headers import Envelope, Source
from kworker.errors import ConfigError
from kworker.worker.idempotency import key
from tests.support.records import a_partition, a_record

MODULE = "kworker_test_ids"


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> "type[Ids]":
    monkeypatch.setitem(sys.modules, MODULE, types.ModuleType(MODULE))
    return Ids


class Ids:
    """Loads a function as a user's module would offer it."""

    @staticmethod
    def function(function: object) -> IdOf:
        setattr(sys.modules[MODULE], "of", function)  # noqa: B010 - a module has no such attribute
        return key.load(f"{MODULE}:of")


def test_a_function_gets_the_message_as_the_handler_does(by: type[Ids]) -> None:
    """Position, timestamp and headers of the source, also when the record comes again."""
    of = by.function(
        lambda m: f"{m.topic}/{m.partition}/{m.offset}/{m.timestamp} {m.headers} {m.attempt}"
    )
    first = a_record(a_partition("orders", 3), 7, headers=(("h", b"1"),), timestamp=5)
    again = a_record(a_partition("orders.requeue", 3), 99, timestamp=6)
    again.envelope = Envelope(
        Source("orders", 3, 7, 5), attempt=2, redriven=0, due_ms=0, carried=[("h", b"1")]
    )
    again.attempt = 2
    assert of(first) == "orders/3/7/5 (('h', b'1'),) 1"
    assert of(again) == "orders/3/7/5 (('h', b'1'),) 2"


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "NoneType, not a string"), (7, "int, not a string"), ("", "the id is empty")],
)
def test_an_invalid_id_raises_no_id(by: type[Ids], returned: object, words: str) -> None:
    """The policy for missing ids decides."""
    with pytest.raises(NoId, match=words):
        by.function(lambda _: returned)(a_record(a_partition()))


def test_an_exception_of_the_key_function_raises_no_id(by: type[Ids]) -> None:
    """A record that it cannot read must not end the claims thread."""
    with pytest.raises(NoId, match=f"{MODULE}:of raised Undecodable"):
        by.function(lambda m: m.json()["id"])(a_record(a_partition(), value=b"{"))


def test_a_function_that_is_not_there_is_a_mistake_in_the_file(by: type[Ids]) -> None:
    """No restart can help."""
    with pytest.raises(ConfigError):
        key.load(f"{MODULE}:gone")
