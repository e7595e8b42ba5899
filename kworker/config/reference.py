"""The reference of `kworker.toml`, made from its model: what each key takes, and what it does."""

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from kworker.config.keys import Key, all_keys, section_of, takes
from kworker.config.model import Section, Settings
from kworker.config.schema import file_schema

PAGE = "docs/configuration.md"
_INTRO = """\
# Configuration

Every key of `kworker.toml`. This page is made from the model that reads the file, by
`kworker config keys --markdown`. `kworker config keys workers` explains the keys of one table in
the terminal, and `kworker config schema` is for editors. [`etc/kworker.toml`](../etc/kworker.toml)
is a file with all keys, to copy from.

A duration is `"200ms"`, `"5s"`, `"10m"` or `"24h"`, a size `"16KiB"`, `"64MiB"` or `"2GiB"`. Paths
are relative to the folder of the file. Any text may be `{ file = "…" }` or `{ env = "…" }`; such a
value is never shown. A variable of the environment overrides a key: `KWORKER_WORKERS__THREADS=32`,
with lists and tables as JSON.

`[kafka]`, `[kafka.consumer]` and `[kafka.producer]` also take any other property of librdkafka. The
file above has kworker's own defaults; properties that kworker must set itself are refused.

A `"^regex"` in `source.topics` is a POSIX extended regular expression, since Kafka's client
searches names for it with libc: letters, digits, `-`, `_`, `\\.` for a dot, `.` for any character,
`[a-z0-9]`, `(a|b)`, `*`, `+`, `?`, `{2,3}` and `$`. It need not reach the end of a name: `^orders-`
finds `orders-eu`. What only Python knows, such as `\\d` or `(?:…)`, is refused, and the message
says what to write instead. With `group.protocol = "consumer"` it must end with `.*` or `$`."""


class KeyReference(NamedTuple):
    """One key. `default` is as the file spells it; "" if it has none, or a computed one."""

    table: str  # "" for the keys before the first table
    key: str
    takes: str
    default: str
    required: bool
    description: str

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.key}" if self.table else self.key


def all_references() -> list[KeyReference]:
    """Returns all keys: those outside any table, then table by table, in the model's order."""
    schema, sections = file_schema(), _sections()
    homes = {
        table: schema if section is Settings else schema["$defs"][section.__name__]
        for table, section in sections.items()
    }
    return [each for table, home in homes.items() for each in _of_table(table, home, homes)]


def as_markdown(references: list[KeyReference]) -> str:
    """Returns the text of docs/configuration.md."""
    parts = [_INTRO]
    for table in dict.fromkeys(each.table for each in references):
        rows = [_row(each) for each in references if each.table == table]
        head = ["| key | takes | default | |", "|---|---|---|---|"]
        parts.append("\n".join((f"## {_heading(table)}", "", *head, *rows)))
    return "\n\n".join(parts) + "\n"


def _sections() -> dict[str, type[Section]]:
    """Returns the tables of the model by their names in the file; "" is the file itself."""
    sections: dict[str, type[Section]] = {"": Settings}
    for key in all_keys():
        if section := _section_at(key):
            sections[".".join(part for part in key if isinstance(part, str))] = section
    return sections


def _section_at(key: Key) -> type[Section] | None:
    """Returns the model of the table at `key`, or of each table in the list at `key`; else None."""
    return section_of(takes(key)) or section_of(takes((*key, 0)))


def _of_table(table: str, schema: dict[str, Any], tables: Collection[str]) -> list[KeyReference]:
    values = {
        key: about
        for key, about in schema["properties"].items()
        if (f"{table}.{key}" if table else key) not in tables
    }
    return [_reference(table, key, about, schema) for key, about in values.items()]


def _reference(table: str, key: str, about: dict[str, Any], schema: dict[str, Any]) -> KeyReference:
    required, description = key in schema.get("required", ()), about["description"]
    # A default that depends on something else is in the description.
    fixed = not required and "default" not in description
    default = json.dumps(about["default"], ensure_ascii=False) if fixed else ""
    return KeyReference(table, key, _takes(about), default, required, description)


def _takes(schema: dict[str, Any]) -> str:
    """Returns the values that a JSON schema allows, in words such as `duration` or `list: text`."""
    if choices := schema.get("anyOf"):
        return " or ".join(_takes(each) for each in choices if "$ref" not in each)
    if values := schema.get("enum") or ("const" in schema and [schema["const"]]):
        return " | ".join(json.dumps(value) for value in values)
    match schema.get("type"):
        case "string":
            pattern = schema.get("pattern", "")
            return "duration" if "ms" in pattern else "size" if "KiB" in pattern else "text"
        case "integer":
            return f"whole number, {schema['minimum']} or more"
        case "number":
            return "number"
        case "boolean":
            return "true | false"
        case "array":
            return f"list: {_takes(schema['items'])}"
        case _:
            return f"table: {_takes(inner)}" if (inner := _values(schema)) else "table"


def _values(schema: dict[str, Any]) -> dict[str, Any] | None:
    inner = schema.get("additionalProperties")
    return inner if isinstance(inner, dict) else None


def _heading(table: str) -> str:
    if not table:
        return "Before the first table"
    return f"`[[{table}]]`" if table == "spark.tables" else f"`[{table}]`"


def _row(key: KeyReference) -> str:
    default = "required" if key.required else key.default and f"`{key.default}`"
    cells = (f"`{key.key}`", key.takes, default, key.description.replace("<", "\\<"))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
