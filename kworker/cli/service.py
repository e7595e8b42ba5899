"""`kworker start`, `stop`, `status` and the other verbs that run and control a service."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from kworker.cli.options import WATCH_PANEL, ConfigOption, JsonOption
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.core.duration import parse_duration
from kworker.errors import (
    ConfigError,
    DrainTimedOut,
    ExitCode,
    KworkerError,
    Unreachable,
    UsageError,
)

app = typer.Typer()
_PANEL = "Run a service"
_WATCH_EVERY_S = 1.0
_NOT_WELL = ("red", "waiting")
_GONE_WITHIN_S = 10.0  # from the last line over the control socket to the end of the process

Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help='Wait at most this long, for example "90s"; then exit with 1 while the drain goes on.',
        show_default="no limit",
    ),
]


@app.command(rich_help_panel=_PANEL)
def start(
    config: ConfigOption = None,
    daemon: Annotated[
        bool,
        typer.Option("--daemon", help="Run in the background; return when the service is ready."),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="With --daemon: wait at most this long.")
    ] = "60s",
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: reload when kworker.toml or Python code beside it changes.",
        ),
    ] = False,
) -> None:
    """Run the service in the foreground: the supervisor and its workers.

    Ctrl-C drains the service: it finishes the records in hand within drain_timeout, and ends.

    With --reload, code that cannot be imported changes nothing: the workers run on as they are.
    """
    from kworker.cli.serve import serve

    loaded = toml_file.load(config)
    if daemon:
        _start_daemon(loaded, config, _seconds(timeout), reload=reload)
    else:
        raise typer.Exit(serve(loaded, config, reload=reload))


@app.command(rich_help_panel=_PANEL)
def stop(
    config: ConfigOption = None,
    timeout: Timeout = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="End at once, without a drain; unfinished records run again."),
    ] = False,
) -> None:
    """Drain the service: let it finish the records in hand within drain_timeout, and end.

    The command waits until the processes of the service have ended.
    """
    from kworker.supervisor.control.client import ControlClient, NotResponding

    loaded = toml_file.load(config)
    client = ControlClient(loaded.name, _folder(loaded))
    supervisor = client.supervisor()
    end_at = time.monotonic() + _seconds(timeout) if timeout else None
    end: dict[str, Any] | None = None
    try:
        end = _shown(client.follow("stop", now=now), end_at)
    except NotResponding as mute:
        typer.echo(f"kworker: {mute}: sent a signal instead", err=True)
        supervisor.signal(signal.SIGQUIT if now else signal.SIGTERM)
    left_s = None if end_at is None else max(0.0, end_at - time.monotonic())
    if not supervisor.wait(left_s):
        raise KworkerError(
            f"{loaded.name} (pid {supervisor.pid}) is still draining after {timeout};"
            " wait, or end it at once with: kworker stop --now"
        )
    _report_end(loaded.name, end or {})


@app.command(rich_help_panel=WATCH_PANEL)
def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every second until Ctrl-C.")
    ] = False,
) -> None:
    """Show the state of the service: workers, lag, counters, Spark, pauses, and every problem.

    Exit code 0: running, paused, starting or draining; 1: red (a problem while it runs) or waiting
    (a problem that keeps it from starting); 3: not running.
    With --watch the exit code does not depend on the state.
    """
    from kworker.cli import status_view

    loaded = toml_file.load(config)
    if as_json and watch:
        while True:
            typer.echo(json.dumps(_ask(loaded, "status")))
            time.sleep(_WATCH_EVERY_S)
    elif watch:
        status_view.watch(lambda: _ask(loaded, "status"), _WATCH_EVERY_S)
    document = _ask(loaded, "status")
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        status_view.show(document)
    if document["state"] in _NOT_WELL:
        raise typer.Exit(ExitCode.FAILURE)


@app.command(rich_help_panel=_PANEL)
def restart(config: ConfigOption = None) -> None:
    """Replace the workers one at a time, so that they run the handler's current code."""
    _roll(toml_file.load(config), "restart")


@app.command(rich_help_panel=_PANEL)
def reload(config: ConfigOption = None) -> None:
    """Read kworker.toml again, then replace the workers one at a time.

    If the file has a mistake, nothing changes.
    """
    _roll(toml_file.load(config), "reload")


