"""`kworker pause` and `kworker resume`: an operator stops and restarts the intake of records."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from kworker.cli.options import ConfigOption
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.config.topics import source_topics
from kworker.core.duration import parse_duration
from kworker.core.pauses import ALL, PauseOrders, in_force, named, order_pause, order_resumption
from kworker.core.times import iso
from kworker.errors import ConfigError, KworkerError, Unreachable, UsageError
from kworker.instance.pause_file import PauseFile, decode
from kworker.instance.state_folder import StateFolder

app = typer.Typer()
_PANEL = "Run a service"

TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Only this topic; may be given several times.",
        show_default="all topics",
    ),
]
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        help='Resume by itself after this time, for example "10m".',
        show_default="until kworker resume",
    ),
]


@app.command(rich_help_panel=_PANEL)
def pause(
    config: ConfigOption = None, topics: TopicsOption = None, lasting: ForOption = None
) -> None:
    """Take no more records, until [bold]kworker resume[/bold].

    Example: [bold]kworker pause --topic orders --for 10m[/bold]

    Records that a worker has in hand finish, also those that it tries again from its memory; the
    workers stay in their group. A pause survives restarts, and a service that is not running starts
    paused. If [bold]idempotency.redis[/bold] is configured, the pause reaches all instances of the
    service; if not, it holds on this host alone. If that Redis does not answer, the pause holds on
    this host, and the exit code is 69. To move the end of a pause, pause again.

    The retries and redriven dead letters of all topics come by one topic, NAME.requeue. Without
    --topic it is paused, too. With --topic it is not: retries of a paused topic go on, unless you
    add --topic NAME.requeue, which holds back the retries of all topics.

    Time goes on for records that wait. After the pause, those older than source.max_age become dead
    letters; and if Kafka has deleted some by its retention, their partition stops until
    [bold]kworker offsets reset[/bold].
    """
    from kworker.cli.dead.access import whoami

    loaded = toml_file.load(config)
    now = now_ms()
    until_ms = None if lasting is None else now + _milliseconds(lasting)
    chosen = _checked("pause", loaded, topics or []) or [ALL]
    desk = _Desk("pause", loaded)
    desk.give(order_pause(desk.known, chosen, whoami(), now, until_ms))
    end = "`kworker resume`" if until_ms is None else f"{iso(until_ms)} or `kworker resume`"
    typer.echo(f"{loaded.name}: {_listed(chosen)} paused until {end}; records in hand finish")
    if StateFolder(loaded.state_dir).supervisor_pid() is None:
        typer.echo(f"{loaded.name} is not running here; it will start paused")
    desk.tell_reach()


@app.command(rich_help_panel=_PANEL)
def resume(
    config: ConfigOption = None,
    topics: TopicsOption = None,
    accept_dead: Annotated[
        bool,
        typer.Option(
            "--accept-dead",
            help="Resume nothing, but write the dead letters that the breaker holds back.",
        ),
    ] = False,
) -> None:
    """Take records again, after [bold]kworker pause[/bold].

    Example: [bold]kworker resume --topic orders[/bold]

    The exit code is 0 also if nothing was paused, so that a script need not look first.

    --accept-dead ends no pause: it makes workers write the dead letters that their breakers hold
    back. A worker's breaker opens when too many of its records become dead letters (the key
    dead_letter.breaker), since the cause is then rarely in the records. While the breaker is open,
    some of the records that it holds run again every 5 s. After ten successes in a row the breaker
    closes by itself.
    """
    loaded = toml_file.load(config)
    if not accept_dead:
        _resume(loaded, topics or [])
    elif topics:
        raise UsageError(
            "resume: --accept-dead and --topic exclude each other: give them in two commands"
        )
    else:
        _accept_dead(loaded)


def _resume(config: Config, topics: Sequence[str]) -> None:
    from kworker.cli.dead.access import whoami

    desk = _Desk("resume", config)
    paused = in_force(desk.known, now_ms())
    if topics and ALL in paused:
        raise KworkerError(
            "resume: all topics are paused together; resume all with `kworker resume`, then pause"
            " those that shall wait with `kworker pause --topic`"
        )
    asked = dict.fromkeys(topics or paused)
    idle = _checked("resume", config, [topic for topic in asked if topic not in paused])
    chosen = [topic for topic in asked if topic in paused]
    desk.give(order_resumption(desk.known, chosen, whoami(), now_ms()))
    for topic in idle:
        typer.echo(f"{config.name}: {topic} was not paused")
    if not asked:
        typer.echo(f"{config.name}: nothing was paused")
    if chosen:
        typer.echo(f"{config.name}: {_listed(chosen)} resumed")
        desk.tell_reach()
    desk.check_redis()


def _accept_dead(config: Config) -> None:
    from kworker.supervisor.control.client import ControlClient

    reply = ControlClient(config.name, StateFolder(config.state_dir)).request("accept_dead")
    typer.echo(f"{reply['workers']} workers write the dead letters that their breakers hold back")


class _Desk:
    """Writes pause and resume orders to this instance's file, and to Redis if configured.

    The attribute `known` has the newest order for each topic. If Redis does not answer, `known` may
    lack new orders from other hosts.
    """

    def __init__(self, verb: str, config: Config) -> None:
        """Raises KworkerError if the file cannot be read."""
        folder = StateFolder(config.state_dir)
        folder.make()
        self._verb = verb
        self._config = config
        self._file = PauseFile(folder.pauses)
        self._redis_error = ""
        self.known = self._read()
        self._exchange()

    def give(self, orders: PauseOrders) -> None:
        """Writes new pause or resume orders to the file, and then to Redis."""
        try:
            self.known = self._file.add(orders)
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from None
        self._exchange()

    def check_redis(self) -> None:
        """Raises Unreachable if Redis is configured, and does not answer."""
        if self._redis_error:
            raise Unreachable(
                f"{self._verb}: done on this host only, since Redis does not answer"
                f" ({self._redis_error}). Other hosts follow when Redis answers again and"
                f" {self._config.name} runs here, or when you repeat the command"
            )

    def tell_reach(self) -> None:
        """Prints which instances the command affects. Raises Unreachable like `check_redis`."""
        self.check_redis()
        name, instance = self._config.name, self._config.instance
        if self._config.idempotency:
            typer.echo(f"all instances of {name} follow within seconds, by way of Redis")
        else:
            typer.echo(
                f"this holds for the instance {instance} alone; if {name} has others, type the same"
                " command on their hosts"
            )

    def _read(self) -> PauseOrders:
        try:
            return decode(self._file.content())
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})") from None
        except ValueError:
            problem = "is damaged: remove it, then pause again what shall be paused"
            raise self._unusable(problem) from None

    def _unusable(self, problem: str) -> KworkerError:
        return KworkerError(f"{self._verb}: {self._file.path} {problem}; nothing is changed")

    def _exchange(self) -> None:
        """Copies newer pause or resume orders from Redis to the file, and from the file to Redis.

        Does nothing if Redis is not configured, or if it did not answer an earlier call.
        """
        if (chosen := self._config.idempotency) is None or self._redis_error:
            return
        from kworker.worker.idempotency.shared_pauses import make_shared_pauses

        try:
            shared = make_shared_pauses(self._config.name, chosen, self._file)
        except ValueError as error:
            raise ConfigError(f"idempotency.redis: {error}") from None
        try:
            self.known = shared.exchange()
        except Unreachable as error:
            self._redis_error = str(error)
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from None
        finally:
            shared.close()


def _checked(verb: str, config: Config, topics: Iterable[str]) -> list[str]:
    """Returns the topics, each once. Raises UsageError if the service does not read one of them."""
    asked = list(dict.fromkeys(topics))
    if not asked:
        return []
    sources = source_topics(config, _existing(config) if config.source.pattern else ())
    readable = [*sources, config.requeue_topic]
    if unknown := [topic for topic in asked if topic not in readable]:
        raise UsageError(
            f"{verb}: {config.name} does not read {_listed(unknown)}; its topics are:"
            f" {', '.join(readable)}"
        )
    return asked


def _existing(config: Config) -> list[str]:
    # Imported only where a broker is needed: `kworker --help` stays fast.
    from kworker.cli.dead.access import TIMEOUT_S
    from kworker.clients.admin import Admin
    from kworker.config.client_properties import admin_properties

    return Admin(admin_properties(config), timeout_s=TIMEOUT_S).topic_names()


def _milliseconds(text: str) -> int:
    try:
        milliseconds = round(parse_duration(text) * 1000)
    except ValueError as error:
        raise UsageError(f"pause: the value of --for is wrong: {error}") from None
    if not milliseconds:
        raise UsageError("pause: the value of --for is zero; expected a duration of at least 1ms")
    return milliseconds


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(named(topic) for topic in topics)
