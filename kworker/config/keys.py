"""The configuration model as a tree of keys, spelled as in the file, with the type of each."""

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from kworker.config.model import KafkaSettings, Section, Settings

Key = tuple[str | int, ...]
"""The path of a value in the file: `("spark", "tables", 0, "mode")`."""

CLIENT_SECTIONS = ("consumer", "producer")
KAFKA_TABLES: tuple[Key, ...] = (("kafka", "consumer"), ("kafka", "producer"), ("kafka",))
"""The tables of librdkafka's properties, innermost first."""


def dotted(key: Key, raw: object = None) -> str:
    """Formats a key, for example as `spark.tables[orders].mode`.

    An item of a list is shown by the `name` that it has in `raw`, or else by its index.
    """
    text = ""
    for part in key:
        raw = item(raw, part)
        if isinstance(part, int):
            name = raw.get("name") if isinstance(raw, dict) else None
            text += f"[{name if isinstance(name, str) else part}]"
        else:
            text += f".{part}" if text else part
    return text


def item(raw: object, part: str | int) -> object:
    """Returns the value of `part` in a table or list; None if it is not there."""
    if isinstance(raw, dict):
        return raw.get(part)
    if isinstance(raw, list) and isinstance(part, int) and part < len(raw):
        return raw[part]
    return None


def section_keys(section: type[Section]) -> dict[str, Any]:
    """Returns the keys of a table, and the type of each."""
    if section is KafkaSettings:
        return dict.fromkeys(CLIENT_SECTIONS, dict[str, str])
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def takes(key: Key) -> Any:
    """Returns the type of the value at `key` (`Section`, dict, str …); None for an unknown key."""
    found: Any = Settings
    for part in key:
        found = _child(found, part)
    return found


def _child(parent: Any, part: str | int) -> Any:
    if section := section_of(parent):
        return section_keys(section).get(str(part), str if section is KafkaSettings else None)
    if get_origin(parent) in (dict, list):
        return get_args(parent)[-1]
    return None


def section_of(annotation: Any) -> type[Section] | None:
    """Returns the `Section` in an annotation such as `SparkSettings | None`; None without one."""
    for choice in _choices(annotation):
        if isinstance(choice, type) and issubclass(choice, Section):
            return choice
    return None


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def is_table(annotation: Any) -> bool:
    """Returns True if a value of this type is a TOML table."""
    return section_of(annotation) is not None or get_origin(annotation) is dict


def all_keys(section: type[Section] = Settings, at: Key = ()) -> Iterator[Key]:
    """Yields every key of the file that has a fixed name, tables before their keys."""
    for name, annotation in section_keys(section).items():
        yield (*at, name)
        if inner := section_of(annotation):
            yield from all_keys(inner, (*at, name))
        elif get_origin(annotation) is list and (row := section_of(get_args(annotation)[0])):
            yield from all_keys(row, (*at, name, 0))


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns a hint such as `; did you mean threads?`; "" if no known word is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def suggestion(key: Key) -> str:
    """Returns a hint at the known key that is most like the unknown `key`; "" if none is similar.

    Searches the table of `key` first, then all other tables.
    """
    *parent, word = key
    section = section_of(takes(tuple(parent)))
    near = nearest(str(word), section_keys(section)) if section else ""
    return near or _elsewhere(str(word))


def _elsewhere(word: str) -> str:
    homes: Mapping[str, str] = {str(key[-1]): dotted(key) for key in all_keys()}
    found = difflib.get_close_matches(word, list(homes), n=1, cutoff=0.8)
    return f"; did you mean {homes[found[0]].replace('[0]', '')}?" if found else ""


def flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of a table of properties, with nested names joined by dots."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value
