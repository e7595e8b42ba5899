"""A replay on the twin, stepped by hand: what runs again, and what becomes of it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.config.topics import TopicInfo
from kworker.core import headers as names
from kworker.core import offset_map
from kworker.core.failure import Described, Failure
from kworker.core.headers import Source
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, TopicIdentity
from kworker.core.outcome import Failed
from kworker.core.times import TimeRange
from kworker.errors import ConfigError, KworkerError
from kworker.instance.rejections import Rejections
from kworker.replay.ranges import OffsetRanges
from kworker.replay.replay import survey
from kworker.worker.retries.policy import RetryPolicy
from tests.support.poll_loop_rig import (
    DEAD,
    DELAYS_S,
    GROUP,
    REPLAY,
    Bench,
    retry_topic,
    take_turns,
)

STAMP = 1_700_000_000_000
ALL = TimeRange()
IN_MEMORY = RetryPolicy(DELAYS_S, hold=True)


@pytest.fixture
def kafka() -> MemoryKafka:
    """Two partitions of four records `partition-offset`, of one second each, of as many keys."""
    kafka = MemoryKafka(lambda: STAMP / 1000)
    kafka.create("foo", 2)
    for partition in (0, 1):
        for i in range(4):
            value = b"%d-%d" % (partition, i)
            kafka.append("foo", partition, value=value, key=value, timestamp=STAMP + 1000 * i)
    return kafka


def replay_of(kafka: MemoryKafka, first: int, settled: int, window: TimeRange = ALL) -> Bench:
    """Of partition 0, having begun."""
    course = OffsetRanges({("foo", 0): range(first, settled)}, window)
    bench = Bench(kafka, [], course=course, retry=IN_MEMORY)
    bench.turn(3)
    return bench


def test_exactly_the_settled_records_of_the_window_run(kafka: MemoryKafka) -> None:
    bench = replay_of(kafka, 0, 3, TimeRange(STAMP + 1000, STAMP + 10_000))
    assert bench.in_hand() == [b"0-1", b"0-2"]
    bench.end(b"0-1", b"0-2")
    kafka.append("foo", 0, value=b"later")
    bench.turn(5)
    assert bench.in_hand() == []
    assert bench.poll_loop.idle
    assert (bench.poll_loop.stats().consumed, bench.poll_loop.settlement.counters.done) == (2, 2)


def test_the_service_goes_on_undisturbed(kafka: MemoryKafka) -> None:
    """Its members keep their partitions, and its positions are nobody else's."""
    live = Bench(kafka, ["foo"])
    live.turn(2)
    live.end(b"0-0", b"0-1", b"1-0")
    live.turn()
    replay = replay_of(kafka, 0, 2)
    take_turns(live, replay)
    replay.end(b"0-0", b"0-1")
    take_turns(live, replay)
    assert kafka.committed(GROUP) == {("foo", 0): 2, ("foo", 1): 1}
    assert kafka.committed(replay.group) == {("foo", 0): 2}
    assert live.poll_loop.assignment.rebalances == 1
    live.end(*live.in_hand())  # type: ignore[arg-type]
    live.turn()
    assert kafka.committed(GROUP) == {("foo", 0): 4, ("foo", 1): 4}


def test_a_failed_replay_record_is_retried_in_place(
    kafka: MemoryKafka,
) -> None:
    """A delay topic would return it to the service, as if it were new there."""
    bench = replay_of(kafka, 0, 2)
    bench.fail(b"0-0")
    bench.end(b"0-1")
    bench.turn(2)
    assert bench.in_hand() == []
    assert not bench.poll_loop.idle
    bench.turn(4)
    assert bench.holds(b"0-0").attempt == 2
    bench.end(b"0-0")
    bench.turn(2)
    assert bench.poll_loop.idle
    assert [kafka.records(retry_topic(delay)) for delay in DELAYS_S] == [[], []]


def test_a_dead_letter_of_a_replay_says_so(kafka: MemoryKafka) -> None:
    """Byte for byte the source's, as any; and the replay ends with it."""
    bench = replay_of(kafka, 0, 2)
    bench.end(b"0-1")
    bench.pool.end(bench.holds(b"0-0"), Failed(Described(Failure("undecodable"))))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    told = dict(dead.headers())
    assert (dead.key(), dead.value()) == (b"0-0", b"0-0")
    assert told[names.REPLAY] == REPLAY.encode()
    assert told[names.SOURCE] == b"foo/0/0/%d" % STAMP
    assert bench.poll_loop.idle
    assert bench.poll_loop.settlement.counters.dead == 1


