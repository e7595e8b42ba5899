"""The model of `kworker.toml`: every key, its default, its bounds. `toml_file` reads it."""

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, model_validator

from kworker.config.value_types import (
    Duration,
    DurationOrOff,
    FolderPath,
    LogLevel,
    NotNegative,
    Positive,
    PositiveDuration,
    Property,
    Size,
    SparkProperty,
)
from kworker.core.duration import format_duration


def available_cpus() -> int:
    """The number of CPUs that this process may use; in a container fewer than the machine's."""
    return len(os.sched_getaffinity(0))


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
    level: LogLevel = "info"
    levels: dict[str, LogLevel] = {}
    rotate: Size = "64MiB"  # type: ignore[assignment]
    keep: Positive = 4


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
