"""`kworker sandbox`: a real Kafka and a real Redis on loopback, for development."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from kworker.cli.options import JsonOption
from kworker.errors import ExitCode, UsageError
from kworker.sandbox import Sandbox, Status
from kworker.sandbox.plan import options
from kworker.sandbox.sandbox import UP_TIMEOUT_S

app = typer.Typer(
    help="Run a real Kafka and a real Redis on this machine, for development and tests.",
    no_args_is_help=True,
)

FolderOption = Annotated[
    Path, typer.Option("--dir", help="Keep data, logs and settings in this folder.")
]


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def up(
    folder: FolderOption = Path(".sandbox"),
    kafka: Annotated[bool | None, typer.Option(help="Run brokers.", show_default="yes")] = None,
    redis: Annotated[bool | None, typer.Option(help="Run Redis.", show_default="yes")] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first broker; the others use the ports after it.", show_default="9092"
        ),
    ] = None,
    redis_port: Annotated[
        int | None, typer.Option(help="Port of Redis.", show_default="6379")
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(help="Number of brokers, 1 to 5; several replicate topics.", show_default="1"),
    ] = None,
    heap: Annotated[
        str | None,
        typer.Option(help="Heap of each broker.", show_default="512m; of several, 320m each"),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a property of the brokers; repeatable."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Fail unless all answer within this many seconds.")
    ] = UP_TIMEOUT_S,
) -> None:
    """Start the brokers and the Redis that do not run yet, and wait until they answer.

    An option that is not given keeps its value from the last `up` with the same --dir.
    """
    # SIGTERM stops the servers started so far, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = options(
        kafka=kafka,
        redis=redis,
        kafka_port=kafka_port,
        redis_port=redis_port,
        brokers=brokers,
        heap=heap,
        properties=_pairs(properties) if properties else None,
    )
    sandbox = Sandbox(folder, wanted, timeout_s=timeout, say=_say)
    started = sandbox.up()
    typer.echo(f"started {', '.join(started)}" if started else "already running")
    _print(sandbox.status())


@app.command()
def down(
    folder: FolderOption = Path(".sandbox"),
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Remove data, logs and settings, too.")
    ] = False,
) -> None:
    """Stop the brokers and Redis; the data stays for the next `up`."""
    stopped = Sandbox(folder, say=_say).down(wipe=wipe)
    typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def status(
    folder: FolderOption = Path(".sandbox"),
    as_json: JsonOption = False,
) -> None:
    """Show the servers, their ports and logs. Exit code 3: not all of them run."""
    found = Sandbox(folder).status()
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print(found)
    if not found.running:
        raise typer.Exit(ExitCode.NOT_RUNNING)


def _pairs(properties: list[str]) -> dict[str, str]:
    wrong = [given for given in properties if "=" not in given]
    if wrong:
        raise UsageError(f"--set {wrong[0]}: expected KEY=VALUE")
    return {key.strip(): value for key, _, value in (given.partition("=") for given in properties)}


def _print(found: Status) -> None:
    for server in found.servers:
        state = f"pid {server.pid}" if server.pid else "stopped"
        typer.echo(f"{server.name:<9} 127.0.0.1:{server.port}  {state}  {server.log}")
    if not found.servers:
        typer.echo(f"no sandbox in {found.folder}; start one with: kworker sandbox up")
