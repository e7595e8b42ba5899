"""`kworker offsets`: where the service's group stands, and putting it elsewhere."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.model import Config
from kworker.config.topics import source_topics
from kworker.core.offset_map import Committed, Settled, TopicIdentity, origin_of, same_topic
from kworker.core.positions import Goal, GroupPosition
from kworker.errors import AlreadyRunning, ConfigError, KworkerError, UsageError
from kworker.instance.state_folder import StateFolder

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

app = typer.Typer(
    help="The positions of the service's group: show or reset them.", no_args_is_help=True
)

TIMEOUT_S = 20.0


@app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show for each partition of the source topics and requeue where the group stands.

    Example: [bold]kworker offsets show --json[/bold]
    """
    loaded = toml_file.load(config)
    admin = _admin(loaded)
    rows = _standings(loaded, admin, [*_sources(loaded, admin), loaded.requeue_topic])
    if as_json:
        typer.echo(json.dumps([{**row._asdict(), "lag": row.lag} for row in rows], indent=2))
    else:
        print_partitions(["committed", "low", "high", "lag"], [_stands(row) for row in rows])


def _stands(row: GroupPosition) -> Sequence[object]:
    notes = []
    if row.expired:
        notes.append(f"{row.expired:,} expired before they were read")
    if row.finished_beyond:
        notes.append(f"of those, {row.finished_beyond:,} are finished")
    if row.made_again:
        notes.append("of a topic that was made again since: begins at its beginning")
    return *row.at, row.committed, row.low, row.high, row.lag, "; ".join(notes)


@app.command()
def reset(
    to: Annotated[str, typer.Option(metavar="WHERE", help=f"Where to: {GOALS}.")],
    config: ConfigOption = None,
    topic: Annotated[
        str | None, typer.Option(help="Only this one: a source topic, or requeue.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Put the stopped service's group elsewhere in its source topics, all partitions of them.

    Example: [bold]kworker offsets reset --to -2h --dry-run[/bold]

    What lies before the new position and was not settled is skipped; what lies behind it comes
    again. An offset that a partition does not hold becomes the nearest that it does.
    """
    loaded = toml_file.load(config)
    goal = _goal(to)
    admin = _admin(loaded)
    if not dry_run:
        _refuse_while_running(loaded, admin)
    sources = _sources(loaded, admin)
    before = _standings(loaded, admin, [*sources, loaded.requeue_topic])
    chosen = _chosen(before, _topics(loaded, sources, topic), partition)
    if len(chosen) < sum(row.topic in sources for row in before):
        _refuse_without_positions(loaded, before)
    found = moves(admin, chosen, goal)
    if not dry_run:
        admin.set_group_offsets(loaded.name, {move.standing.at: move.position for move in found})
    if as_json:
        typer.echo(json.dumps([{**as_data(move), "dry_run": dry_run} for move in found], indent=2))
    else:
        print_moves(found, dry_run=dry_run)
    _warn_of_requeue(loaded, before, chosen)


def _goal(text: str) -> Goal:
    try:
        return parse_goal(text)
    except ValueError as error:
        raise UsageError(f"--to: {error}") from None


def _refuse_while_running(config: Config, admin: "Admin") -> None:
    """A position that a member commits later would undo it, and brokers refuse it anyway."""
    pid = StateFolder(config.state_dir).supervisor_pid()
    if pid is not None:
        raise AlreadyRunning(
            f"{config.name} is running as pid {pid}: stop it first (kworker stop); --dry-run shows"
            " what would be"
        )
    if members := admin.group_members(config.name):
        raise AlreadyRunning(
            f"the group {config.name} has members: {', '.join(members)}; stop the service there"
            " first (one that was killed is a member until its session times out)"
        )


def _sources(config: Config, admin: "Admin") -> list[str]:
    return source_topics(config, admin.topic_names())


def _standings(config: Config, admin: "Admin", topics: Sequence[str]) -> list[GroupPosition]:
    """Every partition of the topics. Raises ConfigError for missing ones."""
    known = admin.topics(topics)
    if missing := [name for name in topics if name not in known]:
        raise ConfigError(
            f"missing on the brokers: {', '.join(missing)}; create with: kworker topics create"
            f" --config {config.file}"
        )
    partitions = [(name, number) for name in topics for number in range(known[name].partitions)]
    held = admin.group_offsets(config.name, partitions)
    low = admin.list_offsets(partitions, "earliest")
    high = admin.list_offsets(partitions, "latest")
    ids = admin.identities(topics)
    return [_standing(at, held.get(at), ids.get(at[0]), low[at], high[at]) for at in partitions]


def _standing(
    at: tuple[str, int], held: Committed | None, identity: TopicIdentity | None, low: int, high: int
) -> GroupPosition:
    if held is None:
        return GroupPosition(*at, None, low, high)
    beyond = Settled.of(held, identity, at).count_beyond
    same = identity and same_topic(held, origin_of(identity, at))
    return GroupPosition(*at, held.position, low, high, beyond, made_again=same is False)


def _topics(config: Config, sources: Sequence[str], topic: str | None) -> Sequence[str]:
    """Those to reset. What waits in requeue was taken from the sources already: only if named."""
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
        raise UsageError(f"--partition {partition}: {', '.join(topics)} has no such partition")
    return found


def _refuse_without_positions(config: Config, rows: Sequence[GroupPosition]) -> None:
    """A group with some is one that goes on, and begins at the earliest where it has none."""
    if all(row.committed is None for row in rows):
        raise KworkerError(
            f"the group {config.name} has no positions at all: reset every partition of the source"
            " topics first, without --topic and --partition"
        )


def _warn_of_requeue(
    config: Config, rows: Sequence[GroupPosition], chosen: Sequence[GroupPosition]
) -> None:
    """Its positions may be lost like the others, and nobody can know what of it was done."""
    lost = [row for row in rows if row.topic == config.requeue_topic and row not in chosen]
    count = sum(row.high - row.low for row in lost if row.committed is None)
    if count:
        typer.echo(
            f"kworker: the group has no positions in {config.requeue_topic}, so all its {count:,}"
            f" records will run; kworker offsets reset --topic {config.requeue_topic} sets them",
            err=True,
        )


def _admin(config: Config) -> "Admin":
    # Imported by what needs a broker only: `kworker --help` does not.
    from kworker.clients.admin import Admin

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S)
