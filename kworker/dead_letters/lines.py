"""Dead letters as JSON lines: `export` writes them, a person edits them, `import` reads them."""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from kworker.core.headers import Envelope, Source
from kworker.core.message import HeaderList
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterIdentity

Data = dict[str, Any]


class BadLine(ValueError):
    """A line cannot be imported; the error's text says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A line of an edited file: a dead letter's identity, and its record as a person wants it."""

    identity: DeadLetterIdentity
    envelope: Envelope
    key: bytes | None
    value: bytes | None
    headers: HeaderList


def as_data(letter: DeadLetter, topic: str) -> Data:
    """Returns a dead letter as an object for JSON: its position, failure and record."""
    identity, source = letter.identity, letter.source
    return {
        "position": {"topic": topic, **identity._asdict()},
        "source": source and _source(source),
        "reason": letter.reason,
        "exception": letter.exception,
        "message": letter.message,
        "attempt": letter.attempt,
        "failed_at": letter.failed_at,
        "redriven": letter.redriven,
        "key": as_text(letter.key),
        "value": as_text(letter.value),
        "headers": [[name, as_text(content)] for name, content in letter.headers],
    }


def _source(source: Source) -> Data:
    return {
        "topic": source.topic,
        "partition": source.partition,
        "offset": source.offset,
        "timestamp": source.timestamp,
    }


def as_text(content: bytes | None) -> str | dict[str, str] | None:
    """Returns bytes as JSON can hold them: as text if they are UTF-8, else `{"base64": …}`."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def format_line(letter: DeadLetter, topic: str) -> str:
    """Returns a dead letter as a line of JSON, without a newline."""
    return json.dumps(as_data(letter, topic), ensure_ascii=False)


def parse_line(line: bytes, topic: str) -> Edit:
    """Parses a line about a dead letter of the dead-letter topic `topic`. Raises BadLine."""
    data = _object(line)
    position, source = _object_in(data, "position"), _object_in(data, "source")
    if position.get("topic") != topic:
        raise BadLine(f"position.topic: expected {topic}, got {position.get('topic')!r}")
    identity = DeadLetterIdentity(
        *(_whole(position, name, "position.") for name in DeadLetterIdentity._fields)
    )
    envelope = Envelope(_read_source(source), 1, _whole(data, "redriven"), 0, [])
    key, value = (_bytes(_present(data, name), name) for name in ("key", "value"))
    return Edit(identity, envelope, key, value, _headers(_present(data, "headers")))


def _object(line: bytes) -> Data:
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


def _read_source(data: Data) -> Source:
    topic = _present(data, "topic", "source.")
    if not isinstance(topic, str) or not topic:
        raise BadLine(f"source.topic: expected a topic's name, got {_shown(topic)}")
    partition, offset = (_whole(data, name, "source.") for name in ("partition", "offset"))
    timestamp = _present(data, "timestamp", "source.")
    if type(timestamp) is not int:  # -1 is a record without one
        raise BadLine(f"source.timestamp: expected whole milliseconds, got {_shown(timestamp)}")
    return Source(topic, partition, offset, timestamp)


def _present(data: Data, name: str, parent: str = "") -> Any:
    if name not in data:
        raise BadLine(f"the field {parent}{name} is missing")
    return data[name]


def _object_in(data: Data, name: str) -> Data:
    part = _present(data, name)
    if not isinstance(part, dict):
        raise BadLine(
            f"{name}: expected an object as kworker dead export writes it, got {_shown(part)}"
        )
    return part


def _whole(data: Data, name: str, parent: str = "") -> int:
    value = _present(data, name, parent)
    if type(value) is not int or value < 0:
        raise BadLine(f"{parent}{name}: expected a whole number, got {_shown(value)}")
    return value


def _headers(value: object) -> HeaderList:
    if not isinstance(value, list):
        raise BadLine(f"headers: expected a list of pairs, got {_shown(value)}")
    return [_header(each, f"headers[{number}]") for number, each in enumerate(value)]


def _header(pair: object, field: str) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), content]:
            _bytes(name, field)
            return name, _bytes(content, field)
    raise BadLine(f'{field}: expected ["name", value], got {_shown(pair)}')


def _bytes(value: object, field: str) -> bytes | None:
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
    raise BadLine(f'{field}: expected text, {{"base64": …}} or null, got {_shown(value)}')


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
