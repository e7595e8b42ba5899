"""Validates what `kworker.toml` holds: returns settings, and a problem for each mistake."""

import json
import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kworker.config.keys import CLIENT_SECTIONS, Key, item, suggestion
from kworker.config.model import Raw, Settings
from kworker.core.unicode import is_unicode


class Problem(NamedTuple):
    """One mistake, with the key at which it is corrected.

    The problem is left out if a key in `also` is wrong, too: then that other mistake causes it.
    """

    key: Key
    text: str
    also: tuple[Key, ...] = ()
    """Other keys that it follows from: if one of them is wrong, this problem is left out."""


GOT = ", got "
"""Separates a text from the wrong value; the value of a secret is cut off after it."""

_MISSING = {
    ("name",): 'name = "orders"',
    ("source",): 'a [source] table with topics = ["orders"]',
    ("source", "topics"): 'topics = ["orders"]',
    ("kafka",): 'a [kafka] table with "bootstrap.servers" = "127.0.0.1:9092"',
    ("spark", "tables"): "at least one [[spark.tables]]",
    ("idempotency", "redis"): 'redis = "redis://127.0.0.1:6379/0"',
    ("idempotency", "key"): 'key = "json:order_id"',
}
_EXPECTED = {
    "string_type": "expected a string",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "dict_type": "expected a table",
    "model_type": "expected a table",
    "too_short": "expected at least one",
}
_RESERVED_VALUES: Mapping[tuple[str, ...], frozenset[str]] = {
    ("source", "format"): frozenset({"avro", "protobuf", "json-schema"}),
    ("spark", "tables", "mode"): frozenset({"upsert"}),
}
_RESERVED_KEYS = frozenset({("source", "registry")})
# Replace missing values, so that the rest can be validated too; never shown.
_PLACEHOLDERS: Mapping[str, Any] = {
    "name": "name",
    "source": {"topics": ["topic"]},
    "topics": ["topic"],
    "kafka": {"bootstrap.servers": "host:9092"},
    "tables": [{"name": "table", "path": "/"}],
    "redis": "redis://host",
    "key": "key",
}

_DEPTH_MAX = 20  # far more than any key has


def unfit(value: object, depth: int) -> str:
    """Returns the reason why no key can have this value, nested in `depth` tables and lists.

    Returns "" if some key can have it. If there is a reason, the reader of the file reports it and
    removes the value, so rules and clients never get the value.
    """
    match value:
        case int() if value.bit_length() > 63:
            return "expected a number of at most 64 bits"
        case float() if not math.isfinite(value):
            return "expected a finite number"
        case str() if not is_unicode(value):
            return "expected text in UTF-8"
        case dict() | list() if depth > _DEPTH_MAX:
            return f"expected at most {_DEPTH_MAX} tables and lists around it"
    return ""


def validate(raw: Raw) -> tuple[Settings | None, list[Problem]]:
    """Validates `raw`: returns the settings without its wrong values, and the problems.

    The caller then applies further rules to these settings. Returns None for the settings if `raw`
    is invalid even without its wrong values.
    """
    problems: dict[Key, Problem] = {}
    for _ in range(4):  # a table without its required keys takes two rounds to repair
        try:
            return Settings.model_validate(_as_model(raw)), list(problems.values())
        except ValidationError as error:
            # A key that this loop itself removed is reported once.
            for details in error.errors():
                key = _key(details)
                if not overlaps(key, problems):
                    problems[key] = Problem(key, _explain(key, details))
            raw = _repaired(raw, error.errors())
    return None, list(problems.values())


def overlaps(key: Key, others: Iterable[Key]) -> bool:
    """Returns True if `key` is one of `others`, lies inside one, or contains one."""
    return any(key[: len(other)] == other or other[: len(key)] == key for other in others)


def _as_model(raw: Raw) -> Raw:
    kafka = raw.get("kafka")
    if not isinstance(kafka, dict):
        return raw
    common = {name: value for name, value in kafka.items() if name not in CLIENT_SECTIONS}
    clients = {name: kafka[name] for name in CLIENT_SECTIONS if name in kafka}
    return {**raw, "kafka": {"common": common, **clients}}


def _key(details: ErrorDetails) -> Key:
    """Returns the key of an error as the file spells it: `kafka.X`, not `kafka.common.X`.

    Only the model has a table `common` within `kafka`.
    """
    loc = details["loc"]
    return (loc[0], *loc[2:]) if loc[:2] == ("kafka", "common") else loc


def _names(key: Key) -> tuple[str, ...]:
    return tuple(part for part in key if isinstance(part, str))


def _explain(key: Key, details: ErrorDetails) -> str:
    names = _names(key)
    kind = details["type"]
    value = details["input"]
    if kind == "missing":
        return f"missing; give {_MISSING.get(names, f'{names[-1]} = …')}"
    if kind == "extra_forbidden":
        return _explain_unknown(key)
    if isinstance(value, str) and value in _RESERVED_VALUES.get(names, ()):
        return f'"{value}" is reserved for a later version; expected {_choices(details)}'
    return f"{_expectation(details)}{GOT}{_shown(value)}"


def _explain_unknown(key: Key) -> str:
    if _names(key) in _RESERVED_KEYS:
        return "reserved for a later version; leave it out"
    return f"unknown key{suggestion(key)}"


def _expectation(details: ErrorDetails) -> str:
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    if details["type"] == "literal_error":
        return f"expected {_choices(details)}"
    return _EXPECTED.get(details["type"], details["msg"])


def _choices(details: ErrorDetails) -> str:
    return str(details["ctx"]["expected"]).replace("'", '"')


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _repaired(raw: Raw, errors: Iterable[ErrorDetails]) -> Raw:
    repaired = deepcopy(raw)
    for details in errors:
        key = _key(details)
        # A wrong item removes its whole list.
        while isinstance(key[-1], int):
            key = key[:-1]
        _repair(repaired, key, missing=details["type"] == "missing")
    return repaired


def _repair(raw: object, key: Key, *, missing: bool) -> None:
    *parents, last = key
    for part in parents:
        raw = item(raw, part)
    if not isinstance(raw, dict):  # an earlier repair has removed the list around it
        return
    if missing:
        raw[last] = deepcopy(_PLACEHOLDERS.get(str(last), ""))
    else:
        raw.pop(last, None)
