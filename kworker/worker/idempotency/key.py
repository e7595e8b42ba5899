"""The function that makes the id of a record's event; `idempotency.key` says which."""

from collections.abc import Callable
from typing import Any

from kworker.core.event_id import IdOf, NoId, fit, id_of, names_function
from kworker.core.failure import Failure
from kworker.core.record import Record
from kworker.message import Message
from kworker.worker.handlers import loader


def load(spec: str) -> IdOf:
    """Returns the function that makes event ids. `spec` is the setting `idempotency.key`.

    Raises ConfigError if `spec` names a function that cannot be imported.
    """
    return _by_function(spec, loader.find(spec)) if names_function(spec) else id_of(spec)


def _by_function(spec: str, function: Callable[[Message], Any]) -> IdOf:
    def of(record: Record) -> str:
        message = _message(record)
        try:
            text = function(message)
        except BaseException as error:  # noqa: BLE001 - the user's code
            raise NoId(f"idempotency.key {spec} raised {Failure.of(error)}") from None
        if not isinstance(text, str):
            raise NoId(f"idempotency.key {spec} returned {type(text).__name__}, not a string")
        return fit(text)

    return of


def _message(record: Record) -> Message:
    """Returns the message from which the event id is made.

    It has the record's position and headers in the source topic, even if the record is a retry.
    """
    raw, source, again = record.raw, record.source, record.envelope
    headers = (raw.headers() or ()) if again is None else again.restored
    place = (source.topic, source.partition, source.offset, source.timestamp)
    return Message(*place, raw.key(), raw.value(), tuple(headers), record.attempt)
