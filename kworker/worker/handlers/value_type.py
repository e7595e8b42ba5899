"""The types that are built from a record's value, for handlers that take one of them."""

import dataclasses
import types
import typing
from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kworker.core.message import Undecodable
from kworker.message import Message

# For dataclasses and dicts, which say no more than their fields. Models have settings of their own.
_EXACT = ConfigDict(extra="forbid", strict=True)
_PLAINER = {"unexpected_keyword_argument": "no such field"}


class ValueType:
    """The type that a handler takes: a dict, dataclass or pydantic model `X`, or `X | None`.

    A dict or dataclass is built from a JSON object whose values have exactly the declared types.
    For a dataclass, the object has no unknown field, and every field without a default. A model is
    built by its own rules. A null value fits only `X | None`.
    """

    def __init__(self, annotation: Any) -> None:
        """Raises PydanticUserError or NameError if pydantic cannot build `annotation`."""
        of = _without_none(annotation)
        self._none = of is not annotation
        self._name = getattr(of, "__name__", str(of))
        # Pydantic takes settings around a dataclass, and none for it.
        or_none: Any = Optional[of]  # noqa: UP045 - `|` needs types
        self._adapter: TypeAdapter[Any] = TypeAdapter(or_none, config=_EXACT)
        if not self._adapter.pydantic_complete:
            self._adapter.rebuild(raise_errors=True)

    def build(self, message: Message) -> Any:
        """Builds a message's value. Raises Undecodable if the value does not fit.

        The text of the exception names the field, and does not quote the value.
        """
        value = message.value
        try:
            built = self._adapter.validate_json(b"null" if value is None else value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "its top level"
            what = _PLAINER.get(first["type"], first["msg"])
            raise Undecodable(f"the value does not fit {self._name} at {where}: {what}") from None
        if built is None and not self._none:
            raise Undecodable(
                f"the value is null, which does not fit {self._name}; a handler that takes null"
                f" has the type {self._name} | None"
            )
        return built


def is_built(annotation: Any) -> bool:
    """Returns True for a dict, dataclass or pydantic model `X`, and for `X | None`.

    Does not check if pydantic can build the type.
    """
    of = _without_none(annotation)
    origin = typing.get_origin(of) or of
    if not isinstance(origin, type):
        return False
    return origin is dict or dataclasses.is_dataclass(origin) or issubclass(origin, BaseModel)


def _without_none(annotation: Any) -> Any:
    """Returns `X` for `X | None`, and any other annotation as it is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        several = [each for each in typing.get_args(annotation) if each is not types.NoneType]
        if len(several) == 1:
            return several[0]
    return annotation
