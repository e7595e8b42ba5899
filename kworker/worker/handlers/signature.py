"""The parameters of a handler, and the call that fits them."""

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from kworker.core.batch import BatchFailed, BatchMark
from kworker.core.bisection import ends_around, returned
from kworker.core.message import Undecodable
from kworker.errors import ConfigError
from kworker.message import Message

Call = Callable[[Message], Any]

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LISTS = (list, Sequence)


@dataclass(frozen=True, slots=True)
class Batching:
    """The settings of a batch handler, and the function that calls it.

    A batch has at most `size` records. It begins at most `wait_s` seconds after its first record.
    """

    size: int
    wait_s: float
    item: Call  # the list's element for a message; raises Undecodable
    call: Callable[[list[Any], list[Message]], Any]  # with the items, and their messages


def make_call(reference: str, target: Any, function: Any) -> Call:
    """Returns a function that calls the handler `target` with the arguments for one message.

    `function` is the function or method that has the handler's parameters. Raises ConfigError if
    the parameters are not those of a handler.
    """
    parameters = _parameters(reference, function)
    if typing.get_origin(parameters[0]) in _LISTS:
        raise ConfigError(
            f"handler: {reference}: a handler that takes a list is to be decorated with @batch()"
        )
    model = _model(parameters[0])
    if model is None:
        if len(parameters) != 1:
            raise ConfigError(
                f"handler: {reference}: a handler takes the message, or a pydantic model of its"
                " value, or both: (model, message)"
            )
        return typing.cast(Call, target)
    two = len(parameters) == 2

    def typed(message: Message) -> Any:
        decoded = decode(model, message)
        return target(decoded, message) if two else target(decoded)

    return typed


def make_batching(reference: str, target: Any, function: Any, mark: BatchMark) -> Batching:
    """Returns the settings of a batch handler.

    Raises ConfigError if the handler's parameters are not those of a batch handler.
    """
    parameters = _parameters(reference, function)
    if _model(parameters[0]):
        name = parameters[0].__name__
        raise ConfigError(f"handler: {reference}: a batch handler takes list[{name}], not {name}")
    model = _model(next(iter(typing.get_args(parameters[0])), None))
    two = len(parameters) == 2
    if two and model is None:
        raise ConfigError(
            f"handler: {reference}: a batch handler takes one list, of messages or of pydantic"
            " models; or two lists: of the models, then of their messages"
        )

    def item(message: Message) -> Any:
        return decode(model, message) if model else message

    def call(items: list[Any], messages: list[Message]) -> Any:
        return target(items, messages) if two else target(items)

    return Batching(mark.size, mark.wait_s, item, call)


def one_by_one(batching: Batching, is_async: bool) -> Call:
    """Returns a function that calls a batch handler with a batch of one message."""

    def call(message: Message) -> Any:
        try:
            [end] = returned(1, batching.call([batching.item(message)], [message]))
        except BatchFailed as failed:
            [end] = ends_around(failed, 1)
        return _end(end)

    async def call_async(message: Message) -> Any:
        try:
            [end] = returned(1, await batching.call([batching.item(message)], [message]))
        except BatchFailed as failed:
            [end] = ends_around(failed, 1)
        return _end(end)

    return call_async if is_async else call


def decode(model: type[BaseModel], message: Message) -> BaseModel:
    """Decodes a message's value. Raises Undecodable if the value does not fit `model`.

    The text of the exception does not quote the value.
    """
    try:
        return model.model_validate_json(message.value or b"null")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "its top level"
        raise Undecodable(
            f"the value does not fit {model.__name__} at {where}: {first['msg']}"
        ) from None


def _end(end: Any) -> Any:
    if isinstance(end, BaseException):
        raise end
    return end


def _parameters(reference: str, function: Any) -> list[Any]:
    """Returns the types of a handler's parameters without a default.

    Raises ConfigError unless there are one or two of them.
    """
    every = inspect.signature(function).parameters.values()
    required = [p for p in every if p.default is p.empty and p.kind not in _REST]
    if named := [p.name for p in required if p.kind is p.KEYWORD_ONLY]:
        raise ConfigError(
            f"handler: {reference}: keyword-only parameter {named[0]!r} needs a default"
        )
    if not 1 <= len(required) <= 2:
        raise ConfigError(
            f"handler: {reference}: expected one or two parameters without a default,"
            f" found {len(required)}"
        )
    return [_hint(function, p.annotation) for p in required]


def _hint(function: Any, annotation: Any) -> Any:
    """Returns the type of an annotation; None if its name exists for type checkers only."""
    scope = getattr(getattr(function, "func", function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=scope)["it"]
    except NameError:
        return None


def _model(annotation: Any) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return None
