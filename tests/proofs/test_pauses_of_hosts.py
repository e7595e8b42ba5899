"""A pause on several hosts, by way of Redis, which goes away meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kworker.errors import ExitCode
from tests.support import oracles
from tests.support.feeding import Feeding
from tests.support.kafka import Writer
from tests.support.ledgers import invocations
from tests.support.redis import OwnRedis, own_redis
from tests.support.service import Service, lasting, service

Topic = Callable[..., str]

SLOWISH = lasting(0.004)
WAITING = 300  # records that were written while nothing was taken


@pytest.fixture
def redis(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[OwnRedis]:
    with own_redis(tmp_path / "redis", free_port()) as server:
        yield server


def test_a_pause_of_one_host_holds_on_all_also_without_redis(
    tmp_path: Path, bootstrap: str, topic: Topic, redis: OwnRedis
) -> None:
    """A host that starts during the pause takes nothing; nor does a worker that starts anew."""
    source = topic("proof", partitions=8)
    options: dict[str, Any] = {
        "handlers": SLOWISH,
        "settings": {
            "workers": {"processes": 1, "threads": 8},
            "kafka.consumer": {"heartbeat.interval.ms": 500},
            "idempotency": {"redis": redis.url, "key": "header:none", "lease": "3s"},
        },
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    load = Feeding(writer, source, portion=20)
    with service(tmp_path / "here", bootstrap, [source], **options) as here:
        options |= {"name": here.name, "instance": "there", "ledger": here.ledger}

        def nothing_is_taken(what: str) -> None:
            runs, waiting = len(invocations(here.ledger)), _waiting(here) + WAITING
            load.until(lambda: _waiting(here) >= waiting, f"records wait {what}")
            assert len(invocations(here.ledger)) == runs, what

        here.serve()
        load.until(lambda: here.counter("done") > 500, "it works")
        paused = here.command("pause")
        assert paused.returncode == 0, paused.stderr
        assert f"all instances of {here.name} follow within seconds" in paused.stdout
        load.until(lambda: here.state() == "paused" and _in_hand(here) == 0, "it is paused")
        with service(tmp_path / "there", bootstrap, [source], **options) as there:
            there.start()
            load.until(lambda: there.state() == "paused", "the other has learned of it")
            load.until(lambda: _partitions(here) + _partitions(there) == [4, 4], "they share")
            nothing_is_taken("on both hosts")
            redis.stop()
            load.until(lambda: there.state() == "red", "Redis is missed")
            there.kill_worker(0)
            load.until(lambda: _has_a_new_worker(there), "it has a new worker")
            nothing_is_taken("without Redis")
            resumed = here.command("resume")
            assert resumed.returncode == ExitCode.UNREACHABLE
            assert "done on this host only" in resumed.stderr
            redis.start()
            load.until(lambda: there.state() == here.state() == "running", "both have resumed")
            writer.finish()
            here.caught_up()
            there.ends_well()
        here.ends_well()
    runs = invocations(here.ledger)
    assert (oracles.lost(writer.acked, runs), oracles.repeated(runs)) == ([], [])


def test_the_newest_order_counts_on_all_hosts(
    tmp_path: Path, bootstrap: str, topic: Topic, redis: OwnRedis
) -> None:
    """Each operator types on the host at which they are."""
    one, other = topic("one", partitions=2), topic("other", partitions=2)
    options: dict[str, Any] = {
        "settings": {
            "workers": {"processes": 1},
            "kafka.consumer": {"heartbeat.interval.ms": 500},
            "idempotency": {"redis": redis.url, "key": "header:none", "lease": "3s"},
        },
    }
    with service(tmp_path / "here", bootstrap, [one, other], **options) as here:
        options |= {"name": here.name, "instance": "there"}
        with service(tmp_path / "there", bootstrap, [one, other], **options) as there:
            for host in (here, there):
                host.start()
            for host in (here, there):
                host.is_running()
            for at, words, topics in (
                (here, ["pause", "--topic", one], [one]),
                (there, ["pause", "--topic", other, "--for", "1h"], [one, other]),
                (there, ["resume", "--topic", one], [other]),
                (here, ["pause"], ["*", other]),
                (there, ["resume"], []),
            ):
                typed = at.command(*words)
                assert typed.returncode == 0, typed.stderr
                both = {"here": sorted(topics), "there": sorted(topics)}
                there.until(lambda both=both: _paused(here, there) == both, f"{words}")
            for host in (here, there):
                host.ends_well()


def _paused(here: Service, there: Service) -> dict[str, list[str]]:
    rows = {"here": here.status().get("paused", []), "there": there.status().get("paused", [])}
    return {host: sorted(row["topic"] for row in found) for host, found in rows.items()}


def _waiting(of: Service) -> int:
    """How many records of the group wait in Kafka; 0 while that is not known."""
    return int(of.status().get("lag", {}).get("records") or 0)


def _has_a_new_worker(of: Service) -> bool:
    row = of.workers().get(0, {})
    return row.get("phase") == "running" and row["pid"] not in of.killed


def _in_hand(of: Service) -> int:
    return sum(int(row["in_hand"]) for row in of.workers().values())


def _partitions(running: Service) -> list[int]:
    return [len(share) for share in running.shares()]
