"""`kworker send`: writes records to a topic, for trying a service out."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from kworker.cli.options import INTERRUPTED, ConfigOption, JsonOption, RateOption, parse_rate
from kworker.cli.progress import reading
from kworker.cli.records.options import (
    FileOption,
    HeaderOption,
    KeyFieldOption,
    KeyOption,
    NullOption,
    PartitionOption,
    RecordsOption,
    TopicOption,
    ValuesArgument,
)
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties, producer_properties, record_sizes
from kworker.config.model import Config
from kworker.config.topics import BYTES_MAX, own_topics
from kworker.core.message import HeaderList
from kworker.core.outcome import Output
from kworker.core.record_lines import BadLine, bytes_at, headers_at, object_of, present, shown
from kworker.dead_letters.repair import RateLimit
from kworker.dead_letters.resolver import Interruption
from kworker.errors import ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from kworker.clients.sender import RecordSender
    from kworker.config.topics import TopicInfo

app = typer.Typer()
TIMEOUT_S = 20.0
_RECORD_BYTES = 1_000_000  # up to here the broker judges, which measures compressed records
_FIELDS = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})
_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class Draft:
    """The topic, partition, key and headers that the options give to every record."""

    topic: str
    partition: int
    key: bytes | None
    key_field: str | None
    headers: HeaderList

    def of_value(self, value: bytes | None) -> Output:
        """Makes a record with this value; the key is `key`, or the value's field `key_field`.

        Raises BadLine if the value is not a JSON object with this field, or if the field is neither
        text nor a whole number.
        """
        key = self.key if self.key_field is None else _field_of(value, self.key_field)
        return Output(self.topic, key, value, self.headers, partition=self.partition)

    def of_line(self, line: bytes) -> Output:
        """Makes the record that a line of `kworker tail --json` describes.

        Raises BadLine if the line does not describe a record that can be sent.
        """
        data = object_of(line)
        if unknown := sorted(data.keys() - _FIELDS):
            raise BadLine(
                f"the field {unknown[0]} is unknown; allowed: {', '.join(sorted(_FIELDS))}"
            )
        value = bytes_at(present(data, "value"), "value")
        made = self.of_value(value)
        key = bytes_at(data["key"], "key") if "key" in data else made.key
        headers = [*headers_at(data.get("headers", [])), *self.headers]
        if any("\0" in name for name, _ in headers):
            raise BadLine("headers: a name contains a NUL, at which Kafka's client cuts it off")
        return Output(self.topic, key, value, headers, partition=self.partition)


@app.command(rich_help_panel="Records")
def send(
    values: ValuesArgument = None,
    config: ConfigOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    key_field: KeyFieldOption = None,
    header: HeaderOption = None,
    partition: PartitionOption = None,
    file: FileOption = None,
    records: RecordsOption = None,
    null: NullOption = False,
    rate: RateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send records to the source topic, or to another one, and print where each landed.

    Example: [bold]kworker send '{"order_id": 1}' --key c-1[/bold], or
    [bold]kworker send --file orders.jsonl --key-field customer --rate 100/s[/bold]

    A file is checked to its end before any of it is sent. Exit code 0 means that Kafka
    has acknowledged all records.
    """
    inputs = [bool(values), file is not None, records is not None, null]
    if sum(inputs) != 1:
        raise UsageError("send: expected one of VALUE..., --file, --records, --null")
    if key is not None and key_field is not None:
        raise UsageError("send: --key and --key-field exclude each other")
    pace = RateLimit(parse_rate(rate))
    headers = _headers(header or ())
    loaded = toml_file.load(config)
    name = topic or _source_topic(loaded)
    info = _topic(loaded, name)
    if partition is not None and partition >= info.partitions:
        raise UsageError(f"--partition: {name} has the partitions 0 to {info.partitions - 1}")
    key_bytes = None if key is None else os.fsencode(key)
    draft = Draft(name, -1 if partition is None else partition, key_bytes, key_field, headers)
    if (path := file or records) is not None:
        make = draft.of_value if file else draft.of_line
        # Stdin can be read only once: its lines are checked as they are sent.
        total = 0 if path == _STDIN else sum(1 for _ in _records_of(path, make))
        drafts: Iterable[tuple[int, Output]] = _records_of(path, make)
    else:
        texts = [None] if null else list(map(os.fsencode, values or ()))
        drafts = list(_made(enumerate(texts, 1), draft.of_value, "value"))
        total = len(texts)
    _send_all(loaded, name, info, drafts, total, pace, as_json=as_json)


# -- what to send -----------------------------------------------------------------------


def _records_of(path: Path, make: Callable[[bytes], Output]) -> Iterator[tuple[int, Output]]:
    with _opened(path) as lines:
        stripped = ((number, line.rstrip(b"\r\n")) for number, line in enumerate(lines, 1))
        yield from _made(((number, line) for number, line in stripped if line), make, str(path))


