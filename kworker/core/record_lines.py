"""Records as JSON lines, as commands print and read them: the parts common to all commands."""

import base64
import binascii
import json
from typing import Any

from kworker.core.message import HeaderList

Data = dict[str, Any]


class BadLine(ValueError):
    """Raised for a line that does not describe a record as it should; the text says why."""


def as_text(content: bytes | None) -> str | dict[str, str] | None:
    """Returns bytes as JSON can hold them: as text if they are UTF-8, else `{"base64": …}`."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def object_of(line: bytes) -> Data:
    try:
        data = json.loads(line)
    except UnicodeDecodeError:
        raise BadLine("the line is not UTF-8") from None
    except ValueError as error:
        raise BadLine(f"the line is not JSON: {error}") from None
    except RecursionError:
        raise BadLine("the JSON in the line is nested too deeply") from None
    if not isinstance(data, dict):
        raise BadLine("the line is not a JSON object")
    return data


def present(data: Data, name: str, parent: str = "") -> Any:
    if name not in data:
        raise BadLine(f"the field {parent}{name} is missing")
    return data[name]


def headers_at(value: object) -> HeaderList:
    if not isinstance(value, list):
        raise BadLine(f"headers: expected a list of pairs, got {shown(value)}")
    return [_header(each, f"headers[{number}]") for number, each in enumerate(value)]


def _header(pair: object, field: str) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), content]:
            bytes_at(name, field)
            return name, bytes_at(content, field)
    raise BadLine(f'{field}: expected ["name", value], got {shown(pair)}')


def bytes_at(value: object, field: str) -> bytes | None:
    """Returns the bytes that `as_text` turned into `value`. Raises BadLine for any other value."""
    match value:
        case None:
            return None
        case str(text):
            try:
                return text.encode()
            except UnicodeEncodeError:
                raise BadLine(
                    f"{field}: the text has half of a surrogate pair, which UTF-8 cannot hold"
                ) from None
        case {"base64": str(text), **more} if not more:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise BadLine(f'{field}: the value of "base64" is not valid base64') from None
    raise BadLine(f'{field}: expected text, {{"base64": …}} or null, got {shown(value)}')


def shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
