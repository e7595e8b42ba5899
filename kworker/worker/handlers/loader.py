"""The loading of the user's handlers: imported, and each class instantiated once."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from kworker.config.model import Config
from kworker.core.batch import mark_of
from kworker.errors import ConfigError
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.signature import Batching, make_batching, make_call, one_by_one


def load(config: Config) -> Handlers:
    """Imports every handler and instantiates each class once.

    Raises ConfigError for an error that a restart cannot cure. An exception from a class's
    `__init__` passes through as it is: it may come from opening a connection, and the next start
    may succeed.
    """
    folder = str(config.file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded: dict[str, Handler] = {}
    for reference in {config.handler, *config.handlers.values()} - {""}:
        loaded[reference] = _handler(config, reference, find(reference))
    if len({handler.is_async for handler in loaded.values()}) > 1:
        raise ConfigError(
            "handlers: `def` and `async def` handlers cannot share a process; use one kind"
        )
    routes = {topic: loaded[reference] for topic, reference in config.handlers.items()}
    return Handlers(loaded.get(config.handler), routes)


def of_callable(config: Config, found: Any) -> Handlers:
    """Returns the handlers of a process in which `found` handles the records of all topics.

    `found` is a function, a class or an instance, as a configuration could name it. For the errors
    see `load`.
    """
    name = getattr(found, "__qualname__", type(found).__qualname__)
    return Handlers(_handler(config, name, found), {})


def find(reference: str) -> Any:
    """Returns the callable that `module:name` names. Raises ConfigError if there is none."""
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


def _handler(config: Config, reference: str, found: Any) -> Handler:
    target = found
    close = dead = None
    if inspect.isclass(found):
        target = found()
        close, dead = _method(target, "close"), _method(target, "dead")
        if not callable(target):
            raise ConfigError(f"handler: {reference}: the class has no method __call__")
    plain = inspect.isroutine(target) or isinstance(target, functools.partial)
    function = target if plain else target.__call__
    is_async = inspect.iscoroutinefunction(function)
    if inspect.iscoroutinefunction(dead) and not is_async:
        raise ConfigError(f"handler: {reference}: dead() is `async def`, so __call__ must be, too")
    if mark := mark_of(getattr(function, "func", function)):
        batches = make_batching(reference, target, function, mark)
        _check_size(config, reference, batches)
        call = one_by_one(batches, is_async)
        return Handler(reference, call, is_async, close, dead, batches)
    return Handler(reference, make_call(reference, target, function), is_async, close, dead)


def _method(target: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(target, name, None)
    return found if callable(found) else None


def _check_size(config: Config, reference: str, batching: Batching) -> None:
    if batching.size > config.workers.in_flight:
        raise ConfigError(
            f"handler: {reference}: a batch of {batching.size} records never fills, because"
            f" workers.in_flight is {config.workers.in_flight}; raise it, or lower the batch's size"
        )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
