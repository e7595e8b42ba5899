"""`kworker topics`: creates and shows kworker's own topics."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.config.topics import (
    SETTINGS,
    TopicInfo,
    TopicSpec,
    differences,
    own_topics,
    plan,
    source_topics,
)
from kworker.errors import ConfigError, ExitCode, Unreachable

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

app = typer.Typer(help="Create or show the service's topics.", no_args_is_help=True)

TIMEOUT_S = 15.0
POLL_S = 0.1

Partitions = Annotated[
    int | None,
    typer.Option(min=1, help="Create missing source topics, too, with this many partitions."),
]
Replication = Annotated[
    int | None,
    typer.Option(
        min=1, help="Replicas of created source topics.", show_default="the brokers' default"
    ),
]


@dataclass
class CreateOutcome:
    """The topics that were created, that existed, that differ from the plan, and that failed."""

    created: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    different: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@app.command()
def create(
    config: ConfigOption = None,
    partitions: Partitions = None,
    replication: Replication = None,
    as_json: JsonOption = False,
) -> None:
    """Create the topics that are missing. Existing topics are never changed.

    kworker's own topics get the partition count, the replication and the min.insync.replicas of the
    source topics. Where the source topics differ, the largest value is taken. If an existing topic
    of kworker has other values, the command shows the difference.
    """
    loaded = toml_file.load(config)
    admin = _admin(loaded)
    outcome = CreateOutcome()
    if partitions:
        _create_sources(loaded, admin, partitions, replication or -1, outcome)
    if not outcome.failed:
        _create_own(loaded, admin, outcome)
    if as_json:
        typer.echo(json.dumps(asdict(outcome), indent=2))
    else:
        _say(outcome)
    if outcome.failed:
        raise typer.Exit(ExitCode.FAILURE)


def _create_sources(
    config: Config, admin: "Admin", partitions: int, replication: int, outcome: CreateOutcome
) -> None:
    if config.source.pattern:
        return  # a regular expression names no topic to create
    wanted = [TopicSpec(name, partitions, replication, {}) for name in config.source.topics]
    _create(admin, wanted, outcome)


def _create_own(config: Config, admin: "Admin", outcome: CreateOutcome) -> None:
    planned = plan(config, _sources(config, admin))
    known = admin.topics([spec.name for spec in planned], SETTINGS)
    _create(admin, planned, outcome)
    for spec in planned:
        if spec.name in known and (found := differences(spec, known[spec.name])):
            outcome.different[spec.name] = found


def _sources(config: Config, admin: "Admin") -> dict[str, TopicInfo]:
    """Returns the source topics. If some do not exist, raises a ConfigError that names them."""
    wanted = source_topics(config, admin.topic_names())
    found = admin.topics(wanted, SETTINGS)
    missing = [name for name in wanted if name not in found]
    if config.source.pattern and not found:
        raise ConfigError(
            f"source.topics: no topic matches {config.source.pattern}; create the source topics"
            " first, since kworker's own topics copy their partitions and replication"
        )
    if missing:
        raise ConfigError(
            f"source.topics: missing on the brokers: {', '.join(missing)}; create them, or add"
            " --partitions N --replication M to create them now"
        )
    return found


def _create(admin: "Admin", wanted: Sequence[TopicSpec], outcome: CreateOutcome) -> None:
    known = admin.topics([spec.name for spec in wanted])
    new = [spec for spec in wanted if spec.name not in known]
    failed = admin.create(new)
    created = [spec.name for spec in new if spec.name not in failed]
    _wait_for(admin, created)
    outcome.existing += known
    outcome.created += created
    outcome.failed |= failed


def _wait_for(admin: "Admin", names: Sequence[str]) -> None:
    """Waits until the brokers list the created topics. Raises Unreachable after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while missing := set(names) - set(admin.topics(names)):
        if time.monotonic() > deadline:
            raise Unreachable(
                f"topics created, but not yet listed by the brokers: {', '.join(sorted(missing))};"
                " run the command again in a moment"
            )
        time.sleep(POLL_S)


def _say(outcome: CreateOutcome) -> None:
    for name in outcome.created:
        typer.echo(f"created  {name}")
    for name in outcome.existing:
        typer.echo(f"exists   {name}")
        for difference in outcome.different.get(name, ()):
            typer.echo(f"         differs, not changed: {difference}")
    for name, reason in outcome.failed.items():
        typer.echo(f"kworker: {name}: {reason}", err=True)


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the service's topics, and where they differ from those that `create` would make."""
    loaded = toml_file.load(config)
    admin = _admin(loaded)
    sources = source_topics(loaded, admin.topic_names())
    names = [*sources, *own_topics(loaded), *loaded.delivery.topics]
    known = admin.topics(names, SETTINGS)
    there = {name: known[name] for name in sources if name in known}
    planned = {spec.name: spec for spec in plan(loaded, there)} if there else {}
    rows = [_row(name, name in sources, known, planned) for name in names]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print(rows)


def _row(
    name: str, source: bool, known: Mapping[str, TopicInfo], planned: Mapping[str, TopicSpec]
) -> dict[str, Any]:
    info = known.get(name)
    return {
        "topic": name,
        "role": "source" if source else "own" if name in planned else "output",
        "exists": info is not None,
        "partitions": info.partitions if info else None,
        "replication": info.replication if info else None,
        "config": info.config if info else {},
        "differs": differences(planned[name], info) if info and name in planned else [],
    }


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("topic", no_wrap=True), "parts", "replicas", "bytes max", "retention", "")
    for row in rows:
        found = [row["partitions"], row["replication"]]
        found += [row["config"].get(name) for name in ("max.message.bytes", "retention.ms")]
        notes = "; ".join(row["differs"]) if row["exists"] else "missing"
        table.add_row(row["topic"], *("" if v is None else str(v) for v in found), notes)
    Console().print(table)
    if not all(row["exists"] for row in rows):
        typer.echo("create the missing topics with: kworker topics create")


def _admin(config: Config) -> "Admin":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
