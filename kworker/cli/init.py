"""`kworker init`: writes a first configuration and a first handler."""

from pathlib import Path

import typer

from kworker.cli.options import PREPARE_PANEL
from kworker.errors import UsageError

app = typer.Typer()

CONFIGURATION = """\
# A kworker service. All other keys, with their defaults: kworker config schema

name = "hello"                       # the consumer group; prefixes kworker's own topics
handler = "handlers:handle"          # module:function, from this folder

[source]
topics = ["greetings"]               # the handler is called for each record

[kafka]                              # any librdkafka property, for every client
"bootstrap.servers" = "127.0.0.1:9092"

[workers]
processes = 2
threads = 16                         # handlers at once in each process
#ordering = "key"                    # key | partition | none: which records run in order
#handler_timeout = "5m"

#[spark]                             # writes results to tables; kworker check says what it needs
#[[spark.tables]]
#name = "greetings"
#path = "data/greetings"
#schema = "greeting STRING"          # the columns of a result
"""

HANDLERS = '''\
"""Handlers: functions that kworker calls with each record."""

from kworker import Message


def handle(message: Message) -> dict[str, str]:
    """Returns the result, which is published to the topic hello.results; None publishes nothing."""
    return {"greeting": f"hello, {message.text()}"}
'''

FILES = {"kworker.toml": CONFIGURATION, "handlers.py": HANDLERS}


@app.command("init", rich_help_panel=PREPARE_PANEL)
def init() -> None:
    """Write a first kworker.toml and handlers.py into the current folder."""
    for name in FILES:
        if Path(name).exists():
            raise UsageError(f"{Path(name).absolute()} exists already; nothing was written")
    for name, text in FILES.items():
        # Mode "x": a file that appeared meanwhile is not overwritten.
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(text)
        typer.echo(f"wrote {name}")
    typer.echo(
        "next: kworker sandbox up"
        " · kworker topics create --partitions 4 --replication 1"
        " · kworker check --online · kworker start"
    )
