"""Handlers on a real Kafka: what they are given, opened, refused and spared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kworker.core import headers as names
from tests.support.kafka import messages
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]
ONE = {"workers": {"processes": 1}}


def send(bootstrap: str, topic: str, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number}".encode())
    assert producer.flush(20) == 0


def dead_letters(bootstrap: str, of: Service) -> list[tuple[str, str]]:
    """Reason and message of each."""
    found = [dict(raw.headers()) for raw in messages(bootstrap, f"{of.name}.dead")]
    return [(each[names.REASON].decode(), each[names.MESSAGE].decode()) for each in found]


def results(bootstrap: str, of: Service) -> list[Any]:
    return [json.loads(raw.value()) for raw in messages(bootstrap, of.results)]


TYPED = """
from dataclasses import dataclass
from decimal import Decimal

@dataclass
class Order:
    id: int
    total: Decimal

def handle(order: Order, message):
    if order.id == 3:
        return {"order": {"total": order.total}}
    return {"id": order.id, "total": str(order.total), "offset": message.offset}
"""


def test_a_dataclass_is_built_and_what_does_not_fit_is_named(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """In the dead letter, by the field; and what is no result, by its path."""
    source = topic("typed", partitions=1)
    send(
        bootstrap,
        source,
        b'{"id": 1, "total": "1.10"}',
        b'{"id": "2", "total": 1}',
        b'{"id": 3, "total": 3}',
        None,
    )
    with service(tmp_path / "service", bootstrap, [source], handlers=TYPED, settings=ONE) as typed:
        typed.serve()
        typed.caught_up()
        typed.ends_well()
    assert results(bootstrap, typed) == [{"id": 1, "total": "1.10", "offset": 0}]
    assert sorted(dead_letters(bootstrap, typed)) == [
        (
            "undecodable",
            "the value does not fit Order at id: Input should be a valid integer",
        ),
        (
            "undecodable",
            "the value is null, which does not fit Order; a handler that takes null has the type"
            " Order | None",
        ),
        (
            "unpublishable",
            "result.order.total: Decimal is not JSON: convert it, with str() or float()",
        ),
    ]


OPENED = """
from pathlib import Path

HERE = Path(__file__).parent

class Handler:
    async def open(self):
        if not (HERE / "database").exists():
            raise ConnectionError("no database")
        self.opened = True

    async def __call__(self, message):
        return {"opened": self.opened}

    async def close(self):
        (HERE / "closed").touch()

handle = Handler
"""


def test_an_async_class_that_cannot_open_waits_red_and_goes_on(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """As one whose `__init__` fails: the next try may succeed; a drain closes it."""
    source = topic("opened", partitions=1)
    send(bootstrap, source, b"1", b"2")
    folder = tmp_path / "service"
    with service(folder, bootstrap, [source], handlers=OPENED, settings=ONE) as opened:
        opened.start()
        reason = "the handler's __init__ or open() failed: ConnectionError: no database"
        eventually(lambda: reason in opened.status().get("reasons", []), timeout_s=60)
        assert opened.command("status").returncode == 1
        (folder / "database").touch()
        opened.is_running()
        opened.caught_up()
        assert not (folder / "closed").exists()
        opened.ends_well()
    assert results(bootstrap, opened) == [{"opened": True}] * 2
    assert (folder / "closed").exists()


def test_a_drain_ends_the_wait_for_a_handler_to_open(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Also while an `open` waits for what does not come."""
    handlers = (
        "import asyncio\n"
        "class handle:\n"
        "    async def open(self):\n"
        "        print('it opens', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "    async def __call__(self, message): ...\n"
    )
    source = topic("opening", partitions=1)
    with service(
        tmp_path / "service", bootstrap, [source], handlers=handlers, settings=ONE
    ) as opening:
        opening.start()
        eventually(lambda: "it opens" in opening.said(), timeout_s=60)
        assert opening.stop() == 0


BLOCKING = """
import time
from pathlib import Path

HERE = Path(__file__).parent

async def handle(message):
    if message.value == b"blocks":
        while not (HERE / "released").exists():
            time.sleep(0.1)  # this line
    return {"value": message.text()}
"""


