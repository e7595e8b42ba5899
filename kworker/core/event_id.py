"""The id of a record's event, by which idempotency recognises it."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import orjson

from kworker.core.record import Record
from kworker.core.unicode import is_unicode

IdOf = Callable[[Record], str]
"""Returns the id of a record's event. Raises NoId."""

ID_MOST = 200  # characters; a longer id is replaced by its hash


class NoId(Exception):
    """The record has no event id: the field is absent, null or empty, or the value unreadable."""


def names_function(spec: str) -> bool:
    """Returns True if `idempotency.key` names a function, as `module:function`."""
    return spec != "key" and not spec.startswith(("json:", "header:"))


def id_of(spec: str) -> IdOf:
    """Returns the function that reads a record's id from `json:PATH`, `header:NAME` or `key`."""
    kind, _, rest = spec.partition(":")
    if kind == "json":
        return _in_json(rest)
    return _in_header(rest) if kind == "header" else _in_key


def fit(text: str) -> str:
    """Returns an id as Redis stores it, hashed if it is long. Raises NoId for an empty id."""
    if not text:
        raise NoId("the id is empty")  # many events would share it
    if len(text) <= ID_MOST and (text.isascii() or is_unicode(text)):
        return text
    return _hash(text.encode(errors="surrogatepass"))


def _hash(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _of_bytes(data: bytes) -> str:
    try:
        return fit(data.decode())
    except UnicodeDecodeError:
        return _hash(data)


def _in_key(record: Record) -> str:
    key = record.raw.key()
    if key is None:
        raise NoId("the record's key is null")
    return _of_bytes(key)


def _in_header(name: str) -> IdOf:
    def of(record: Record) -> str:
        again = record.envelope
        headers = (record.raw.headers() or ()) if again is None else again.restored
        values = [value for own, value in headers if own == name]
        if not values or values[-1] is None:
            raise NoId(f"the record has no header {name}")
        return _of_bytes(values[-1])

    return of


def _in_json(path: str) -> IdOf:
    names = path.split(".")

    def at(found: Any) -> Any:
        try:
            for name in names:
                found = found[name]
        except (KeyError, TypeError):
            raise NoId(f"the value has no field {path}") from None
        return found

    def of(record: Record) -> str:
        value = record.raw.value()
        if value is None:
            raise NoId("the record's value is null")
        try:
            found = at(orjson.loads(value))
        except orjson.JSONDecodeError:
            return fit(_as_text(at(_as_python_reads(value))))
        if type(found) is str:
            return fit(found)
        if type(found) is int:
            return str(found)
        # orjson reads an integer beyond 64 bits as a float, which loses digits.
        return fit(_as_text(at(_as_python_reads(value))))

    return of


def _as_python_reads(value: bytes) -> Any:
    """Parses JSON like `Message.json()`, NaN included; floats stay text, with every digit."""
    try:
        return json.loads(value, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise NoId("the value is not JSON") from None


def _as_text(found: Any) -> str:
    if found is None:
        raise NoId("the field with the id is null")
    if isinstance(found, str):
        return found
    try:
        return json.dumps(found, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise NoId("the value of the id field has too many levels of nesting to be an id") from None
