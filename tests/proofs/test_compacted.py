"""Exactly once over compacted input: a thousand runs beyond a gap, transaction by transaction."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support import kafka
from tests.support.evidence import gather
from tests.support.history import Commit
from tests.support.kafka import New, Read, Writer
from tests.support.ledgers import Produced
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# Unfinished records with others between them; for a proof more than a map has room for.
STUCK = int(os.environ.get("PROOF_RUNS", "1100"))
RUNS = 1_000
OFTEN = 20  # records of one key before each of the others: offsets that will be gaps

# What is stuck ends when somebody lets it.
STICKING = """
import asyncio
from pathlib import Path
from tests.support.recorded import recorded_async

RELEASED = Path(__file__).with_name("released")

@recorded_async
async def handle(message):
    while message.text().startswith("stuck") and not RELEASED.exists():
        await asyncio.sleep(0.5)
    await asyncio.sleep(message.offset % 41 / 20)  # so that there are many transactions
    return message.value
"""


def test_each_transaction_commits_exactly_what_it_publishes(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """And nothing else: else a kill between two of them would lose a result, or repeat it."""
    source = topic("compacted", partitions=1, **COMPACTED)
    results = topic("proof-results", partitions=1, message_timestamp_type="LogAppendTime")
    settings = {
        "workers": {"processes": 1, "concurrency": 2 * STUCK, "in_flight": 4 * STUCK},
        "delivery": {"results": results, "guarantee": "exactly-once", "commit_interval": "50ms"},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    clean_at_once(bootstrap)
    writer.write(source, with_gaps())
    more = count(2 * STUCK)

    def compacted() -> bool:
        writer.write(source, [named("free", next(more))])  # what is before the last is looked at
        return gaps(bootstrap, source) >= 2 * STUCK - 1

    eventually(compacted, timeout_s=60.0, every_s=0.5, what="it is compacted")
    there = {read.offset for read in kafka.read_all(bootstrap, source)}
    left = [record for record in writer.acked if record.offset in there]
    with service(
        tmp_path / "service", bootstrap, [source], handlers=STICKING, settings=settings
    ) as struck:
        struck.serve()
        free = len(left) - STUCK
        eventually(lambda: held(struck, left) == free, timeout_s=60.0, what="all others are done")
        struck.kill_worker(0)
        eventually(lambda: struck.counter("remembered") == free, what="it is back")
        (struck.folder / "released").touch()
        struck.caught_up()
        struck.ends_well()
    found = gather(struck, left, results, exactly_once=True)
    most = max(len(commit.beyond) for commit in found.commits)
    transactions = list(transactions_of(found.results))
    print(
        f"{len(left)} of {len(writer.acked)} records left, {len(transactions)} transactions,"
        f" {most} runs in one map, {max(len(c.metadata) for c in found.commits)} characters"
    )
    assert most >= RUNS
    assert len(transactions) > 20
    assert [each for each in newly_named(found.commits, there, source) if each] == transactions
    assert found.contradictions() == {}


COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "100",
    "min_cleanable_dirty_ratio": "0.001",
}


def clean_at_once(bootstrap: str) -> None:
    """The brokers look for what is to be compacted all the time, and not each 15 s."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    often = ConfigEntry(
        "log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET
    )
    for broker in admin.list_topics(timeout=10).brokers:
        told = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[often])
        admin.incremental_alter_configs([told])[told].result()


def with_gaps() -> Iterator[New]:
    """By turns a record that will be stuck and one that will not, each behind many of one key."""
    for number in range(2 * STUCK):
        for _ in range(OFTEN):
            yield New("often", b"often", b"often", 0)
        yield named("free" if number % 2 else "stuck", number)


def named(kind: str, number: int) -> New:
    name = f"{kind}-{number}"
    return New(name, name.encode(), name.encode(), 0)


def gaps(bootstrap: str, source: str) -> int:
    """How many records do not follow the one before them."""
    offsets = [read.offset for read in kafka.read_all(bootstrap, source)]
    return sum(1 for one, other in pairwise(offsets) if other > one + 1)


def held(struck: Service, records: Iterable[Produced]) -> int:
    """How many of these the group holds as done beyond its position."""
    runs = kafka.named_beyond(struck.bootstrap, struck.name)
    return sum(1 for one in records if any(one.offset in run for run in runs.get(one.at, [])))


def transactions_of(results: Sequence[Read]) -> Iterator[set[int]]:
    """The source offsets of each: in one partition of one producer a marker ends each of them."""
    ordered = sorted(results, key=lambda read: read.offset)
    begun: set[int] = set()
    for before, read in zip([None, *ordered], ordered, strict=False):
        if before is not None and read.offset > before.offset + 1:
            yield begun
            begun = set()
        assert read.source[2] not in begun
        begun.add(read.source[2])
    yield begun


def newly_named(commits: Iterable[Commit], there: Iterable[int], source: str) -> Iterator[set[int]]:
    """Of the records that are there, those that each commit is the first to name."""
    unnamed = set(there)
    for commit in commits:
        if commit.at != (source, 0):
            continue
        found = {n for n in unnamed if n < commit.position}
        for run in commit.beyond:
            found |= unnamed.intersection(run)
        unnamed -= found
        yield found
