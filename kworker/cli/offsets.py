"""`kworker offsets`: shows and resets the committed positions of the service's group."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.cli.positions import (
    GOALS,
    as_data,
    moves,
    parse_goal,
    print_moves,
    print_partitions,
)
from kworker.clients.group_positions import group_positions, offset_spans
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.config.topics import source_topics
from kworker.core.positions import Goal, GroupPosition
from kworker.errors import AlreadyRunning, ConfigError, KworkerError, UsageError
from kworker.instance.state_folder import StateFolder

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

app = typer.Typer(
    help="Show or reset the committed positions of the service's consumer group.",
    no_args_is_help=True,
)

TIMEOUT_S = 20.0


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the committed position and lag of each partition of the source and requeue topics.

    Example: [bold]kworker offsets show --json[/bold]
    """
    loaded = toml_file.load(config)
    admin = _admin(loaded)
    rows = _positions(loaded, admin, [*_sources(loaded, admin), loaded.requeue_topic])
    if as_json:
        typer.echo(json.dumps([_as_data(row) for row in rows], indent=2))
    else:
        print_partitions(["committed", "low", "high", "lag"], [_cells(row) for row in rows])


def _as_data(row: GroupPosition) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed": row.committed,
        "low": row.low,
        "high": row.high,
        "finished_beyond": row.finished_beyond,
        "made_again": row.made_again,
        "lag": row.lag,
    }


def _cells(row: GroupPosition) -> Sequence[object]:
    notes = []
    if row.expired:
        notes.append(f"{row.expired:,} records expired before they were read")
    if row.finished_beyond:
        notes.append(f"{row.finished_beyond:,} records of the lag are finished")
    if row.made_again:
        notes.append(
            "the topic was deleted and created again: reading begins at the earliest offset"
        )
    return *row.at, row.committed, row.low, row.high, row.lag, "; ".join(notes)


@app.command()
def reset(
    to: Annotated[str, typer.Option(metavar="WHERE", help=f"The new position: {GOALS}.")],
    config: ConfigOption = None,
    topic: Annotated[
        str | None, typer.Option(help="Reset only this topic: a source topic, or <name>.requeue.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Reset only this partition.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the new positions, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move the group's committed positions in all partitions of the source topics.

    Example: [bold]kworker offsets reset --to -2h --dry-run[/bold]

    The service must be stopped. Unfinished records before the new position are skipped; all
    records from the new position on run again. If a partition does not hold the offset that
    you choose, its new position is the nearest offset that it holds.
    """
    loaded = toml_file.load(config)
    goal = _goal(to)
    admin = _admin(loaded)
    if not dry_run:
        _refuse_while_running(loaded, admin)
    sources = _sources(loaded, admin)
    before = _positions(loaded, admin, [*sources, loaded.requeue_topic])
    chosen = _chosen(before, _topics(loaded, sources, topic), partition)
    if len(chosen) < sum(row.topic in sources for row in before):
        _refuse_without_positions(loaded, before)
    found = moves(admin, chosen, goal)
    if not dry_run:
        admin.set_group_offsets(loaded.name, {move.current.at: move.position for move in found})
    if as_json:
        typer.echo(json.dumps([{**as_data(move), "dry_run": dry_run} for move in found], indent=2))
    else:
        print_moves(found, dry_run=dry_run)
    _warn_of_requeue(loaded, before, chosen)


def _goal(text: str) -> Goal:
    try:
        return parse_goal(text)
    except ValueError as error:
        raise UsageError(f"the value of --to is wrong: {error}") from None


def _refuse_while_running(config: Config, admin: "Admin") -> None:
    """Raises AlreadyRunning if the service runs on this host, or its group has members.

    The brokers refuse a reset while the group has members.
    """
    pid = StateFolder(config.state_dir).supervisor_pid()
    if pid is not None:
        raise AlreadyRunning(
            f"{config.name} is running as pid {pid}: stop it first (kworker stop), or add --dry-run"
            " to see the new positions"
        )
    if members := admin.group_members(config.name):
        raise AlreadyRunning(
            f"the group {config.name} has members: {', '.join(members)}; stop the service on"
            " their hosts first (a killed process stays a member until its session times out)"
        )


def _sources(config: Config, admin: "Admin") -> list[str]:
    return source_topics(config, admin.topic_names())


def _positions(config: Config, admin: "Admin", topics: Sequence[str]) -> list[GroupPosition]:
    """Returns the group's position in each partition. Raises ConfigError if a topic is missing."""
    known = admin.topics(topics)
    if missing := [name for name in topics if name not in known]:
        raise ConfigError(
            f"topics missing on the brokers: {', '.join(missing)}; create with: kworker topics"
            f" create --config {config.file}"
        )
    partitions = [(name, number) for name in topics for number in range(known[name].partitions)]
    return group_positions(admin, config.name, offset_spans(admin, partitions))


def _topics(config: Config, sources: Sequence[str], topic: str | None) -> Sequence[str]:
    """Returns the topics to reset: all source topics if `topic` is None, else only `topic`.

    Raises UsageError if `topic` is neither a source topic nor the requeue topic.
    """
    if topic is None:
        return sources
    if topic not in (*sources, config.requeue_topic):
        raise UsageError(
            f"--topic {topic}: expected one of {', '.join([*sources, config.requeue_topic])}"
        )
    return [topic]


def _chosen(
    rows: Sequence[GroupPosition], topics: Sequence[str], partition: int | None
) -> list[GroupPosition]:
    found = [row for row in rows if row.topic in topics and partition in (None, row.partition)]
    if not found:
        raise UsageError(f"--partition {partition}: no such partition in {', '.join(topics)}")
    return found


def _refuse_without_positions(config: Config, rows: Sequence[GroupPosition]) -> None:
    """Raises KworkerError if the group has no positions at all.

    The first reset of such a group must cover all partitions of the source topics. If it left one
    out, the service would read that partition from its first offset.
    """
    if all(row.committed is None for row in rows):
        raise KworkerError(
            f"the group {config.name} has no committed positions: reset all partitions first,"
            " without --topic and --partition"
        )


def _warn_of_requeue(
    config: Config, rows: Sequence[GroupPosition], chosen: Sequence[GroupPosition]
) -> None:
    """Warns if the group neither has nor gets positions in partitions of the requeue topic.

    All records of these partitions would run again. `chosen` are the partitions whose positions
    the reset sets.
    """
    lost = [row for row in rows if row.topic == config.requeue_topic and row not in chosen]
    count = sum(row.high - row.low for row in lost if row.committed is None)
    if count:
        typer.echo(
            f"kworker: the group has no committed positions in {config.requeue_topic}, so all its"
            f" {count:,} records will run; to skip some: kworker offsets reset --topic"
            f" {config.requeue_topic}",
            err=True,
        )


def _admin(config: Config) -> "Admin":
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