@app.command(rich_help_panel=_PANEL, context_settings={"ignore_unknown_options": True})
def scale(
    to: Annotated[
        str, typer.Argument(metavar="N|+1|-1", help="Number of workers, or a change: +1, -1.")
    ],
    config: ConfigOption = None,
) -> None:
    """Change the number of workers; the next start uses the number in the configuration again."""
    reply = _ask(toml_file.load(config), "scale", to=to)
    typer.echo(f"{reply['processes']} workers")


@app.command(rich_help_panel=_PANEL)
def dump(config: ConfigOption = None) -> None:
    """Make every process write its threads' stacks to the log of the service."""
    loaded = toml_file.load(config)
    pids = ", ".join(str(pid) for pid in _ask(loaded, "dump")["dumped"])
    typer.echo(f"the stacks of workers {pids} are in the log of the service; see: kworker logs")


def _start_daemon(loaded: Config, config: Any, timeout_s: float, *, reload: bool) -> None:
    from kworker.cli.logs.lines import why_it_ended
    from kworker.cli.serve import serve
    from kworker.supervisor.daemon import DaemonExited, DaemonReady, DaemonWaiting, launch

    folder = _folder(loaded)
    folder.make()
    folder.check_free()

    def run(ready_fd: int) -> int:
        return serve(loaded, config, ready_fd, reload=reload)

    match launch(run, folder.log, timeout_s):
        case DaemonReady(pid):
            typer.echo(f"{loaded.name} is ready, pid {pid}, log {folder.log}")
        case DaemonWaiting():
            raise Unreachable(
                f"{loaded.name} is not ready after {timeout_s:g} s; it goes on starting in the"
                " background: `kworker status` shows what it waits for, `kworker stop` ends it"
            )
        case DaemonExited(code, words):
            for line in why_it_ended(words.splitlines()):
                typer.echo(line, err=True)
            typer.echo(f"kworker: {loaded.name} ended during its start; see {folder.log}", err=True)
            raise typer.Exit(code)


def _roll(loaded: Config, verb: str) -> None:
    from kworker.supervisor.control.client import ControlClient

    if _shown(ControlClient(loaded.name, _folder(loaded)).follow(verb), None) is None:
        raise KworkerError(
            f"{loaded.name} ended during the {verb}; its log says why, `kworker start` starts it"
        )
    typer.echo(f"{loaded.name}: {verb} done")


def _ask(loaded: Config, verb: str, **arguments: object) -> dict[str, Any]:
    from kworker.supervisor.control.client import ControlClient

    return ControlClient(loaded.name, _folder(loaded)).request(verb, **arguments)


def _folder(loaded: Config) -> Any:
    from kworker.instance.state_folder import StateFolder

    return StateFolder(loaded.state_dir)


def _shown(lines: Iterator[dict[str, Any]], end_at: float | None) -> dict[str, Any] | None:
    """Shows the supervisor's replies as progress, until the final reply or the time `end_at`.

    Returns the final reply; None if it did not come.
    """
    shown = ""
    try:
        for line in lines:
            if line.get("done"):
                return line
            text = _progress(line)
            if text != shown:
                _show_over(shown, text)
                shown = text
            if end_at is not None and time.monotonic() > end_at:
                break
    finally:
        _show_over(shown, "")  # a refusal has a line of its own
    return None


def _progress(line: dict[str, Any]) -> str:
    left = f", {line['left']} to replace" if "left" in line else ""
    oldest = f", the oldest for {line['oldest_s']:.0f} s" if line["in_hand"] else ""
    text = f"{line['state']}: {line['workers']} workers, {line['in_hand']} records in hand"
    check = ", the preflight check runs" if line.get("checking") else ""
    return text + oldest + left + check


def _show_over(before: str, text: str) -> None:
    """Replaces `before` by `text` on a terminal; elsewhere prints `text` as a new line."""
    if sys.stderr.isatty():
        typer.echo("\r" + text.ljust(len(before)) + ("" if text else "\r"), err=True, nl=False)
    elif text:
        typer.echo(text, err=True)


def _report_end(name: str, end: dict[str, Any]) -> None:
    code = end.get("exit_code")
    if code == ExitCode.DRAIN_TIMED_OUT:
        left = end.get("left")
        count = f"{left:,}" if left else "the"
        raise DrainTimedOut(
            f"{name} is stopped; {count} records that were not finished and committed in time"
            " will be redelivered"
        )
    if code == ExitCode.CONFIG:
        raise ConfigError(f"{name} is stopped; its configuration is wrong: see its log")
    typer.echo(f"{name} is stopped")
    if code:
        raise typer.Exit(code)


def _seconds(text: str) -> float:
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"the value of --timeout is wrong: {error}") from None
