"""The parameters that a handler takes, and the calls that fit them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kworker.core.batch import BatchFailed, BatchMark, mark_of
from kworker.core.bisection import ends_around, returned
from kworker.message import Message
from kworker.worker.handlers.handler_class import check_class
from kworker.worker.handlers.parameters import Parameter, function_of, read_parameters
from kworker.worker.handlers.unfit_handler import Definition
from kworker.worker.handlers.value_type import ValueType

Call = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class Batching:
    """The settings of a batch handler, and the function that calls it.

    A batch has at most `size` records. It is due when it is full, or `wait_s` seconds after its
    first record. `item` makes an element of the handler's list from a message.
    """

    size: int
    wait_s: float
    item: Call  # the list's element for a message; raises Undecodable
    call: Callable[[list[Any], list[Message]], Any]  # with the items, and their messages


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """The parameters of a handler, as its code has them: a message, a built value, or both.

    `value` is the type that is built from a record's value; None if the handler only takes the
    message. `mark` has the arguments of `@batch`; None if the handler takes single records. A batch
    handler takes lists of messages, of built values, or both.
    """

    is_async: bool
    value: ValueType | None
    with_message: bool  # beside the value
    mark: BatchMark | None

    def call_of(self, target: Any) -> Call:
        """Returns a function that calls the handler `target` for one message."""
        if (batching := self.batching_of(target)) is not None:
            return _one_by_one(batching, self.is_async)
        if self.value is None:
            call: Call = target
            return call
        build, with_message = self.value.build, self.with_message

        def typed(message: Message) -> Any:
            built = build(message)
            return target(built, message) if with_message else target(built)

        return typed

    def batching_of(self, target: Any) -> Batching | None:
        """Returns the settings of a batch handler; None if `target` takes single records."""
        if self.mark is None:
            return None
        with_messages = self.with_message
        item = self.value.build if self.value else _itself

        def call(items: list[Any], messages: list[Message]) -> Any:
            return target(items, messages) if with_messages else target(items)

        return Batching(self.mark.size, self.mark.wait_s, item, call)


def read_signature(reference: str, found: Any) -> HandlerSignature:
    """Returns the parameters that a function, class or instance takes, without calling it.

    Raises UnfitHandler if kworker cannot call it with a record.
    """
    function = function_of(found)
    mark = mark_of(getattr(function, "func", function))
    name = _name_of(reference) if function is found else "__call__"
    is_async = inspect.iscoroutinefunction(function)
    definition = Definition(reference, name, is_async, mark is not None)
    if function is None:
        line = f"write: {definition.of_messages}"
        raise definition.refusal("is a class without a method __call__", line)
    if inspect.isclass(found):
        check_class(definition, found)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise definition.refusal(
            "is a generator, because of its yield", "return a list of results instead"
        )
    parameters = read_parameters(definition, function)
    return HandlerSignature(is_async, *_value_and_message(definition, parameters), mark)


def _value_and_message(
    definition: Definition, parameters: list[Parameter]
) -> tuple[ValueType | None, bool]:
    """Returns the type that is built from the value, and whether the message is passed, too."""
    first, second = [*parameters, None][:2]
    assert first is not None
    if first.is_built:
        if second is None or second.is_message:
            return _value_type(definition, first), second is not None
        message = "messages: list[Message]" if definition.is_batch else "message: Message"
        raise definition.refusal(
            f"has the second parameter {second.written}, where kworker passes the message",
            f"write: {definition.of(first.written, message)}; give others defaults",
        )
    if not first.is_message:
        raise definition.refusal(
            f"takes {first.written}, a type that kworker cannot build from a record",
            f"write: {definition.of_messages}, or {definition.built(first.name)}, where a"
            " dataclass or a pydantic model may stand for dict",
        )
    if second is None:
        return None, False
    if second.is_built:
        raise definition.refusal(
            f"takes the message first, but {second.written} must come first",
            f"write: {definition.of(second.written, first.written)}",
        )
    raise definition.refusal(
        f"has two parameters, {first.written} and {second.written}, and no type for the first",
        f"write: {definition.built(first.name, second.name)}, where a dataclass or a pydantic model"
        " may stand for dict",
    )


def _value_type(definition: Definition, parameter: Parameter) -> ValueType:
    try:
        return ValueType(parameter.type)
    except Exception as error:  # noqa: BLE001 - types may have code of their own for pydantic
        words = str(error).splitlines() or [type(error).__name__]
        raise definition.refusal(
            f"takes {parameter.written}, which pydantic cannot build:"
            f" {words[0].partition('. ')[0]}",
            f"change that type, or write: {definition.of_messages}",
        ) from None


def _one_by_one(batching: Batching, is_async: bool) -> Call:
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


def _end(end: Any) -> Any:
    if isinstance(end, BaseException):
        raise end
    return end


def _itself(message: Message) -> Message:
    return message


def _name_of(reference: str) -> str:
    name = reference.rpartition(":")[2].rpartition(".")[2]
    return name if name.isidentifier() else "handle"
