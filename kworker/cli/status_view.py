"""Renders the status document for a terminal: a few lines and a table."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kworker.cli.text import printable
from kworker.clock import now_ms
from kworker.core.pauses import named
from kworker.core.times import ago, iso

_STYLE = {"running": "green", "red": "red", "waiting": "red", "draining": "yellow"}
_LETTERS = 3
_COLUMNS = (
    "worker",
    "pid",
    "phase",
    "parts",
    "in hand",
    "oldest",
    "beat",
    "rate",
    "rss",
    "restarts",
)


def show(document: dict[str, Any]) -> None:
    Console().print(render(document))


def watch(ask: Callable[[], dict[str, Any]], every_s: float) -> None:
    """Prints a new status document over the last one every `every_s` s, until `ask` raises."""
    with Live(render(ask()), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(every_s)
            live.update(render(ask()), refresh=True)


def render(document: dict[str, Any]) -> Group:
    """Returns a status document as lines and tables for a terminal."""
    return Group(
        _head(document),
        *(Text(f"  {reason}", style="red") for reason in document["reasons"]),
        *(Text(f"  {_pause(row)}", style="yellow") for row in document["paused"]),
        _workers(document["workers"]),
        Text(_totals(document)),
        *(Text(_topic(row)) for row in document["lag"]["topics"]),
        *(Text(delay_line(row)) for row in document["delays"] if row["waiting"]),
        *(Text(_letter(row)) for row in document["last_dead_letters"][:_LETTERS]),
        *_spark(document["spark"]),
        *_console(document["console"]),
    )


def _head(document: dict[str, Any]) -> Text:
    state = document["state"]
    return Text.assemble(
        (document["name"], "bold"),
        f" on {document['instance']} is ",
        (state, _STYLE.get(state, "yellow")),
        f"  pid {document['pid']}, up {span(document['uptime_s'])}, {document['version']}",
    )


def _pause(row: dict[str, Any]) -> str:
    since, until_ms = iso(row["since_ms"]), row["until_ms"]
    until = "`kworker resume`" if until_ms is None else iso(until_ms)
    return printable(f"paused: {named(row['topic'])}, since {since} by {row['by']}, until {until}")


def _workers(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    beat = row["heartbeat_age_s"]
    return [
        str(row["slot"]),
        str(row["pid"] or "-"),
        row["phase"],
        str(len(row["partitions"])),
        str(row["in_hand"]),
        f"{row['oldest_s']:.1f}s" if row["oldest_s"] else "-",
        "-" if beat is None else f"{beat:.1f}s",
        f"{row['rate']:,.0f}/s",
        f"{row['rss_bytes'] >> 20} MiB",
        str(row["restarts"]),
    ]


def _totals(document: dict[str, Any]) -> str:
    counters = ", ".join(f"{name} {count:,}" for name, count in document["counters"].items())
    lag = document["lag"]
    known = lag["records"] is not None
    counted = f"{lag['records']:,}, unfinished {lag['unfinished']:,}" if known else "unknown"
    behind = f"lag {counted}, age {lag['age_s']:.1f}s"
    return f"{counters}\n{behind}"


def _topic(row: dict[str, Any]) -> str:
    return f"topic {row['topic']}: {row['behind']:,} behind in {row['partitions']} partitions"


def _letter(row: dict[str, Any]) -> str:
    age = ago(row["at_ms"], now_ms())
    error = printable(row["error"]).partition("\n")[0]
    return f"dead letter {row['record']}, {row['reason']}, {age} ago: {error}"


def delay_line(row: dict[str, Any]) -> str:
    """Returns a line about one delay topic, from an item of `delays` in the status document."""
    due_ms = row["next_due_ms"]
    due = (
        ""
        if due_ms is None
        else f", the next is due in {span(max(0.0, due_ms / 1000 - time.time()))}"
    )
    return f"delay {row['delay']}: {row['waiting']:,} waiting{due}"


def _spark(spark: dict[str, Any]) -> list[Text]:
    if spark["state"] == "off":
        return []
    lines = [Text(f"spark {spark['state']} {spark['reason']}".rstrip())]
    for table in spark["tables"]:
        words = ", ".join(f"{name} {table.get(name)}" for name in ("batch", "rows", "behind"))
        words += f", set aside {aside}" if (aside := table.get("aside")) else ""
        lines.append(Text(f"  {table.get('name')}: {words}"))
    return lines


def _console(console: dict[str, Any]) -> list[Text]:
    if console["state"] == "off":
        return []
    return [
        Text(f"console {console['state']} http://{console['listen']}/ {console['reason']}".rstrip())
    ]


def span(seconds: float) -> str:
    """Formats a number of seconds as hours and minutes, or as minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
