"""Options of `kworker send`."""

from pathlib import Path
from typing import Annotated

import typer

ValuesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[VALUE]...", help="The value of a record; each makes one record."),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Send to this topic.", show_default="the source topic"),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="The key of each record.")]
KeyFieldOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD", help="Take each key from this field of the JSON value, such as order.id."
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of each record."),
]
PartitionOption = Annotated[
    int | None, typer.Option(min=0, help="Send to this partition.", show_default="by the key")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Send each line as a value; - is stdin."),
]
RecordsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Send the key, value and headers in each line, as `kworker tail --json` prints"
        " them; - is stdin.",
    ),
]
NullOption = Annotated[
    bool, typer.Option("--null", help="Send a record without a value (a tombstone).")
]
