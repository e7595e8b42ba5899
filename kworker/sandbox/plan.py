"""The options, the settings (its plan), the saved state and the status of a sandbox."""

import base64
import uuid
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kworker.errors import KworkerError, UsageError
from kworker.sandbox.process import Process

BROKERS_MAX = 5
HEAP_OF_ONE, HEAP_OF_EACH = "512m", "320m"
PORT_MAX = 65000  # the controllers' ports are above the clients'


ServerKind = Literal["kafka", "redis"]
PARTS: dict[ServerKind, tuple[str, ...]] = {
    "kafka": ("kafka", "kafka_port", "brokers", "heap", "properties"),
    "redis": ("redis", "redis_port"),
}


class Options(BaseModel):
    """The options of a sandbox command; None stands for the saved value or else the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kafka: bool | None = None
    redis: bool | None = None
    kafka_port: int | None = Field(default=None, ge=1, le=PORT_MAX)
    redis_port: int | None = Field(default=None, ge=1, le=65535)
    brokers: int | None = Field(default=None, ge=1, le=BROKERS_MAX)
    heap: str | None = Field(default=None, pattern=r"^\d+[kmgKMG]$")
    properties: dict[str, str] | None = None


class Plan(BaseModel):
    """The settings of a sandbox, as the last successful `kworker sandbox up` saved them."""

    model_config = ConfigDict(frozen=True)
    kafka: bool = True
    redis: bool = True
    kafka_port: int = 9092
    redis_port: int = 6379
    brokers: int = 1
    heap: str = HEAP_OF_ONE
    properties: dict[str, str] = {}

    def changed(self, options: Options) -> "Plan":
        """Returns a copy of the plan with the given options.

        If they change the number of brokers and give no heap, the copy has a default heap.
        """
        given = options.model_dump(exclude_none=True)
        if "brokers" in given and "heap" not in given and given["brokers"] != self.brokers:
            given["heap"] = _heap(given["brokers"])
        return self.model_copy(update=given)

    def untuned(self) -> "Plan":
        """Returns a copy with the default heap and no broker properties.

        The heap or the properties of this plan may prevent a start.
        """
        return self.model_copy(update={"heap": _heap(self.brokers), "properties": {}})

    def differences(self, other: "Plan", part: ServerKind) -> list[str]:
        """The names of the options of Kafka, or of Redis, that differ between the two plans."""
        return [name for name in PARTS[part] if getattr(self, name) != getattr(other, name)]

    @property
    def kafka_ports(self) -> list[int]:
        return list(range(self.kafka_port, self.kafka_port + self.brokers))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.kafka_ports)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"


def new_cluster_id() -> str:
    """Returns an id in Kafka's format: 16 bytes in URL-safe base64, without a leading dash."""
    while True:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):
            return identity


def _heap(brokers: int) -> str:
    return HEAP_OF_ONE if brokers == 1 else HEAP_OF_EACH


class SandboxState(BaseModel):
    """The saved state of a sandbox. Only a process that holds the folder's lock changes it."""

    plan: Plan = Plan()
    cluster: str = Field(default_factory=new_cluster_id)
    controllers: list[int] = []
    processes: dict[str, Process] = {}

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].alive()

    def running(self, part: ServerKind) -> bool:
        names = [name for name in self.processes if (name == "redis") == (part == "redis")]
        return any(self.alive(name) for name in names)

    def save(self, path: Path) -> None:
        draft = path.with_suffix(".part")
        draft.write_text(self.model_dump_json(indent=1))
        draft.replace(path)


def load(path: Path) -> SandboxState | None:
    """Reads the saved state; None before the first start. Raises `KworkerError` for a bad file."""
    try:
        return SandboxState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise KworkerError(f"{path} is not the saved state of a sandbox: remove it") from error


def options(**given: Any) -> Options:
    """Validates options. A `UsageError` names the wrong option with dashes: `--kafka-port`."""
    try:
        return Options(**given)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        value, problem = first["input"], first["msg"]
        raise UsageError(f"{option} {value}: {problem}") from error


class ServerStatus(BaseModel):
    """One server (a broker or Redis) in the output of `kworker sandbox status`."""

    name: str
    port: int
    pid: int | None  # None when it does not run
    log: str


class Status(BaseModel):
    """The output of `kworker sandbox status`.

    Later versions of kworker may add fields, but they never rename one.
    """

    folder: str
    running: bool
    bootstrap: str | None
    redis: str | None
    servers: list[ServerStatus]
