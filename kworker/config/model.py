"""The model of `kworker.toml`: every key, its default, its bounds, and what it does.

`toml_file` reads the file. Over 300 lines, since one file has every key with its description.
"""

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

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        strict=True,
        use_attribute_docstrings=True,
    )


class SourceSettings(Section):
    topics: list[str] = Field(min_length=1)
    """Names, or one "^regex" (POSIX extended): [0-9] for a digit, ^(a|b) for alternatives."""
    start: Literal["earliest", "latest", "fail"] = "earliest"
    """earliest | latest | fail: position of the group at its first start, and only then."""
    max_age: DurationOrOff = ""  # type: ignore[assignment]
    """Older records become dead letters, expired (the breaker does not count them); "" is off."""
    tombstones: Literal["handle", "skip"] = "handle"
    """handle | skip: records without a value; skip settles them without a run, and counts them."""
    format: Literal["json"] = "json"
    """Format that typed handlers read; reserved: avro | protobuf | json-schema."""

    @property
    def pattern(self) -> str:
        """The regular expression of the source topics; "" if they are listed by name."""
        return self.topics[0] if self.topics[0].startswith("^") else ""


class KafkaSettings(Section):
    """librdkafka's properties by their dotted names, for all clients or for clients of one kind.

    `repr` leaves them out: some are passwords.
    """

    common: dict[str, Property] = Field(repr=False)
    """Properties of every client."""
    consumer: dict[str, Property] = Field({}, repr=False)
    """Overrides [kafka] for consumers."""
    producer: dict[str, Property] = Field({}, repr=False)
    """Overrides [kafka] for producers."""


class WorkersSettings(Section):
    processes: Positive = Field(default_factory=available_cpus)
    """Worker processes; default: the CPUs that this process may use; more help only handlers that
    compute.
    """
    threads: Positive = 16
    """Handlers at once in each process (def); as many as the called service can serve."""
    concurrency: Positive = 1000
    """Handlers at once in each process (async def)."""
    ordering: Literal["key", "partition", "none"] = "key"
    """key | partition | none: which records run in order; with key, not those without a key."""
    membership: Literal["static", "dynamic"] = "static"
    """static: a restarted worker resumes at once | dynamic: a stopped instance's partitions move at
    once.
    """
    in_flight: Positive = 2000
    """Records without an outcome, in each process; a crash repeats these, and uncommitted ones."""
    in_flight_bytes: Size = "64MiB"  # type: ignore[assignment]
    """Bytes of records without an outcome, in each process; costs memory."""
    memory: Size = "512MiB"  # type: ignore[assignment]
    """A larger worker is drained and replaced; the next time after 1 min at least, doubling to 30
    min.
    """
    max_records: NotNegative = 0
    """A worker is replaced after so many records, for handlers that leak; 0 is never."""
    handler_timeout: PositiveDuration = "5m"  # type: ignore[assignment]
    """A handler that runs longer is stuck: its process is replaced."""
    revoke_timeout: Duration = "5s"  # type: ignore[assignment]
    """A partition that moves waits at most this long for handlers that have started."""
    drain_timeout: Duration = "30s"  # type: ignore[assignment]
    """A stop waits at most this long for handlers that have started."""


class DeliverySettings(Section):
    guarantee: Literal["at-least-once", "exactly-once"] = "at-least-once"
    """at-least-once: a crash may repeat results | exactly-once: it repeats none."""
    results: str = ""  # filled in: <name>.results
    """The topic of results; default <name>.results."""
    topics: list[str] = []
    """Further topics that a Result may name; kworker writes to no others."""
    commit_interval: PositiveDuration = "200ms"  # type: ignore[assignment]
    """Shorter: a crash repeats less | longer: fewer requests."""
    commit_records: Positive = 10000
    """Commit sooner when so many records have an outcome."""


class RetrySettings(Section):
    delays: list[PositiveDuration] = ["1s", "10s", "1m"]  # type: ignore[list-item]
    """n delays allow n + 1 runs; [] makes the first failure final."""
    mode: Literal["topic", "hold"] = "topic"
    """topic: a failing record loses its place | hold: it waits in memory, and its key behind it."""
    held: Positive = 5000
    """Records of held keys, in each process; costs memory."""
    held_bytes: Size = "16MiB"  # type: ignore[assignment]
    """Bytes of records of held keys, in each process."""
    never: list[str] = []
    """Exception types that are never retried, by name or dotted path."""


class DeadLetterSettings(Section):
    topic: str = ""  # filled in: <name>.dead
    """The dead-letter topic; default <name>.dead."""
    crash_limit: Positive = 2
    """A record becomes a dead letter after killing its isolated process this often."""
    breaker: str = "50% of 200"
    """Hold dead letters back when they are more than this share of the last outcomes; "" is off."""


class IdempotencySettings(Section):
    redis: str = Field(repr=False)  # may hold a password
    """URL of the Redis that remembers events."""
    key: str
    """json:PATH | header:NAME | key | module:function: the id of an event."""
    missing: Literal["process", "reject"] = "process"
    """process | reject: records without the key."""
    prefix: str = ""  # filled in: kworker:<name>:
    """Prefix of an event's id in Redis; default kworker:<name>:. kworker's own keys are
    kworker-own:*.
    """
    ttl: PositiveDuration = "24h"  # type: ignore[assignment]
    """An event is remembered this long; costs Redis memory."""
    lease: PositiveDuration = "30s"  # type: ignore[assignment]
    """A dead worker's claim is taken over after this time."""
    unavailable: Literal["wait", "process"] = "wait"
    """wait | process: while Redis is down."""


