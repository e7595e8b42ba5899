"""Environment variables that override the file: `KWORKER_WORKERS__THREADS=32`.

This module stands in place of pydantic-settings, which stops at the first value that is not JSON,
ignores names of unknown keys, and has no dotted properties.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_origin

from kworker.config.keys import KAFKA_TABLES, Key, all_keys, is_table, nearest, takes

PREFIX = "KWORKER_"
# Variables that are no keys of the file: its path, the cache of fetched archives, the crash point
# of a test, the supervisor of the Spark job, and the log file of the daemon.
NOT_KEYS = frozenset(
    {
        "KWORKER_CONFIG",
        "KWORKER_CACHE",
        "KWORKER_CRASHPOINT",
        "KWORKER_PARENT_PID",
        "KWORKER_DAEMON_LOG",
    }
)
# Kubernetes sets these in each container for each Service of its namespace, here for one whose
# name begins with "kworker". They match no key: a key in a section has two underscores.
_OF_KUBERNETES = re.compile(
    r"KWORKER(_[A-Z0-9]+)*"
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Override(NamedTuple):
    """An environment variable that sets a key of the configuration, and its value."""

    variable: str
    key: Key
    value: Any


class Unknown(NamedTuple):
    """An environment variable that cannot be used, and the reason."""

    variable: str
    text: str


def overrides(environ: Mapping[str, str]) -> Iterator[Override | Unknown]:
    """Yields each KWORKER_ variable. A whole table's variable comes before those of its keys."""
    ours = [name for name in environ if name.startswith(PREFIX) and not _is_foreign(name)]
    for variable in sorted(ours, key=lambda name: (name.count("__"), name)):
        key = _key(variable)
        if whole := _given_as_one(key):
            text = f"expected all of {'.'.join(whole)} as JSON in {_variable(whole)}"
            yield Unknown(variable, text)
        elif takes(key) is None:
            known = (_variable(known) for known in all_keys() if 0 not in known)
            yield Unknown(variable, f"no such key{nearest(variable, known)}")
        else:
            yield Override(variable, key, _value(environ[variable], takes(key)))


def _is_foreign(variable: str) -> bool:
    return variable in NOT_KEYS or _OF_KUBERNETES.fullmatch(variable) is not None


def _key(variable: str) -> tuple[str, ...]:
    """Returns the key of the configuration that `variable` names.

    In the name of a librdkafka property, `_` stands for a dot: `KWORKER_KAFKA__BOOTSTRAP_SERVERS`
    names `bootstrap.servers` in the section `kafka`.
    """
    parts = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    for table in KAFKA_TABLES:
        inside = parts[len(table) :]
        if parts[: len(table)] == table and inside:
            name = ".".join(inside).replace("_", ".")
            return (
                parts if takes(parts) and is_table(takes(parts)) else (*parts[: len(table)], name)
            )
    return parts


def _given_as_one(key: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the key of the list or table around `key`, if `key` cannot be set alone.

    A variable must then set the whole list or table. Returns () if `key` may have a variable of its
    own.
    """
    # In variables of their own, the names of its entries would lose their case.
    for end in range(1, len(key)):
        around = key[:end]
        if around not in KAFKA_TABLES and get_origin(takes(around)) in (dict, list):
            return around
    return ()


def _variable(key: Key) -> str:
    return PREFIX + "__".join(str(part) for part in key).upper()


def _value(text: str, annotation: Any) -> Any:
    """Returns `text` parsed as JSON if the key takes a number, list or table; else unchanged."""
    wants_json = is_table(annotation) or get_origin(annotation) is list or annotation in (int, bool)
    if not wants_json:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # validation reports it at its key