def test_a_replay_leaves_a_rejection_to_the_worker(kafka: MemoryKafka, tmp_path: Path) -> None:
    """The record's retry waits in a delay topic, and comes to a worker."""
    Rejections(tmp_path).add(Source("foo", 0, 0, STAMP), "me@here")
    course = OffsetRanges({("foo", 0): range(1)}, ALL)
    bench = Bench(kafka, [], course=course, retry=IN_MEMORY, state_dir=tmp_path)
    bench.turn(5)
    assert bench.poll_loop.idle
    [dead] = kafka.records(DEAD)
    told = dict(dead.headers())
    assert (told[names.REASON], told[names.REPLAY]) == (b"operator", REPLAY.encode())
    assert len(Rejections(tmp_path).pending()) == 1


def test_a_claimed_events_dead_letter_is_no_replay(kafka: MemoryKafka) -> None:
    """Nobody has done it before, so what comes of its redrive is no repetition."""
    bench = replay_of(kafka, 0, 1)
    record = bench.holds(b"0-0")
    record.claim = "order-7"
    bench.pool.end(record, Failed(Described(Failure("undecodable"))))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert names.REPLAY not in dict(dead.headers())


def test_a_stopped_replay_ends_its_runs_and_begins_no_other(kafka: MemoryKafka) -> None:
    course = OffsetRanges({("foo", 0): range(4)}, TimeRange())
    bench = Bench(kafka, [], course=course, hands=2)
    bench.turn(3)
    assert bench.in_hand() == [b"0-0", b"0-1"]
    bench.drain()
    assert len(bench.pool.runs) == 2
    assert kafka.committed(bench.group) == {("foo", 0): 2}


def test_a_partition_with_a_full_map_is_read_on_as_records_end(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had no room is read again, also where the stretch had been read to its end."""
    monkeypatch.setattr(offset_map, "MAP_BITS_MAX", 8)
    for i in range(4, 40):
        kafka.append("foo", 0, value=b"0-%d" % i, key=b"0-%d" % i)
    course = OffsetRanges({("foo", 0): range(40)}, ALL)
    bench = Bench(kafka, [], course=course, retry=IN_MEMORY, crowded_records=1)
    bench.turn(3)
    assert len(bench.in_hand()) < 40
    for turn in range(400):
        if bench.poll_loop.idle and course.finished:
            break
        for record in bench.pool.held[turn % 4 > 0 :]:  # the first is slow
            bench.pool.end(record)
        bench.turn()
    assert (course.finished, course.read, bench.poll_loop.idle) == (True, 40, True)
    assert sorted(record.offset for record in bench.pool.runs) == [*range(40)]
    assert kafka.committed(bench.group) == {("foo", 0): 40}


def test_what_a_replay_committed_means_nothing_to_another(kafka: MemoryKafka) -> None:
    """One that is broken off begins anew, whatever its map named."""
    first = replay_of(kafka, 0, 4)
    first.end(b"0-0", b"0-2")
    first.turn(2)
    assert kafka.committed(first.group) == {("foo", 0): 1}
    again = replay_of(kafka, 0, 4)
    assert len(again.in_hand()) == 4
    assert again.poll_loop.assignment.maps_ignored == 0


class NamelessTopics:
    """An administrator's client of brokers that tell no topic ids."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    def topic_names(self) -> list[str]:
        return list(self._topics)

    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]:
        return {name: TopicInfo(2, 1, {}) for name in names if name in self._topics}

    def group_offsets(self, *_: object) -> dict[PartitionId, Committed]:
        return {}

    def identities(self, *_: object) -> dict[str, TopicIdentity]:
        return {}

    def list_offsets(self, *_: object) -> dict[PartitionId, int]:
        return {}


def config_of(folder: Path, topic: str) -> Config:
    file = folder / "kworker.toml"
    file.write_text(
        f'name = "s"\nhandler = "json:loads"\n[source]\ntopics = ["{topic}"]\n'
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
    )
    return toml_file.load(file)


def test_a_replay_without_topic_ids_is_refused_by_topic(tmp_path: Path) -> None:
    """It would wait for them as a worker does, and nobody restarts it."""
    with pytest.raises(KworkerError, match="do not tell the ids of foo: DESCRIBE must be"):
        survey(config_of(tmp_path, "foo"), NamelessTopics("foo"), ALL)


@pytest.mark.parametrize("topic", ["foo", "^fo+$"])
def test_a_replay_without_a_source_topic_names_it(tmp_path: Path, topic: str) -> None:
    with pytest.raises(ConfigError) as raised:
        survey(config_of(tmp_path, topic), NamelessTopics("bar"), ALL)
    assert str(raised.value) == (
        f"source.topics: the brokers have no topic that matches {topic}; check the name, or create"
        " it"
    )
