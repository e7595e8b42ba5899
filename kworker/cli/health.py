"""`kworker health`: the probes of a container, answered over the control socket."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kworker.cli.options import ConfigOption, JsonOption
from kworker.core.duration import parse_duration
from kworker.errors import ExitCode, NotRunning, UsageError
from kworker.instance.state_folder import StateFolder
from kworker.supervisor import probes
from kworker.supervisor.control.client import ControlClient, NotResponding

app = typer.Typer(
    help="Answer a container's probe: exit code 0, or 1 and a line that says why not.",
    no_args_is_help=True,
    epilog="\n\n".join(
        (
            "In a Kubernetes manifest:",
            "[bold]exec: {command: \\[kworker, health, ready]}[/bold] · with timeoutSeconds above"
            " --timeout",
        )
    ),
    rich_markup_mode="rich",
)

Judge = Callable[[dict[str, Any]], list[str]]

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Ask the service of this state folder, and do not read kworker.toml: a mistake in the"
        " file is then no reason to end a service that runs.",
        show_default="state_dir",
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(metavar="DURATION", help="Fail if the supervisor does not answer for so long."),
]


@app.command()
def live(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    timeout: TimeoutOption = "10s",
    as_json: JsonOption = False,
) -> None:
    """Succeed while the supervisor answers, as /livez of the console does.

    Example: [bold]kworker health live --state-dir /var/lib/kworker/orders[/bold]

    A dependency that is down is no failure, since a restart would not help. Exit code 3: the
    service does not run.
    """
    _answer("live", lambda _: [], _client(config, state_dir, timeout), as_json=as_json)


@app.command()
def ready(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    timeout: TimeoutOption = "10s",
    as_json: JsonOption = False,
) -> None:
    """Succeed while the service is ready, as /readyz of the console does.

    Ready means that every worker has joined its group, the brokers answer, and kworker status shows
    no problem.

    Example: [bold]kworker health ready --timeout 2s[/bold]

    Exit code 1: the service is not ready. Exit code 3: it does not run.
    """
    client = _client(config, state_dir, timeout)
    _answer("ready", probes.why_not_ready, client, as_json=as_json)


@app.command()
def startup(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    timeout: TimeoutOption = "10s",
    as_json: JsonOption = False,
) -> None:
    """Succeed once all workers have joined their group for the first time, as /startupz does.

    Example: [bold]kworker health startup[/bold]

    Exit code 1: not all have joined. Exit code 3: the service does not run.
    """
    client = _client(config, state_dir, timeout)
    _answer("started", probes.why_not_started, client, as_json=as_json)


def _client(config: Path | None, state_dir: Path | None, timeout: str) -> ControlClient:
    timeout_s = _seconds(timeout)
    if state_dir is None:
        from kworker.config import toml_file  # which takes longer than all else here

        loaded = toml_file.load(config)
        return ControlClient(loaded.name, StateFolder(loaded.state_dir), timeout_s)
    if config is not None:
        raise UsageError("health: --config and --state-dir exclude each other")
    return ControlClient(f"the service in {state_dir}", StateFolder(state_dir), timeout_s)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"the value of --timeout is wrong: {error}") from None
    if not seconds:
        raise UsageError("the value of --timeout is wrong: expected a duration above 0")
    return seconds


def _answer(state: str, judge: Judge, client: ControlClient, *, as_json: bool) -> None:
    """Prints whether the service is in `state`, such as "ready"; if not, prints the problems.

    `judge` returns the problems in the status document; the service is in `state` if there are
    none. Raises Exit if there are problems.
    """
    document: dict[str, Any] = {}
    try:
        document = client.request("status")
        problems = judge(document)
    except NotResponding as silent:
        problems = [str(silent)]
    except NotRunning as absent:
        if as_json:
            _print_json(document, [str(absent)])
        raise
    if as_json:
        _print_json(document, problems)
    else:
        typer.echo(_line(document.get("name", client.name), state, problems))
    if problems:
        raise typer.Exit(ExitCode.FAILURE)


def _line(name: str, state: str, problems: list[str]) -> str:
    return f"{name} is not {state}: {'; '.join(problems)}" if problems else f"{name} is {state}"


def _print_json(document: dict[str, Any], problems: list[str]) -> None:
    """Prints a JSON object with the same fields as the answers of the console's probes."""
    told = {name: document.get(name) for name in ("name", "state")}
    typer.echo(json.dumps({"ok": not problems, **told, "reasons": problems}))
