"""The part of a result that JSON cannot hold, found and named once an encoder has refused it."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

_DEPTH_MAX = 256  # of what JSON encoders take
_KEY_MAX = 80  # characters that are shown
_NO_FLOATS = frozenset({type(None), str, int, bool})  # and no parts
_PartsOf = Callable[[Any], Iterable[tuple[object, Any]]]
_CONVERSIONS: tuple[tuple[Any, str], ...] = (
    (Decimal, "convert it, with str() or float()"),
    ((set, frozenset), "convert it, with list()"),
    (bytes, "convert it, with .decode()"),
    (BaseModel, "convert it, with .model_dump()"),
)


def describe_unfit(value: Any, index: int) -> str:
    """Returns path and type of what an encoder refuses in a result, and what to do about it.

    `index` is that of the result in the handler's list of results.
    """
    if isinstance(value, BaseModel):
        refusal, parts_of = _refused_by(to_json), _parts_of_models
    else:
        refusal, parts_of = _refused_by(orjson.dumps), _parts
    path, part = _innermost(value, refusal, index, parts_of)
    if isinstance(part, dict | list | str | int):  # which JSON has
        how = refusal(part)
    elif inspect.isawaitable(part):
        how = "await it"
    else:
        how = next((how for of, how in _CONVERSIONS if isinstance(part, of)), "convert it")
    return f"{path}: {type(part).__name__} is not JSON: {how}"


def describe_not_finite(value: Any, index: int) -> str:
    """Returns the path of the NaN or infinity in a result that holds one."""
    path, part = _innermost(value, holds_not_finite, index, _parts)
    return f"{path} is {part if isinstance(part, float) else 'nan'}, which JSON cannot hold"


def holds_not_finite(value: Any) -> bool:
    """Returns True for NaN or infinity, and for a container that has one, however deep."""
    several = [[value]]
    for each in several:  # the list grows meanwhile
        for _, part in _parts(each):
            if isinstance(part, float):
                if not isfinite(part):
                    return True
            elif type(part) not in _NO_FLOATS:
                several.append(part)
    return False


def _refused_by(dumps: Callable[[Any], bytes]) -> Callable[[Any], str]:
    """Returns a function that returns an encoder's error for a value; "" if there is no error."""

    def refusal(value: Any) -> str:
        try:
            dumps(value)
        except (TypeError, PydanticSerializationError) as error:  # orjson's own is a TypeError
            return str(error)
        return ""

    return refusal


def _innermost(
    value: Any, is_unfit: Callable[[Any], object], index: int, parts_of: _PartsOf
) -> tuple[str, Any]:
    """Returns the part of an unfit value that is unfit by itself, with the path to it."""
    path = f"result[{index}]" if index else "result"
    for _ in range(_DEPTH_MAX):
        for step, part in parts_of(value):
            if is_unfit(part):
                path, value = path + _written(step), part
                break
        else:
            return path, value
    return "result", value  # which contains itself


def _parts(value: Any) -> Iterable[tuple[object, Any]]:
    """Returns the parts of a container, each with its key, index or field name."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    if isinstance(value, Enum):
        return [("value", value.value)]
    if dataclasses.is_dataclass(value):
        return [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]
    return ()


def _parts_of_models(value: Any) -> Iterable[tuple[object, Any]]:
    """Does the same as `_parts`, and also takes pydantic models apart."""
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}.items()
    return _parts(value)


def _written(step: object) -> str:
    if not isinstance(step, str):
        return f"[{step if isinstance(step, int) else type(step).__name__}]"
    return f".{step}" if step.isidentifier() else f"[{step[:_KEY_MAX]!r}]"
