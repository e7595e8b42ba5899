"""Environment variables that override the file: `KWORKER_WORKERS__THREADS=32`.

Not by pydantic-settings, which stops at the first value that is no JSON, overlooks names that
stand for no key, and knows no dotted properties.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_origin

from kworker.config.keys import KAFKA_TABLES, Key, all_keys, is_table, nearest, takes

PREFIX = "KWORKER_"
# Not keys of the file: where it is, where fetched archives go, where a test build crashes, and
# which supervisor the Spark job belongs to.
NOT_KEYS = frozenset(
    {"KWORKER_CONFIG", "KWORKER_CACHE", "KWORKER_CRASHPOINT", "KWORKER_PARENT_PID"}
)
# What Kubernetes gives each container for each Service of its namespace, here for one whose name
# is or begins with "kworker": no key has such a name, since one in a section has two underscores.
_OF_KUBERNETES = re.compile(
    r"KWORKER(_[A-Z0-9]+)*"
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Override(NamedTuple):
    """One variable, understood."""

    variable: str
    key: Key
    value: Any


class Unknown(NamedTuple):
    """One variable that stands for no key, and why."""

    variable: str
    text: str


def overrides(environ: Mapping[str, str]) -> Iterator[Override | Unknown]:
    """What the environment says, whole tables before what is in them."""
    ours = [name for name in environ if name.startswith(PREFIX) and not _is_others(name)]
    for variable in sorted(ours, key=lambda name: (name.count("__"), name)):
        key = _key(variable)
        if whole := _given_as_one(key):
            text = f"give the whole of {'.'.join(whole)} as JSON in {_variable(whole)}"
            yield Unknown(variable, text)
        elif takes(key) is None:
            known = (_variable(known) for known in all_keys() if 0 not in known)
            yield Unknown(variable, f"no such key{nearest(variable, known)}")
        else:
            yield Override(variable, key, _value(environ[variable], takes(key)))


def _is_others(variable: str) -> bool:
    return variable in NOT_KEYS or _OF_KUBERNETES.fullmatch(variable) is not None


def _key(variable: str) -> tuple[str, ...]:
    """The key that `variable` stands for; in Kafka's tables `_` stands for a dot."""
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
    """The list or table around `key` whose items have no variables: case would be lost."""
    for end in range(1, len(key)):
        around = key[:end]
        if around not in KAFKA_TABLES and get_origin(takes(around)) in (dict, list):
            return around
    return ()


def _variable(key: Key) -> str:
    return PREFIX + "__".join(str(part) for part in key).upper()


def _value(text: str, annotation: Any) -> Any:
    """`text` as the key wants it: JSON for numbers, lists and tables, else as it is."""
    wants_json = is_table(annotation) or get_origin(annotation) is list or annotation in (int, bool)
    if not wants_json:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # told with the key, as any wrong value
