"""`kworker check`: finds mistakes in a configuration and its surroundings before a start."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from kworker.cli.options import PREPARE_PANEL, ConfigOption, JsonOption
from kworker.config import toml_file
from kworker.config.model import Config, SparkSettings
from kworker.config.rules import memory_ceiling
from kworker.config.value_types import format_size
from kworker.core.duration import format_duration
from kworker.core.offset_map import unsettled_max
from kworker.errors import ConfigError, ExitCode
from kworker.host import spark_heap_bytes
from kworker.preflight import second_copy
from kworker.preflight.findings import Finding, exit_code
from kworker.preflight.imports import check_handlers
from kworker.preflight.kafka import check_client_properties, check_topics
from kworker.preflight.positions import check_positions
from kworker.preflight.redis import check_redis
from kworker.preflight.spark import check_spark
from kworker.preflight.tracing import check_tracing

app = typer.Typer()


class FinishedCheck(NamedTuple):
    """A check that has run: its title, and the problems that it found."""

    title: str
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> ExitCode:
        return exit_code(self.findings)


CheckFunction = Callable[[Config], list[Finding]]

_OFFLINE: dict[str, CheckFunction] = {
    "handlers can be imported and called": check_handlers,
    "Kafka clients accept their properties": check_client_properties,
    "Java and pyspark are installed": check_spark,
    "OpenTelemetry is installed": check_tracing,
}
_ONLINE: dict[str, CheckFunction] = {
    "brokers answer, topics exist": check_topics,
    "committed positions can be read": check_positions,
    "Redis answers": check_redis,
    "no other copy runs as this instance": second_copy.online,
}


@app.command("check", rich_help_panel=PREPARE_PANEL)
def check(
    config: ConfigOption = None,
    online: Annotated[
        bool, typer.Option("--online", help="Connect to the brokers and Redis, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find every mistake in the configuration, and say how to fix each.

    Exit code 0: ready to start; 69: a dependency does not answer; 73: another copy of the service
    runs under the same instance name; 78: something must be corrected.
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
    code = exit_code(finding for each in done for finding in each.findings)
    if as_json:
        _print_json(_as_data(loaded, done, code))
    else:
        _print(loaded, done)
    raise typer.Exit(code)


def _applies(config: Config, run: CheckFunction) -> bool:
    needs: dict[CheckFunction, object] = {
        check_redis: config.idempotency,
        check_spark: config.spark,
        check_tracing: config.tracing.enabled or None,
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
    console.print(Text(f"{config.name}, configured by {config.file}", style="bold"))
    shown: set[Finding] = set()  # brokers that do not answer fail several checks
    for each in done:
        good = each.exit_code is ExitCode.OK
        console.print(Text("✓ " if good else "✗ ", "green" if good else "red"), each.title, sep="")
        for finding in each.findings:
            if finding in shown:
                console.print(Text("    as above"))
                continue
            shown.add(finding)
            style = "yellow" if finding.exit_code is ExitCode.OK else "red"
            console.print(Text(f"    {finding.key}: {finding.problem}", style))
            console.print(Text(f"      → {finding.next_step}"))
    if ceiling := memory_ceiling(config):
        mebibytes = -(-ceiling.total // (1 << 20))
        console.print(
            f"Memory: a worker uses at most {mebibytes}MiB = {ceiling.parts};"
            f" it is replaced above {format_size(config.workers.memory)}"
        )
    if config.spark is not None and config.spark.run == "here":
        console.print(spark_memory(config.spark))
    console.print("Worst case:")
    for line in worst_case(config):
        console.print(Text(f"  · {line}"))


def spark_memory(spark: SparkSettings) -> str:
    """Returns a line for the report: the heap of Spark's JVM, and the limits of a batch."""
    own = spark.conf.get("spark.driver.memory")
    heap = own or format_size(spark_heap_bytes())
    why = "set in [spark.conf]" if own else "a quarter of this machine's memory, 1 to 4GiB"
    return (
        f"Memory of Spark: a heap of {heap} ({why}); a batch of one table holds at most"
        f" {spark.batch_records:,} results or {format_size(spark.batch_bytes)}"
    )


_MANY, _BEYOND_ALL = 1_000_000, 1 << 62


def worst_case(config: Config) -> list[str]:
    """Returns the lines of the report that say which other records a slow record delays."""
    workers = config.workers
    delayed = {
        "key": "only later records of the same key in its partition",
        "partition": "only later records of its partition",
        "none": "no other record",
    }[workers.ordering]
    return [
        "a record that runs for the whole handler_timeout"
        f" ({format_duration(workers.handler_timeout)}) delays {delayed}",
        f"{workers.threads} such records at once (async def: {workers.concurrency})"
        " occupy all handlers of a worker until one of them ends",
        "records after it that finish are not run again, even after a crash; its partition is"
        f" paused when more than {unsettled_max(_MANY):,} records are unfinished and {_MANY:,}"
        " follow the first of them"
        f" (more than {unsettled_max(_BEYOND_ALL):,}, however many follow)",
        f"{workers.in_flight:,} records or {format_size(workers.in_flight_bytes)} without an"
        " outcome pause the intake of a worker",
    ]
