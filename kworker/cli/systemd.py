"""`kworker systemd`: the units that run services and Spark jobs under systemd."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kworker.cli.units import UnitValues, escaped, service_unit, spark_unit, target_unit
from kworker.config import toml_file
from kworker.config.model import Config, SparkSettings
from kworker.errors import ConfigError
from kworker.spark.checkpoints.folders import local_folder

app = typer.Typer(help="Print units for systemd.", no_args_is_help=True)


class UnitName(StrEnum):
    """The units that can be printed, by the names of their files."""

    SERVICE = "kworker@.service"
    SPARK = "kworker-spark@.service"
    TARGET = "kworker.target"


@app.command("print")
def print_unit(
    unit: Annotated[UnitName, typer.Argument(help="The unit to print.")] = UnitName.SERVICE,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Fit the unit to this kworker.toml, its drain_timeout and its folders.",
            show_default="/etc/kworker/NAME.toml, for any NAME",
        ),
    ] = None,
    user: Annotated[str, typer.Option(help="The user that runs the service.")] = "kworker",
    kworker: Annotated[
        Path | None,
        typer.Option(help="Path of the kworker command to run.", show_default="this one"),
    ] = None,
) -> None:
    """Print a systemd unit that runs this kworker, and restricts what it may access.

    Example: [bold]kworker systemd print > /etc/systemd/system/kworker@.service[/bold]

    kworker@.service runs a service, kworker-spark@.service its Spark job if [spark] has run =
    "elsewhere"; kworker.target starts and stops all services of the host.

    Without --config the unit is a template for every /etc/kworker/NAME.toml, and the service writes
    only to /var/lib/kworker/NAME. With --config it is the unit of one service, which may also write
    to the local folders of its tables: save it as kworker@NAME.service.
    """
    values = _this_installation(kworker or _this_command(), user)
    if config is not None:
        values = _fitted(values, toml_file.load(config), unit)
    match unit:
        case UnitName.SERVICE:
            text = service_unit(values)
        case UnitName.SPARK:
            text = spark_unit(values)
        case UnitName.TARGET:
            text = target_unit()
    typer.echo(text, nl=False)


def _this_command() -> Path:
    beside = Path(sys.executable).with_name("kworker")
    return beside if beside.exists() else Path(shutil.which("kworker") or "/usr/local/bin/kworker")


def _this_installation(command: Path, user: str) -> UnitValues:
    java = os.environ.get("JAVA_HOME")
    reads = (Path(sys.prefix), Path(sys.base_prefix), *([Path(java)] if java else []))
    return UnitValues(command.absolute(), user, java_home=Path(java) if java else None, reads=reads)


def _fitted(values: UnitValues, config: Config, unit: UnitName) -> UnitValues:
    spark = config.spark
    if unit is UnitName.SPARK and spark is None:
        raise ConfigError("spark: missing; add a section [spark] with [[spark.tables]]")
    runs_spark = unit is UnitName.SPARK or (spark is not None and spark.run == "here")
    folders = {*_state(config), *(_places(spark) if spark and runs_spark else ())}
    return replace(
        values,
        instance=config.name,
        config=escaped(config.file),
        drain_s=config.workers.drain_timeout,
        reads=(*values.reads, config.file),
        writes=_outermost(folders),
    )


def _state(config: Config) -> Iterator[Path]:
    """Yields state_dir, unless systemd makes it for the service."""
    of_systemd = Path("/var/lib/kworker", config.name)
    by_default = config.file.parent / ".kworker" / config.name
    if config.state_dir not in (of_systemd, by_default):
        yield config.state_dir


def _places(spark: SparkSettings) -> Iterator[Path]:
    """Yields the parents of local checkpoints and tables: Spark writes files beside these, too."""
    for place in (spark.checkpoints, *(table.path for table in spark.tables if table.path)):
        if folder := local_folder(place):
            yield folder.parent


def _outermost(folders: set[Path]) -> tuple[Path, ...]:
    """Returns the folders that lie in none of the others, sorted."""
    return tuple(sorted(each for each in folders if not folders.intersection(each.parents)))
