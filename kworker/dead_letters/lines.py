"""Dead letters as JSON lines: `export` writes them, a person edits them, `import` reads them."""

import json
from dataclasses import dataclass

from kworker.core.headers import Envelope, Source
from kworker.core.message import HeaderList
from kworker.core.record_lines import (
    BadLine,
    Data,
    as_text,
    bytes_at,
    headers_at,
    object_of,
    present,
    shown,
)
from kworker.dead_letters.dead_letter import DeadLetter, DeadLetterIdentity


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
        **({"replay": letter.replay} if letter.replay else {}),
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


def format_line(letter: DeadLetter, topic: str) -> str:
    """Returns a dead letter as a line of JSON, without a newline."""
    return json.dumps(as_data(letter, topic), ensure_ascii=False)


def parse_line(line: bytes, topic: str) -> Edit:
    """Parses a line about a dead letter of the dead-letter topic `topic`.

    Raises BadLine if a field is missing or wrong, or if the line names another topic.
    """
    data = object_of(line)
    position, source = _object_in(data, "position"), _object_in(data, "source")
    if position.get("topic") != topic:
        raise BadLine(f"position.topic: expected {topic}, got {position.get('topic')!r}")
    identity = DeadLetterIdentity(
        *(_whole(position, name, "position.") for name in DeadLetterIdentity._fields)
    )
    replay = _text(data, "replay").encode()
    envelope = Envelope(_read_source(source), 1, _whole(data, "redriven"), 0, [], replay)
    key, value = (bytes_at(present(data, name), name) for name in ("key", "value"))
    return Edit(identity, envelope, key, value, headers_at(present(data, "headers")))


def _read_source(data: Data) -> Source:
    topic = present(data, "topic", "source.")
    if not isinstance(topic, str) or not topic:
        raise BadLine(f"source.topic: expected a topic's name, got {shown(topic)}")
    partition, offset = (_whole(data, name, "source.") for name in ("partition", "offset"))
    timestamp = present(data, "timestamp", "source.")
    if type(timestamp) is not int:  # -1 is a record without one
        raise BadLine(f"source.timestamp: expected whole milliseconds, got {shown(timestamp)}")
    return Source(topic, partition, offset, timestamp)


def _object_in(data: Data, name: str) -> Data:
    part = present(data, name)
    if not isinstance(part, dict):
        raise BadLine(
            f"{name}: expected an object as kworker dead export writes it, got {shown(part)}"
        )
    return part


def _text(data: Data, name: str) -> str:
    """Returns the text in a field; "" if it is missing. Raises BadLine if it is not a text."""
    value = data.get(name, "")
    if not isinstance(value, str):
        raise BadLine(f"{name}: expected a text, got {shown(value)}")
    return value


def _whole(data: Data, name: str, parent: str = "") -> int:
    value = present(data, name, parent)
    if type(value) is not int or value < 0:
        raise BadLine(f"{parent}{name}: expected a whole number of at least 0, got {shown(value)}")
    return value