def _made(
    values: Iterable[tuple[int, Any]], make: Callable[[Any], Output], where: str
) -> Iterator[tuple[int, Output]]:
    """Yields each value's number, and the record that `make` returns for the value.

    If `make` raises BadLine, raises UsageError instead; its text names `where` and the number.
    """
    for number, value in values:
        try:
            yield number, make(value)
        except BadLine as problem:
            raise UsageError(f"{where}:{number}: {problem}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with nullcontext(sys.stdin.buffer) if path == _STDIN else path.open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _field_of(value: bytes | None, path: str) -> bytes:
    data: Any = object_of(value or b"null")
    for name in path.split("."):
        if not isinstance(data, dict) or name not in data:
            raise BadLine(f"--key-field: the value has no field {path}")
        data = data[name]
    if isinstance(data, bool) or not isinstance(data, str | int):
        raise BadLine(f"--key-field: {path} is {shown(data)}, expected text or a whole number")
    return str(data).encode()


def _headers(given: Iterable[str]) -> HeaderList:
    found: HeaderList = []
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f'--header: expected NAME=VALUE, got "{text}"')
        if name.lower().startswith("kworker-"):
            raise UsageError(
                f"--header: {name}: names with the prefix kworker- are reserved;"
                " choose another name"
            )
        found.append((name, os.fsencode(value)))
    return found


# -- where to -----------------------------------------------------------------------------


def _source_topic(config: Config) -> str:
    if config.source.pattern:
        raise UsageError("--topic: missing; the source is a pattern, so name one of its topics")
    if len(config.source.topics) > 1:
        raise UsageError(f"--topic: missing; name one of {', '.join(config.source.topics)}")
    return config.source.topics[0]


def _topic(config: Config, name: str) -> "TopicInfo":
    from kworker.clients.admin import Admin

    if name in own_topics(config):
        raise UsageError(f"--topic: kworker itself writes {name}; name another topic")
    found = Admin(admin_properties(config), timeout_s=TIMEOUT_S).topics([name], [BYTES_MAX])
    if name not in found:
        raise ConfigError(
            f"{name}: no such topic; correct the name, or, if it is in source.topics, create it"
            " with as many partitions as it shall have: kworker topics create --partitions 4"
        )
    return found[name]


def _sender(config: Config, info: "TopicInfo") -> "RecordSender":
    from kworker.clients.sender import RecordSender

    limit = int(info.config[BYTES_MAX])
    properties = producer_properties(config, slot=0)
    own = {
        "client.id": f"{config.name}-{config.instance}-send",
        **record_sizes(properties, largest=max(limit, _RECORD_BYTES), smallest=limit),
    }
    return RecordSender({**properties, **own}, timeout_s=TIMEOUT_S)


# -- sending ------------------------------------------------------------------------------


def _send_all(
    config: Config,
    topic: str,
    info: "TopicInfo",
    drafts: Iterable[tuple[int, Output]],
    total: int,
    pace: RateLimit,
    *,
    as_json: bool,
) -> None:
    sender, interruption, due_s = _sender(config, info), Interruption(), 0.0
    try:
        with interruption.on_signals(), reading(total, "sent") as progress:
            for number, output in progress.of(interruption.until(drafts)):
                sender.wait_until(due_s, lambda: interruption.requested)
                if interruption.requested:
                    break
                due_s = time.monotonic() + pace.rest_s(1)
                sender.send(output, number)
                progress.done(sender.acknowledged)
            sender.finish()
    finally:
        if sender.spans or sender.refused_count:
            _print(sender, topic, as_json=as_json)
    if interruption.requested:
        raise typer.Exit(INTERRUPTED)
    if sender.refused_count:
        raise typer.Exit(ExitCode.FAILURE)


def _print(sender: "RecordSender", topic: str, *, as_json: bool) -> None:
    spans = sorted(sender.spans.items())
    if as_json:
        rows = [
            {"partition": at[1], "count": span.count, "first": span.first, "last": span.last}
            for at, span in spans
        ]
        refused = [each._asdict() for each in sender.refused]
        typer.echo(
            json.dumps(
                {
                    "topic": topic,
                    "sent": sender.acknowledged,
                    "not_sent": sender.refused_count,
                    "partitions": rows,
                    "refused": refused,
                }
            )
        )
        return
    for (name, partition), span in spans:
        until = f" to {span.last}" if span.count > 1 else ""
        typer.echo(f"{name}:{partition}:{span.first}{until}")
    typer.echo(f"sent {sender.acknowledged:,} to {topic}", err=True)
    for each in sender.refused:
        typer.echo(f"kworker: record {each.number}: {each.reason}", err=True)
    if sender.refused_count:
        typer.echo(f"kworker: {sender.refused_count:,} records are not in {topic}", err=True)
