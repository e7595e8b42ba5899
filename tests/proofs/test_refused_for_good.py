"""One result among a thousand that Kafka refuses for good: its source record alone dies."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import New, Read, Writer, change_topic, read_all
from tests.support.service import service

# The source's key is the result's; of a large one its size is in the record.
SIZED = """
import os
from tests.support.recorded import recorded

@recorded
def handle(message):
    word, _, size = message.text().partition(" ")
    return os.urandom(int(size)) if word == "large" else message.value
"""
MANY = 1_000
LOWERED, RAISED = 100_000, 3_000_000


def among_many(prefix: str, odd: New) -> Iterator[New]:
    for n in range(MANY):
        yield odd if n == MANY // 2 else New(f"{prefix}-{n}", name(prefix, n), name(prefix, n))


def name(prefix: str, n: int) -> bytes:
    """Nothing is compacted: each has a key of its own."""
    return f"{prefix}-{n}".encode()


def large(size: int) -> New:
    return New(f"large {size}", f"large {size}".encode(), b"large")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_one_refused_result_of_a_thousand_dies_alone(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], guarantee: str
) -> None:
    """A null key, and a limit that is lowered and raised while workers run."""
    source = topic("proof", partitions=2)
    results = topic("proof-results", partitions=2, cleanup_policy="compact")
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 1, "threads": 4},
        "delivery": {"results": results, "guarantee": guarantee},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SIZED, settings=settings
    ) as refused:
        refused.serve()
        writer.write(source, among_many("null", New("null", b"null", None, 0)))
        refused.caught_up()
        change_topic(bootstrap, results, max_message_bytes=str(LOWERED))
        writer.write(source, among_many("lowered", large(2 * LOWERED)))
        refused.caught_up()
        change_topic(bootstrap, results, max_message_bytes=str(RAISED))
        writer.write(source, among_many("raised", large(RAISED // 2)))
        refused.caught_up()
        assert refused.status()["reasons"] == []
        refused.ends_well()
        letters = read_all(bootstrap, f"{refused.name}.dead")
    dead = [f"large {2 * LOWERED}", "null"]
    assert sorted(map(told, letters)) == [("unpublishable", identity) for identity in dead]
    found = Counter(read.source for read in read_all(bootstrap, results))
    assert found == dict.fromkeys((r.position for r in writer.acked if r.identity not in dead), 1)


def told(letter: Read) -> tuple[str, str]:
    return letter.headers["kworker-reason"].decode(), (letter.value or b"").decode()
