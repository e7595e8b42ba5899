"""Loads the user's handlers: imports them, and instantiates each class once."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kworker.config.model import Config
from kworker.errors import ConfigError
from kworker.worker.handlers.handler_class import opens_on_loop
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.signature import HandlerSignature, read_signature
from kworker.worker.handlers.unfit_handler import UnfitHandler


def load(config: Config) -> Handlers:
    """Imports every handler and instantiates each class once.

    Raises ConfigError for an error that a restart cannot cure. An exception from a class's
    `__init__` passes through as it is: it may come from opening a connection, and the next start
    may succeed.
    """
    folder = str(config.file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    references = list(dict.fromkeys(filter(None, [config.handler, *config.handlers.values()])))
    found = {reference: find(reference) for reference in references}
    signatures = read_signatures(found, config.workers.in_flight)
    loaded = {
        reference: _handler(reference, found[reference], signature)
        for reference, signature in signatures.items()
    }
    routes = {topic: loaded[reference] for topic, reference in config.handlers.items()}
    return Handlers(loaded.get(config.handler), routes)


def of_callable(config: Config, found: Any) -> Handlers:
    """Returns the handlers of a process in which `found` handles the records of all topics.

    `found` is a function, a class or an instance, as a configuration could name it. For the errors
    see `load`.
    """
    name = getattr(found, "__qualname__", type(found).__qualname__)
    [signature] = read_signatures({name: found}, config.workers.in_flight).values()
    return Handlers(_handler(name, found, signature), {})


def read_signatures(found: Mapping[str, Any], in_flight: int) -> dict[str, HandlerSignature]:
    """Returns the signature of each handler, by the handler's reference. Calls no handler.

    Raises UnfitHandler if a handler cannot be called with a record, if its batches are larger than
    `in_flight`, or if only some of the handlers are `async def`.
    """
    read: dict[str, HandlerSignature] = {}
    for reference, handler in found.items():
        signature = read[reference] = read_signature(reference, handler)
        if signature.mark and signature.mark.size > in_flight:
            raise UnfitHandler(
                reference,
                f"never gets a full batch of {signature.mark.size} records, because"
                f" workers.in_flight is {in_flight}",
                "raise it, or lower the batch's size",
            )
        first, of_first = next(iter(read.items()))
        if signature.is_async is not of_first.is_async:
            kinds = ("`async def`", "`def`") if signature.is_async else ("`def`", "`async def`")
            raise UnfitHandler(
                reference,
                f"is {kinds[0]}, and {first} is {kinds[1]}: they cannot share a process",
                "make both of one kind, or run two services",
            )
    return read


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


def _handler(reference: str, found: Any, signature: HandlerSignature) -> Handler:
    target, close, dead, open_ = found, None, None, None
    if inspect.isclass(found):
        target = found()
        open_ = _method(target, "open") if opens_on_loop(target) else None
        close, dead = _method(target, "close"), _method(target, "dead")
    return Handler(
        reference,
        signature.call_of(target),
        signature.is_async,
        close,
        dead,
        signature.batching_of(target),
        open_,
    )


def _method(target: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(target, name, None)
    return found if callable(found) else None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
