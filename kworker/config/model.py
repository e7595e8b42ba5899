"""The model of `kworker.toml`: every key, its default, its bounds. `toml_file` reads it."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from kworker.core.duration import format_duration, parse_duration

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(text: object) -> int:
    """Parses a size such as `"64MiB"` into bytes. Raises ValueError for any other text."""
    if match := _SIZE.fullmatch(text) if isinstance(text, str) else None:
        return int(float(match[1]) * _SIZE_BYTES[match[2]])
    raise ValueError('expected a size such as "16KiB", "64MiB" or "2GiB"')


def format_size(size: int) -> str:
    """Formats bytes in the largest unit that needs no fraction."""
    unit = next(unit for unit in reversed(_SIZE_BYTES) if size % _SIZE_BYTES[unit] == 0)
    return f"{size // _SIZE_BYTES[unit]}{unit}" if size else "0B"


def available_cpus() -> int:
    """The number of CPUs that this process may use; in a container fewer than the machine's."""
    return len(os.sched_getaffinity(0))


def _whole(at_least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
            return value
        raise ValueError(f"expected a whole number of at least {at_least}")

    return check


def _positive_duration(text: object) -> float:
    seconds = parse_duration(text)
    if seconds > 0:
        return seconds
    raise ValueError("expected a duration of at least 1ms")


def _duration_or_off(text: object) -> float | None:
    return None if text in ("", None) else _positive_duration(text)


def _property(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("expected a string, a number, true or false")


def _as_text(value: object) -> object:
    """Turns numbers and booleans into strings, because Spark's properties are strings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


_DURATION_JSON = {"type": "string", "pattern": r"^\d+(\.\d+)?(ms|s|m|h|d)$"}
_SIZE_JSON = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(B|KiB|MiB|GiB|TiB)$"}
_SPELL_DURATION = PlainSerializer(format_duration, when_used="json")

Duration = Annotated[
    float, BeforeValidator(parse_duration), _SPELL_DURATION, WithJsonSchema(_DURATION_JSON)
]
"""Seconds."""
PositiveDuration = Annotated[
    float, BeforeValidator(_positive_duration), _SPELL_DURATION, WithJsonSchema(_DURATION_JSON)
]
"""Seconds, more than 0."""
DurationOrOff = Annotated[
    float | None,
    BeforeValidator(_duration_or_off),
    PlainSerializer(lambda value: format_duration(value) if value else "", when_used="json"),
    WithJsonSchema({"type": "string"}),
]
"""Seconds; `""` in the file is None."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema(_SIZE_JSON),
]
"""Bytes."""
Positive = Annotated[
    int, BeforeValidator(_whole(1)), WithJsonSchema({"type": "integer", "minimum": 1})
]
NotNegative = Annotated[
    int, BeforeValidator(_whole(0)), WithJsonSchema({"type": "integer", "minimum": 0})
]
FolderPath = Annotated[Path, Field(strict=False)]
Property = Annotated[str | int | float | bool, BeforeValidator(_property)]
SparkProperty = Annotated[str, BeforeValidator(_as_text)]


class Section(BaseModel):
    """A table of the file, as an immutable model. Values are not converted; unknown keys fail."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True)


class SourceSettings(Section):
    topics: list[str] = Field(min_length=1)
    start: Literal["earliest", "latest", "fail"] = "earliest"
    max_age: DurationOrOff = ""  # type: ignore[assignment]
    tombstones: Literal["handle", "skip"] = "handle"
    format: Literal["json"] = "json"

    @property
    def pattern(self) -> str:
        """The regular expression of the source topics; "" if they are listed by name."""
        return self.topics[0] if self.topics[0].startswith("^") else ""


class KafkaSettings(Section):
    """librdkafka's properties by their dotted names, for all clients or for clients of one kind.

    `repr` leaves them out: some are passwords.
    """

    common: dict[str, Property] = Field(repr=False)
    consumer: dict[str, Property] = Field({}, repr=False)
    producer: dict[str, Property] = Field({}, repr=False)


class WorkersSettings(Section):
    processes: Positive = Field(default_factory=available_cpus)
    threads: Positive = 16
    concurrency: Positive = 1000
    ordering: Literal["key", "partition", "none"] = "key"
    membership: Literal["static", "dynamic"] = "static"
    in_flight: Positive = 2000
    in_flight_bytes: Size = "64MiB"  # type: ignore[assignment]
    memory: Size = "512MiB"  # type: ignore[assignment]
    max_records: NotNegative = 0
    handler_timeout: PositiveDuration = "5m"  # type: ignore[assignment]
    revoke_timeout: Duration = "5s"  # type: ignore[assignment]
    drain_timeout: Duration = "30s"  # type: ignore[assignment]


class DeliverySettings(Section):
    guarantee: Literal["at-least-once", "exactly-once"] = "at-least-once"
    results: str = ""  # filled in: <name>.results
    topics: list[str] = []
    commit_interval: PositiveDuration = "200ms"  # type: ignore[assignment]
    commit_records: Positive = 10000


class RetrySettings(Section):
    delays: list[PositiveDuration] = ["1s", "10s", "1m"]  # type: ignore[list-item]
    mode: Literal["topic", "hold"] = "topic"
    held: Positive = 5000
    held_bytes: Size = "16MiB"  # type: ignore[assignment]
    never: list[str] = []


class DeadLetterSettings(Section):
    topic: str = ""  # filled in: <name>.dead
    crash_limit: Positive = 2
    breaker: str = "50% of 200"  # "" is off


class IdempotencySettings(Section):
    redis: str = Field(repr=False)  # may hold a password
    key: str
    missing: Literal["process", "reject"] = "process"
    prefix: str = ""  # filled in: kworker:<name>:
    ttl: PositiveDuration = "24h"  # type: ignore[assignment]
    lease: PositiveDuration = "30s"  # type: ignore[assignment]
    unavailable: Literal["wait", "process"] = "wait"


class TableSettings(Section):
    name: str
    path: str = ""  # absolute once read
    table: str = ""
    select: str = ""
    format: Literal["delta", "parquet", "iceberg"] = "delta"
    schema_: StrictStr = Field("value STRING", alias="schema")
    transform: str = ""
    mode: Literal["append", "complete", "update"] = "append"
    merge_on: list[str] = []
    partition_by: list[str] = []
    dedupe: bool = False
    replays: bool = False
    batch_records: NotNegative = 0  # 0 and 0B: the value of [spark]
    batch_bytes: Size = "0B"  # type: ignore[assignment]


class SparkSettings(Section):
    run: Literal["here", "elsewhere"] = "here"
    master: str = "local[2]"
    trigger: str = "5s"  # a duration, or "available-now"
    checkpoints: str = "data/_checkpoints"  # absolute once read
    batch_records: Positive = 500_000
    batch_bytes: Size = "128MiB"  # type: ignore[assignment]
    conf: dict[str, SparkProperty] = Field({}, repr=False)
    tables: list[TableSettings] = Field(min_length=1)


class ConsoleSettings(Section):
    listen: str = "127.0.0.1:8321"  # "" is off
    token: str = Field(default="", repr=False)  # "" only on a loopback address


class LogSettings(Section):
    format: Literal["auto", "console", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(Section):
    """The contents of `kworker.toml`; defaults that derive from `name` are filled in."""

    name: str
    handler: str = ""
    handlers: dict[str, str] = {}
    state_dir: FolderPath = Path(".kworker")  # filled in: .kworker/<name>
    instance: str = Field(default_factory=socket.gethostname)
    source: SourceSettings
    kafka: KafkaSettings
    workers: WorkersSettings = WorkersSettings()
    delivery: DeliverySettings = DeliverySettings()
    retry: RetrySettings = RetrySettings()
    dead_letter: DeadLetterSettings = DeadLetterSettings()
    idempotency: IdempotencySettings | None = None
    spark: SparkSettings | None = None
    console: ConsoleSettings = ConsoleSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_names(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(name := raw.get("name"), str):
            return raw
        filled = {
            "delivery": _default(raw.get("delivery", {}), "results", f"{name}.results"),
            "dead_letter": _default(raw.get("dead_letter", {}), "topic", f"{name}.dead"),
        }
        if "idempotency" in raw:
            filled["idempotency"] = _default(raw["idempotency"], "prefix", f"kworker:{name}:")
        return {**raw, **filled}


def _default(section: object, key: str, value: str) -> object:
    """Returns a table with `key` added if absent; what is no table, as it is, to be rejected."""
    if isinstance(section, Section):
        return section if getattr(section, key) else section.model_copy(update={key: value})
    if isinstance(section, dict):
        return {**section, key: section.get(key) or value}
    return section


class Config(Settings):
    """The whole configuration: defaults filled in, paths absolute."""

    file: FolderPath  # the path it was read from; its folder is on the import path
    secret_keys: frozenset[str] = frozenset()  # dotted keys of values from {file=} or {env=}

    def route(self, topic: str) -> str:
        """The handler of a source topic, as `module:name`."""
        return self.handlers.get(topic, self.handler)

    @property
    def requeue_topic(self) -> str:
        """The topic by which retried and redriven records return to the workers."""
        return f"{self.name}.requeue"

    @property
    def dead_state_topic(self) -> str:
        """The topic that records which dead letters are resolved."""
        return f"{self.name}.dead.state"

    def retry_topic(self, delay_s: float) -> str:
        """The topic in which a record waits `delay_s` seconds for its next run."""
        return f"{self.name}.retry.{format_duration(delay_s)}"


Raw = dict[str, Any]
"""The contents of a TOML file before validation."""
