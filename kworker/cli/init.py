"""`kworker init`: writes a first configuration, a first handler and its test."""

from importlib.util import find_spec
from pathlib import Path

import typer

from kworker.cli.options import PREPARE_PANEL
from kworker.errors import UsageError

app = typer.Typer()

CONFIGURATION = """\
# A kworker service. All other keys, with their defaults: kworker config keys

name = "hello"                       # the consumer group; prefixes kworker's own topics
handler = "handlers:handle"          # module:function, from this folder

[source]
topics = ["greetings"]               # the handler is called for each record

[kafka]                              # any librdkafka property, for every client
"bootstrap.servers" = "BOOTSTRAP"

[workers]
processes = 2
threads = 16                         # handlers at once in each process
#ordering = "key"                    # key | partition | none: which records run in order
#handler_timeout = "5m"

#[spark]                              # writes results to tables
#[[spark.tables]]
#name = "greetings"
#path = "data/greetings"              # Delta; format = "parquet" or "iceberg" for those
#schema = "greeting STRING"           # the columns of a result
"""

HANDLERS = '''\
"""Handlers: functions that kworker calls with each record."""

from kworker import Message


def handle(message: Message) -> dict[str, str]:
    """Returns the result, which is published to the topic hello.results; None publishes nothing."""
    return {"greeting": f"hello, {message.text()}"}
'''

TEST = '''\
"""Tests of the handlers, without a server: python -m pytest"""


def test_each_record_is_greeted(kworker_run):
    report = kworker_run([b"world", b"moon"])
    assert report.values() == [{"greeting": "hello, world"}, {"greeting": "hello, moon"}]
    assert report.dead == []
'''

IGNORED = """\
.kworker/
.sandbox/
data/
__pycache__/
"""

FILES = {"kworker.toml": CONFIGURATION, "handlers.py": HANDLERS, "test_handlers.py": TEST}
SANDBOX = Path(".sandbox")
_BOOTSTRAP = "127.0.0.1:9092"


@app.command("init", rich_help_panel=PREPARE_PANEL)
def init() -> None:
    """Write a first kworker.toml, handlers.py and its test into the current folder.

    If a sandbox runs in this folder, the configuration has its address. If pyspark is installed,
    the configuration also has a Spark table for the results. A .gitignore is written unless there
    is one.
    """
    for name in FILES:
        if Path(name).exists():
            raise UsageError(f"{Path(name).absolute()} exists already; nothing was written")
    bootstrap = _sandbox()
    configuration = CONFIGURATION.replace("BOOTSTRAP", bootstrap or _BOOTSTRAP)
    if find_spec("pyspark"):
        head, table = configuration.split("\n#[spark]")
        configuration = f"{head}\n[spark]" + table.replace("\n#", "\n")
    for name, text in {**FILES, "kworker.toml": configuration}.items():
        _write(name, text)
    if not Path(".gitignore").exists():
        _write(".gitignore", IGNORED)
    first = f"Kafka is {bootstrap}, of the sandbox" if bootstrap else "kworker sandbox up"
    typer.echo(
        f"next: {first}"
        " · kworker topics create --partitions 4 --replication 1"
        " · kworker check --online · kworker start"
    )


def _sandbox() -> str | None:
    """Returns the address of the Kafka of the sandbox in this folder; None if none runs."""
    if not SANDBOX.is_dir():
        return None
    from kworker.sandbox import Sandbox

    status = Sandbox(SANDBOX).status()
    return status.bootstrap if status.running else None


def _write(name: str, text: str) -> None:
    # Mode "x": a file that appeared meanwhile is not overwritten.
    with Path(name).open("x", encoding="utf-8") as file:
        file.write(text)
    typer.echo(f"wrote {name}")
