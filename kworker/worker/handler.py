"""The user's handler: found, made once, called with what it asks for."""

import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from kworker.config import Config
from kworker.core.message import Message, Undecodable
from kworker.errors import ConfigError

Call = Callable[[Message], Any]


@dataclass(frozen=True)
class Handler:
    """One route: what to call for a message, and how it ends."""

    name: str
    call: Call
    is_async: bool
    close: Callable[[], None] | None


class Handlers:
    """The handlers of one process, by source topic."""

    def __init__(self, default: Handler | None, routes: Mapping[str, Handler]) -> None:
        self._default = default
        self._routes = routes
        self._all = [*routes.values(), *([default] if default else [])]

    @property
    def is_async(self) -> bool:
        return self._all[0].is_async

    @property
    def only(self) -> Call | None:
        """The one handler of all topics; None when it depends on the topic."""
        return self._all[0].call if len(self._all) == 1 else None

    def of(self, topic: str) -> Call:
        """KeyError for a topic without a handler, which the configuration excludes."""
        handler = self._routes.get(topic, self._default)
        if handler is None:
            raise KeyError(topic)
        return handler.call

    def close(self) -> None:
        """At the end of a drain; what it raises is the caller's to log."""
        for close in {handler.close for handler in self._all if handler.close}:
            close()


def load(config: Config) -> Handlers:
    """Imports every handler and makes the classes' one instance.

    Raises ConfigError for what no restart can help; what a class's `__init__` raises
    passes through: it opens connections, and may work the next time.
    """
    folder = str(config.file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    made: dict[str, Handler] = {}
    for reference in {config.handler, *config.handlers.values()} - {""}:
        made[reference] = _handler(reference, find(reference))
    if len({handler.is_async for handler in made.values()}) > 1:
        raise ConfigError("handlers: `def` and `async def` handlers cannot share a process")
    routes = {topic: made[reference] for topic, reference in config.handlers.items()}
    return Handlers(made.get(config.handler), routes)


def find(reference: str) -> Any:
    """What `module:name` names. Raises ConfigError, with the import's own words."""
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's top level may raise anything
        raise ConfigError(
            f"handler: cannot import {module_name!r}: {type(error).__name__}: {_one_line(error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"handler: {module_name!r} has nothing callable named {name!r}")
    return found


def _handler(reference: str, found: Any) -> Handler:
    target = found
    close = None
    if inspect.isclass(found):
        target = found()
        close = getattr(target, "close", None)
        if not callable(target):
            raise ConfigError(f"handler: {reference}: the class has no __call__")
    plain = inspect.isroutine(target) or isinstance(target, functools.partial)
    function = target if plain else target.__call__
    is_async = inspect.iscoroutinefunction(function)
    return Handler(reference, _calling(reference, target, function), is_async, close)


def _calling(reference: str, target: Call, function: Any) -> Call:
    """`target` as a function of a message, whatever its parameters ask for."""
    parameters = _parameters(reference, function)
    model = _model(parameters[0])
    if model is None:
        if len(parameters) != 1:
            raise ConfigError(
                f"handler: {reference}: expected (message) or (model) or (model, message)"
            )
        return target
    two = len(parameters) == 2

    def typed(message: Message) -> Any:
        decoded = decode(model, message)
        return target(decoded, message) if two else target(decoded)  # type: ignore[call-arg,arg-type]

    return typed


def _parameters(reference: str, function: Any) -> list[Any]:
    """The annotations of the required positional parameters, at least one."""
    every = inspect.signature(function).parameters.values()
    required = [p for p in every if p.default is p.empty and p.kind not in _REST]
    if named := [p.name for p in required if p.kind is p.KEYWORD_ONLY]:
        raise ConfigError(f"handler: {reference}: nobody can give its keyword {named[0]!r}")
    if not 1 <= len(required) <= 2:
        raise ConfigError(f"handler: {reference}: expected one or two parameters")
    return [_hint(function, p.annotation) for p in required]


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hint(function: Any, annotation: Any) -> Any:
    """What an annotation names; None for a name that only a type checker imports."""
    scope = getattr(getattr(function, "func", function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=scope)["it"]
    except NameError:
        return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _model(annotation: Any) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return None


def decode(model: type[BaseModel], message: Message) -> BaseModel:
    """Raises Undecodable, without the value: it may hold what logs must not."""
    try:
        return model.model_validate_json(message.value or b"null")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Undecodable(f"{model.__name__}: {where}: {first['msg']}") from None
