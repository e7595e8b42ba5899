"""Events that come several times: their effects, counted by an outside service, come once."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support import kafka
from tests.support.effects import Effects, effects
from tests.support.kafka import New, Writer
from tests.support.ledgers import invocations
from tests.support.redis import OwnRedis, own_redis
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

# `make test` must end some day; 30 shows as much.
AWAY_S = float(os.environ.get("PROOF_REDIS_OUTAGE_S", "6"))
EVENTS, COPIES = 600, 3
MORE = 200  # where a worker has too little in flight for a kill
BUSY = 20  # records in flight, as last told
PARTITIONS = 4
LEASE_S = 3
KILLS = 6
HANDLER = """
import time
from tests.support.recorded import recorded
{client}

@recorded
def handle(message):
    identity = message.json()["id"]
    ask(identity)
    time.sleep({slow_s})
    return {{"id": identity}}
"""


@pytest.fixture
def world() -> Iterator[Effects]:
    with effects() as found:
        yield found


@pytest.fixture
def redis(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[OwnRedis]:
    with own_redis(tmp_path / "redis", free_port()) as server:
        yield server


def handler(world: Effects, slow_s: float = 0.004) -> str:
    return HANDLER.format(client=world.client, slow_s=slow_s)


def settings(redis: OwnRedis, results: str, **idempotency: Any) -> dict[str, dict[str, Any]]:
    return {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"results": results},
        "kafka.consumer": {"heartbeat.interval.ms": 500},
        "idempotency": {
            "redis": redis.url,
            "key": "json:id",
            "lease": f"{LEASE_S}s",
            **idempotency,
        },
    }


def events(many: int, copy: int, first: int = 0) -> Iterator[New]:
    """Each event under another key for each copy: they meet in different partitions."""
    for number in range(first, first + many):
        value = b'{"id": "e%d"}' % number
        yield New(f"e{number}/{copy}", value, b"%d/%d" % (copy, number % 50))


def once(world: Effects, many: int) -> bool:
    """Every event had exactly one effect."""
    return world.counts == {f"e{number}": 1 for number in range(many)}


def result_ids(bootstrap: str, results: str) -> list[bytes | None]:
    return sorted(read.value or b"" for read in kafka.read_all(bootstrap, results))


def test_each_event_sent_three_times_has_one_effect(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, redis: OwnRedis, world: Effects
) -> None:
    """Rebalances, a rolling restart, a replay and an outage of Redis come between."""
    source = topic("proof", partitions=8)
    options: dict[str, Any] = {
        "handlers": handler(world),
        "settings": settings(redis, results),
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "here", bootstrap, [source], **options) as here:
        here.serve()
        options |= {"name": here.name, "instance": "there", "ledger": here.ledger}
        writer.write(source, events(EVENTS, 0))
        with service(tmp_path / "there", bootstrap, [source], **options) as there:
            writer.begin(source, events(EVENTS, 1))
            there.serve()
            redis.stop()
            eventually(lambda: here.state() == "red", what="it says so")
            away_until = time.monotonic() + AWAY_S
            writer.begin(source, events(EVENTS, 2))
            eventually(lambda: time.monotonic() > away_until, timeout_s=AWAY_S + 10)
            redis.start()
            assert here.command("restart").returncode == 0
            writer.finish()
            assert there.stop() == 0
        here.is_running()
        here.caught_up()
        replay = here.command("replay", "--all")
        assert replay.returncode == 0, replay.stderr
        here.ends_well()
    assert once(world, EVENTS)
    assert len(result_ids(bootstrap, results)) == EVENTS
    assert len(set(result_ids(bootstrap, results))) == EVENTS
    assert [run.raised for run in invocations(here.ledger) if run.raised] == []


def test_a_kill_repeats_only_what_was_in_hand(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, redis: OwnRedis, world: Effects
) -> None:
    """Only a record that had begun and was not yet marked may be repeated."""
    source = topic("proof", partitions=8)
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "here",
        bootstrap,
        [source],
        handlers=handler(world, slow_s=0.02),
        settings=settings(redis, results),
    ) as struck:
        struck.serve()
        numbers = count(EVENTS, MORE)

        def at_work(slot: int) -> bool:
            """It has much in flight; else there will be more for it."""
            row = struck.worker(slot)
            if row["phase"] != "running" or row["pid"] in struck.killed:
                return False
            if row["in_flight"] <= BUSY:
                writer.begin(source, events(MORE, 0, first=next(numbers)))
            return bool(row["in_flight"] > BUSY)

        for copy in range(COPIES):
            writer.write(source, events(EVENTS, copy))
        for turn in range(KILLS):
            eventually(partial(at_work, turn % 2), every_s=0.05, what="it is at work")
            struck.kill_worker(turn % 2)
        writer.finish()
        struck.is_running()
        struck.caught_up()
        struck.ends_well()
    written = next(numbers)
    assert set(world.counts) == {f"e{number}" for number in range(written)}
    repeated = {identity: times for identity, times in world.counts.items() if times > 1}
    killed = {fault.pid for fault in struck.faults.faults}
    runs = invocations(struck.ledger)
    cut = [run for run in runs if run.pid in killed]
    # Of each repeated effect, all runs but one belong to a process that was killed.
    assert sum(times - 1 for times in repeated.values()) <= len(cut)
    in_hand = sum(fault.in_hand for fault in struck.faults.faults)
    print("kills", len(killed), "in hand", in_hand, "effects repeated", sorted(repeated.items()))
    assert sum(times - 1 for times in repeated.values()) <= in_hand
    assert len(set(result_ids(bootstrap, results))) == written


def test_without_redis_process_goes_on_and_counts(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, redis: OwnRedis, world: Effects
) -> None:
    """Who chose that prefers duplicates to waiting; how many there may be, the status tells."""
    source = topic("proof", partitions=PARTITIONS)
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "here",
        bootstrap,
        [source],
        handlers=handler(world),
        settings=settings(redis, results, unavailable="process"),
    ) as here:
        here.serve()
        writer.write(source, events(100, 0))
        here.caught_up()
        assert here.counter("unguarded") == 0
        calls = here.status()["redis_calls"]
        assert 0 < calls["answered"]["count"] <= asked(redis)
        assert 0 < calls["answered"]["sum_s"] < 60
        assert calls["failed"]["count"] == 0
        redis.stop()
        writer.write(source, events(100, 1, first=100))
        here.caught_up()
        eventually(lambda: here.counter("unguarded") == 100, what="they are counted")
        assert here.status()["redis_calls"]["failed"]["count"] > 0
        redis.start()
        eventually(lambda: _guarded(here, writer, source), what="both workers have Redis")
        seen = here.counter("duplicates")
        writer.write(source, events(200, 2))
        eventually(lambda: here.counter("duplicates") == seen + 200, what="all are duplicates")
        assert {world.counts[f"e{number}"] for number in range(200)} == {1}
        assert here.stop() == 0


def asked(redis: OwnRedis) -> int:
    """How often this Redis was asked to exchange claims, or for what instances share."""
    commands = Redis.from_url(redis.url).info("commandstats")
    return sum(commands[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "hgetall"))


def _guarded(running: Service, writer: Writer, topic: str) -> bool:
    """Whether records written now are claimed: one in each partition, so that each worker tells.

    Counters are told a moment after the commit; when all are counted, nothing is to come. Each
    probe is new: of what a worker has just done itself, it knows without Redis that it is done.
    """
    unguarded = running.counter("unguarded")
    names = [f"probe-{len(writer.acked)}-{n}" for n in range(PARTITIONS)]
    probes = [New(name, b'{"id": "%s"}' % name.encode(), b"", n) for n, name in enumerate(names)]
    writer.write(topic, probes)
    eventually(lambda: _ended(running) == len(writer.acked), what="the probes are counted")
    return running.counter("unguarded") == unguarded


def _ended(running: Service) -> int:
    counters = running.status().get("counters", {})
    return int(counters.get("done", 0) + counters.get("duplicates", 0))


def test_a_claim_of_the_dead_is_taken_over_within_the_lease(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, redis: OwnRedis, world: Effects
) -> None:
    """By another host, too, which can only watch its owner be silent."""
    source = topic("proof", partitions=1)
    writer = Writer(bootstrap, tmp_path / "produced")
    options: dict[str, Any] = {
        "handlers": handler(world, slow_s=2.0),
        "settings": {
            **settings(redis, results),
            "workers": {"processes": 1, "membership": "dynamic"},
            "kafka.consumer": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
        },
    }
    with service(tmp_path / "here", bootstrap, [source], **options) as here:
        here.serve()
        writer.write(source, events(1, 0))
        here.handled(1)
        options |= {"name": here.name, "instance": "there", "ledger": here.ledger}
        here.kill_worker(0)
        here.kill_supervisor()
        here.end()
        with service(tmp_path / "there", bootstrap, [source], **options) as there:
            there.serve()
            eventually(lambda: there.shares() == [[(source, 0)]], what="it has the partition")
            given_ns = time.time_ns()
            there.caught_up()
            assert there.stop() == 0
    *_, last = invocations(here.ledger)
    assert last.ended
    assert (last.start_ns - given_ns) / 1e9 < LEASE_S + 1.5
    assert world.counts == {"e0": 2}


def test_events_in_opposite_order_do_not_deadlock_partitions(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, redis: OwnRedis, world: Effects
) -> None:
    """A claim that is held while waiting for another would be a deadlock."""
    source = topic("proof", partitions=2)
    writer = Writer(bootstrap, tmp_path / "produced")
    forth = [New(f"{n}", b'{"id": "e%d"}' % n, b"k", 0) for n in range(60)]
    back = [New(f"{n}", b'{"id": "e%d"}' % n, b"k", 1) for n in reversed(range(60))]
    writer.write(source, [*forth, *back])
    with service(
        tmp_path / "here",
        bootstrap,
        [source],
        handlers=handler(world),
        settings=settings(redis, results),
    ) as here:
        here.serve()
        here.caught_up(30)
        assert here.stop() == 0
    assert once(world, 60)
