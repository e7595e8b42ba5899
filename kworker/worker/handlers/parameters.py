"""The parameters of a handler and their types, read from its code, which is not run."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kworker.message import Message
from kworker.worker.handlers.unfit_handler import Definition
from kworker.worker.handlers.value_type import is_built

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LISTS = (list, Sequence)
_MODULES = re.compile(r"\b(?:[\w<>]+\.)+")  # before the names of types
_ANYTHING = (Message, Any, object, inspect.Parameter.empty)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter without a default. In a batch handler, `type` is that of the list's elements."""

    name: str
    written: str  # as the code has it: "order: Order"
    type: Any

    @property
    def is_message(self) -> bool:
        return any(self.type is each for each in _ANYTHING)

    @property
    def is_built(self) -> bool:
        """True if a value of the type is built from the record's value."""
        return is_built(self.type)


def function_of(found: Any) -> Any:
    """Returns a function as it is, and for a class or an instance its method `__call__`.

    Returns None for a class without `__call__`.
    """
    if inspect.isclass(found):
        return method_of(found, "__call__")
    plain = inspect.isroutine(found) or isinstance(found, functools.partial)
    return found if plain else found.__call__


def method_of(found: type, name: str) -> Any:
    """Returns a class's method, bound to a plain object; None if there is no such method.

    No instance of the class is made, because its `__init__` may open connections.
    """
    holders = [vars(base) for base in found.__mro__ if name in vars(base)]
    method: Any = holders[0][name] if holders else None
    if isinstance(method, property | functools.cached_property) or not hasattr(method, "__get__"):
        return method
    try:
        return method.__get__(object(), found)
    except TypeError:  # written in C, for its own instances only
        return method


def needed_parameters(function: Any) -> list[inspect.Parameter]:
    """Returns the parameters that have no default.

    Raises TypeError or ValueError if the function's parameters cannot be determined, which is the
    case for many functions that are written in C.
    """
    every = inspect.signature(function).parameters.values()
    return [p for p in every if p.default is p.empty and p.kind not in _REST]


def read_parameters(definition: Definition, function: Any) -> list[Parameter]:
    """Returns the one or two parameters for which the handler needs arguments.

    Raises UnfitHandler if the handler needs no argument, more than two, or one by keyword; if its
    parameters cannot be determined; or if a type is not defined.
    """
    try:
        needed = needed_parameters(function)
    except (TypeError, ValueError):
        line = f"call it in a function of yours: {definition.of_messages}"
        raise definition.refusal(
            "has no signature that Python can read, perhaps because it is written in C", line
        ) from None
    positional = [parameter for parameter in needed if parameter.kind is not parameter.KEYWORD_ONLY]
    _check_number(definition, positional, [p.name for p in needed[len(positional) :]])
    return [_read(definition, function, parameter) for parameter in positional]


def _check_number(
    definition: Definition, positional: list[inspect.Parameter], keywords: list[str]
) -> None:
    names = [parameter.name for parameter in positional]
    if not names:
        line = f"write: {definition.of_messages}"
        raise definition.refusal("has no parameter for the record", line)
    if keywords:
        defaults = [f"{name}=None" for name in keywords]
        line = definition.of(*map(_written, positional), "*", *defaults)
        raise definition.refusal(
            f"needs {', '.join(keywords)} by keyword, which kworker does not pass",
            f"give defaults, such as: {line}",
        )
    if len(names) > 2:
        raise definition.refusal(
            f"needs {len(names)} arguments ({', '.join(names)}), but kworker passes 2 at most",
            f"write: {definition.of_messages}, or {definition.built(*names[:2])}; give the others"
            " defaults",
        )


def _read(definition: Definition, function: Any, parameter: inspect.Parameter) -> Parameter:
    hint, written = _hint(definition, function, parameter), _written(parameter)
    origin = typing.get_origin(hint) or hint
    if not definition.is_batch:
        if origin in _LISTS:
            several = f"{parameter.name}: list[Message]" if origin is hint else written
            raise definition.refusal(
                f"takes a list ({written}), but is not marked as a batch handler",
                f"write @batch() above it: {definition.of(several)}",
            )
        return Parameter(parameter.name, written, hint)
    if origin in _LISTS:
        [element] = typing.get_args(hint) or [Message]
        return Parameter(parameter.name, written, element)
    if any(hint is each for each in (Any, object, inspect.Parameter.empty)):
        return Parameter(parameter.name, written, Message)
    line = definition.of_messages
    if hint is Message or is_built(hint):
        line = definition.of(f"{parameter.name}: list[{_spelled(parameter.annotation)}]")
    raise definition.refusal(f"takes {written}, but a batch handler takes lists", f"write: {line}")


def _hint(definition: Definition, function: Any, parameter: inspect.Parameter) -> Any:
    """Returns the type that a parameter's annotation, which may be text, stands for."""
    inner = inspect.unwrap(getattr(function, "func", function))
    scope = getattr(inner, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        # `Message` is often imported for type checkers only.
        return typing.get_type_hints(holder, globalns={"Message": Message, **scope})["it"]
    except NameError as missing:
        module = scope.get("__name__", "its module")
        raise definition.refusal(
            f"takes {_written(parameter)}, but {module} does not define {missing.name}",
            f"define or import {missing.name} at the top of {module}, not in a function, nor under"
            " TYPE_CHECKING",
        ) from None
    except Exception as error:  # noqa: BLE001 - text that is evaluated may raise anything
        raise definition.refusal(
            f"takes {_written(parameter)}, whose annotation is not a type ({type(error).__name__})",
            f"write: {definition.of_messages}",
        ) from None


def _written(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return parameter.name
    return f"{parameter.name}: {_spelled(parameter.annotation)}"


def _spelled(annotation: Any) -> str:
    if isinstance(annotation, str):
        return " ".join(annotation.strip("'\"").split())
    return _MODULES.sub("", inspect.formatannotation(annotation))