def test_a_handler_that_blocks_the_loop_is_named_in_the_log(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """By the line that a person must change, while it blocks."""
    source = topic("blocking", partitions=1)
    folder = tmp_path / "service"
    send(bootstrap, source, b"before", b"blocks", b"after")
    line = BLOCKING.splitlines().index("            time.sleep(0.1)  # this line") + 1
    with service(folder, bootstrap, [source], handlers=BLOCKING, settings=ONE) as blocking:
        blocking.serve()
        words = "handlers.py:{} in handle has blocked the event loop for 1."
        lines = (words.format(line), words.format(line - 1))
        eventually(lambda: any(each in blocking.said() for each in lines), what="the warning")
        (folder / "released").touch()
        blocking.caught_up()
        blocking.ends_well()
    assert sum(map(blocking.said().count, lines)) == 1
    assert len(results(bootstrap, blocking)) == 3


COUNTING = """
def handle(message):
    return {"length": len(message.value)}  # a tombstone has none
"""


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_tombstones_are_skipped_counted_and_committed(
    tmp_path: Path, bootstrap: str, topic: Topic, guarantee: str
) -> None:
    """No handler sees them, and nothing comes of them."""
    source = topic("tombs", partitions=1)
    send(bootstrap, source, b"one", None, b"two", None, None)
    settings = {
        **ONE,
        "delivery": {"guarantee": guarantee},
        "source": {"tombstones": "skip"},
        "retry": {"delays": []},
    }
    with service(
        tmp_path / "service", bootstrap, [source], handlers=COUNTING, settings=settings
    ) as skipping:
        skipping.serve()
        skipping.caught_up()
        eventually(lambda: skipping.counter("dropped") == 3)
        assert skipping.counter("done") == 2
        tried = skipping.command("try", f"{source}:0:1", "--json")
        assert json.loads(tried.stdout)["skipped"], tried.stderr
        assert "a tombstone, skipped" in skipping.command("try", f"{source}:0:1").stdout
        replayed = skipping.command("replay", "--all", "--json")
        assert json.loads(replayed.stdout)["dropped"] == 3, replayed.stderr
        skipping.ends_well()
    assert results(bootstrap, skipping)[:2] == [{"length": 3}, {"length": 3}]
    assert dead_letters(bootstrap, skipping) == []


def test_a_reload_lets_failing_tombstones_go(tmp_path: Path, bootstrap: str, topic: Topic) -> None:
    """The new workers take them anew, and skip them."""
    source = topic("tombs", partitions=1)
    send(bootstrap, source, b"one", None)
    settings = {**ONE, "retry": {"mode": "hold", "delays": ["10m"]}}
    with service(
        tmp_path / "service", bootstrap, [source], handlers=COUNTING, settings=settings
    ) as failing:
        failing.serve()
        eventually(lambda: failing.counter("failed") == 1)
        text = failing.config.read_text().replace("[source]", '[source]\ntombstones = "skip"')
        failing.config.write_text(text)
        assert failing.command("reload").returncode == 0
        eventually(lambda: failing.counter("dropped") == 1, timeout_s=60)
        failing.caught_up()
        failing.ends_well()
    assert dead_letters(bootstrap, failing) == []


def test_a_handler_that_cannot_be_called_ends_a_start(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """By `check` and `start`, in one line with the code to write."""
    handlers = "def handle(order: int): ...\n"
    with service(tmp_path / "service", bootstrap, [topic("refused")], handlers=handlers) as refused:
        problem = (
            "the Python reference handlers:handle takes order: int, a type that kworker cannot"
        )
        step = "write: def handle(message: Message), or def handle(order: dict)"
        checked = refused.command("check")
        assert checked.returncode == 78
        assert f"handler: {problem}" in checked.stdout
        assert f"→ {step}" in checked.stdout
        started = refused.command("start")
        assert started.returncode == 78
        [line] = [each for each in started.stderr.splitlines() if each.startswith("kworker: ")]
        assert line.startswith(f"kworker: handler: {problem}")
        assert step in line
        refused.is_gone()
