"""`kworker check`: what is wrong with a configuration and around it, before it is started."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from kworker.cli.options import PREPARE_PANEL, ConfigOption, JsonOption
from kworker.config import toml_file
from kworker.config.model import Config, SparkSettings, format_size
from kworker.config.rules import memory_ceiling
from kworker.core.duration import format_duration
from kworker.core.offset_map import unsettled_max
from kworker.errors import ConfigError, ExitCode
from kworker.host import spark_heap_bytes
from kworker.preflight import preflight, second_copy
from kworker.preflight.preflight import Finding

app = typer.Typer()


class FinishedCheck(NamedTuple):
    """One check, made."""

    title: str
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> ExitCode:
        return preflight.exit_code(self.findings)


CheckFunction = Callable[[Config], list[Finding]]

_OFFLINE: dict[str, CheckFunction] = {
    "handlers import": preflight.handlers,
    "Kafka's clients take their properties": preflight.clients,
    "Java and pyspark are here": preflight.spark,
}
_ONLINE: dict[str, CheckFunction] = {
    "brokers answer, topics are there": preflight.online,
    "committed positions are told": preflight.positions,
    "Redis answers": preflight.redis,
    "no other copy runs as this instance": second_copy.online,
}


@app.command("check", rich_help_panel=PREPARE_PANEL)
def check(
    config: ConfigOption = None,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the brokers and Redis, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with the configuration, and what to do about it.

    Exit code 78: something to correct; 73: another copy runs as this instance; 69: something
    does not answer; 0: fit to start.
    """
    try:
        loaded = toml_file.load(config)
    except ConfigError as error:
        if as_json:
            _print_json({"ok": False, "exit_code": error.exit_code, "problems": error.problems})
            raise typer.Exit(error.exit_code) from None
        raise
    checks = {**_OFFLINE, **(_ONLINE if online else {})}
    done = [
        FinishedCheck(title, run(loaded)) for title, run in checks.items() if _applies(loaded, run)
    ]
    code = preflight.exit_code(finding for each in done for finding in each.findings)
    if as_json:
        _print_json(_as_data(loaded, done, code))
    else:
        _print(loaded, done)
    raise typer.Exit(code)


def _applies(config: Config, run: CheckFunction) -> bool:
    needs: dict[CheckFunction, object] = {
        preflight.redis: config.idempotency,
        preflight.spark: config.spark,
    }
    return needs.get(run, config) is not None


def _as_data(config: Config, done: Sequence[FinishedCheck], code: ExitCode) -> dict[str, Any]:
    ceiling = memory_ceiling(config)
    return {
        "file": str(config.file),
        "ok": code is ExitCode.OK,
        "exit_code": code,
        "checks": [
            {
                "title": each.title,
                "ok": each.exit_code is ExitCode.OK,
                "findings": [_finding(finding) for finding in each.findings],
            }
            for each in done
        ],
        "memory_ceiling_bytes": ceiling and ceiling.total,
        "worst_case": worst_case(config),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "key": finding.key,
        "problem": finding.problem,
        "next_step": finding.next_step,
        "exit_code": finding.exit_code,
    }


def _print_json(data: dict[str, Any]) -> None:
    typer.echo(json.dumps(data, indent=2))


def _print(config: Config, done: Sequence[FinishedCheck]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{config.name}, as {config.file} says", style="bold"))
    for each in done:
        good = each.exit_code is ExitCode.OK
        console.print(Text("✓ " if good else "✗ ", "green" if good else "red"), each.title, sep="")
        for finding in each.findings:
            style = "yellow" if finding.exit_code is ExitCode.OK else "red"
            console.print(Text(f"    {finding.key}: {finding.problem}", style))
            console.print(Text(f"      → {finding.next_step}"))
    if ceiling := memory_ceiling(config):
        mebibytes = -(-ceiling.total // (1 << 20))
        console.print(
            f"Memory: a worker takes at most {mebibytes}MiB = {ceiling.parts};"
            f" it is replaced above {format_size(config.workers.memory)}"
        )
    if config.spark is not None and config.spark.run == "here":
        console.print(spark_memory(config.spark))
    console.print("Worst case:")
    for line in worst_case(config):
        console.print(Text(f"  · {line}"))


def spark_memory(spark: SparkSettings) -> str:
    """What the job's JVM may take, and why."""
    own = spark.conf.get("spark.driver.memory")
    heap = own or format_size(spark_heap_bytes())
    why = "as [spark.conf] says" if own else "a quarter of the memory here, from 1 to 4GiB"
    return (
        f"Memory of Spark: a heap of {heap} ({why}); a batch of a table takes up to"
        f" {spark.batch_records:,} results or {format_size(spark.batch_bytes)}"
    )


_MANY, _BEYOND_ALL = 1_000_000, 1 << 62


def worst_case(config: Config) -> list[str]:
    """What a slow record delays, and what it does not."""
    workers = config.workers
    delayed = {
        "key": "the later records of its own key in its partition, and no other",
        "partition": "the later records of its partition, and no other",
        "none": "no other record",
    }[workers.ordering]
    return [
        f"a record that takes all of handler_timeout ({format_duration(workers.handler_timeout)})"
        f" delays {delayed}",
        f"{workers.threads} such records at once (async def: {workers.concurrency})"
        " occupy a worker's handlers until one ends",
        "what finishes behind it stays finished, whatever crashes; its partition takes more while"
        f" {unsettled_max(_MANY):,} of its records or fewer are unfinished and {_MANY:,} lie behind"
        f" the first of them ({unsettled_max(_BEYOND_ALL):,} or fewer, however many lie behind it)",
        f"{workers.in_flight:,} records or {format_size(workers.in_flight_bytes)} without an"
        " outcome stop the intake of a worker",
    ]