class TableSettings(Section):
    name: str
    """The name of the table; also names the consumer group <name>.spark.<table>."""
    path: str = ""  # absolute once read
    """A folder, or a URI such as s3a://…; required, unless table is given."""
    table: str = ""
    """Instead of path: catalog.schema.table, with its catalog in [spark.conf]."""
    select: str = ""
    """Only results with Result(…, table="…"); "": those without a table."""
    format: Literal["delta", "parquet", "iceberg"] = "delta"
    """delta | parquet | iceberg: how its files are written."""
    schema_: StrictStr = Field("value STRING", alias="schema")
    """DDL of the result's columns."""
    transform: str = ""
    """module:function, DataFrame -> DataFrame; its output is the table."""
    mode: Literal["append", "complete", "update"] = "append"
    """append | complete | update: a batch adds rows, rewrites the table, or merges; reserved:
    upsert.
    """
    merge_on: list[str] = []
    """The columns that identify a row, for mode = "update"."""
    partition_by: list[str] = []
    """The columns that partition the table's files."""
    dedupe: bool = False
    """One row for each result, also for repeated ones (delta, iceberg)."""
    replays: bool = False
    """Include results of kworker replay."""
    batch_records: NotNegative = 0
    """Overrides that of [spark]; 0: the same."""
    batch_bytes: Size = "0B"  # type: ignore[assignment]
    """Overrides that of [spark]; 0B: the same."""


class SparkSettings(Section):
    run: Literal["here", "elsewhere"] = "here"
    """here: start launches the job | elsewhere: only kworker spark run does."""
    master: str = "local[2]"
    """Spark's master: a number of threads, or a cluster."""
    trigger: str = "5s"
    """Interval between batches, or "available-now"."""
    checkpoints: str = "data/_checkpoints"  # absolute once read
    """Spark's progress; keep it as long as the tables."""
    batch_records: Positive = 500_000
    """A batch takes at most so many results."""
    batch_bytes: Size = "128MiB"  # type: ignore[assignment]
    """A batch takes at most so many bytes, estimated from a sample of the topic."""
    conf: dict[str, SparkProperty] = Field({}, repr=False)
    """Any Spark property."""
    tables: list[TableSettings] = Field(min_length=1)
    """The tables, each from the results that it selects."""


class ConsoleSettings(Section):
    listen: str = "127.0.0.1:8321"
    """IP address and port of page, JSON, metrics and health; "" is off."""
    token: str = Field(default="", repr=False)
    """16 characters or more, as { file = "…" }; required where other hosts reach the address."""


class TracingSettings(Section):
    enabled: bool = False
    """A span for each run of a handler, sent by OTLP; needs the extra otel, takes OTEL_…
    variables.
    """


class LogSettings(Section):
    format: Literal["auto", "console", "json"] = "auto"
    """auto: text on a terminal, else JSON lines | console | json."""
    level: LogLevel = "info"
    """debug | info | warning | error: lines of lower levels are left out."""
    levels: dict[str, LogLevel] = {}
    """Levels by logger, such as { "my.module" = "debug", "urllib3" = "warning" }."""
    rotate: Size = "64MiB"  # type: ignore[assignment]
    """Size at which the log file of start --daemon is renamed; "0B" is never."""
    keep: Positive = 4
    """Renamed log files that are kept: kworker.log.1, the newest, and older ones."""


class Settings(Section):
    """The contents of `kworker.toml`; defaults that derive from `name` are filled in."""

    name: str
    """The consumer group; prefixes kworker's own topics."""
    handler: str = ""
    """module:function or module:Class; required unless [handlers] names every topic."""
    handlers: dict[str, str] = {}
    """Handlers by source topic, if one handler does not suit all."""
    state_dir: FolderPath = Path(".kworker")  # filled in: .kworker/<name>
    """Lock, control socket, journal; default .kworker/<name>, under systemd $STATE_DIRECTORY."""
    instance: str = Field(default_factory=socket.gethostname)
    """Tells copies of a service apart; default: the host's name. A second copy of one exits with
    73.
    """
    source: SourceSettings
    """What is read."""
    kafka: KafkaSettings
    """Any librdkafka property, for every client; nested tables work, too."""
    workers: WorkersSettings = WorkersSettings()
    """The worker processes and their limits."""
    delivery: DeliverySettings = DeliverySettings()
    """How results are published and positions committed."""
    retry: RetrySettings = RetrySettings()
    """What follows a failed run."""
    dead_letter: DeadLetterSettings = DeadLetterSettings()
    """Records that fail for good."""
    idempotency: IdempotencySettings | None = None
    """Runs each event once; outcomes are remembered in Redis."""
    spark: SparkSettings | None = None
    """Writes results to tables."""
    console: ConsoleSettings = ConsoleSettings()
    """The page, JSON, metrics and health by HTTP."""
    tracing: TracingSettings = TracingSettings()
    """Spans of handlers' runs, by OpenTelemetry."""
    log: LogSettings = LogSettings()
    """What is logged, and how."""

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
    """Returns the table `section`, with `key` set to `value` if it is absent or empty.

    If `section` is no table, returns it unchanged; validation then rejects it.
    """
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
