"""Two hosts work for one group; one is frozen and thawed, one is killed: the sums are equal."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import kafka
from tests.support.kafka import Writer, numbered
from tests.support.ledgers import Position, by_position, invocations
from tests.support.service import OTHER_HOST, Service, lasting, named, service, stop
from tests.support.waiting import eventually

# For a proof 50000.
RECORDS = int(os.environ.get("PROOF_FROZEN_HOSTS", "8000"))
PARTS = 4
PARTITIONS = 8
SESSION_S = 10.0

Topic = Callable[..., str]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_frozen_and_a_killed_host_lose_nothing(
    tmp_path: Path, bootstrap: str, topic: Topic, guarantee: str
) -> None:
    """The thawed one finds that its partitions are another's, and writes nothing for them."""
    source = topic("hosts", partitions=PARTITIONS)
    with pair(tmp_path, bootstrap, source, guarantee) as (here, there):
        writer = Writer(bootstrap, tmp_path / "produced")
        records = numbered(RECORDS, keys=500)

        def write() -> None:
            writer.begin(source, islice(records, RECORDS // PARTS))
            writer.hear()

        write()
        freeze(there)
        has_all(here)
        write()
        thaw(there)
        eventually(lambda: shared(here, there), timeout_s=90, what="the thawed host has a share")
        write()
        kill(here)
        has_all(there)
        write()
        writer.finish()
        there.caught_up()
        there.ends_well()
    produced = {record.position for record in writer.acked}
    results: Counter[Position] = Counter()

    def are_all_there() -> bool:
        """A transaction that the killed host left open hides some until it times out."""
        results.clear()
        results.update(read.source for read in kafka.read_all(bootstrap, here.results))
        return set(results) >= produced

    eventually(are_all_there, timeout_s=90, every_s=1.0, what="each record has its result")
    runs = by_position(invocations(here.ledger))
    repeated = sum(count > 1 for count in results.values())
    ran_twice = sum(len(each) > 1 for each in runs.values())
    print(f"{len(produced)} records, {ran_twice} ran again, {repeated} results came again")
    assert len(produced) == RECORDS // PARTS * PARTS
    assert set(results) == produced
    if guarantee == "exactly-once":
        assert repeated == 0


@contextmanager
def pair(
    folder: Path, bootstrap: str, source: str, guarantee: str
) -> Iterator[tuple[Service, Service]]:
    """Two copies of one service, as on two hosts; both have partitions."""
    options: dict[str, Any] = {
        "name": f"proof-{source}",
        "ledger": folder / "ledger",
        "handlers": lasting(0.02),
        "settings": {
            "workers": {"processes": 2, "threads": 8},
            "delivery": {"guarantee": guarantee},
            "kafka.consumer": {"session.timeout.ms": int(SESSION_S * 1000)},
        },
    }
    with (
        service(folder / "here", bootstrap, [source], **options) as here,
        service(
            folder / "there", bootstrap, [source], instance="there", prelude=OTHER_HOST, **options
        ) as there,
    ):
        for host in (here, there):
            host.start()
        for host in (here, there):
            host.is_running()
        eventually(lambda: shared(here, there), timeout_s=60, what="both hosts have partitions")
        yield here, there


def shared(here: Service, there: Service) -> bool:
    """Whether each host has some partitions, and together all, each once."""
    mine, theirs = ([at for share in host.shares() for at in share] for host in (here, there))
    return bool(mine and theirs) and len({*mine, *theirs}) == len(mine + theirs) == PARTITIONS


def has_all(host: Service) -> None:
    def all_of_them() -> bool:
        return sum(map(len, host.shares())) == PARTITIONS

    eventually(all_of_them, timeout_s=90, what="the other host has all partitions")


def freeze(host: Service) -> None:
    """Stops all of its processes, the supervisor last: it would act for stuck workers."""
    stop_at_work(host)
    supervisor = psutil.Process(host.pid)
    for process in [*reversed(supervisor.children(recursive=True)), supervisor]:
        stop(process)


def thaw(host: Service) -> None:
    for process in host.processes():
        process.resume()


def kill(host: Service) -> None:
    """As by a power cut."""
    stop_at_work(host)
    host.end()
    assert not named("kworker", host.processes())


def stop_at_work(host: Service) -> None:
    """Stops its workers while handlers run, which their ledger shows once they are stopped.

    The status shows records in flight also when all their handlers have just ended.
    """

    def handlers_running() -> int:
        workers = [psutil.Process(pid) for pid in host.worker_pids().values()]
        for worker in workers:
            stop(worker)
        running = sum(host.cut_off(worker.pid) for worker in workers)
        if not running:
            for worker in workers:
                worker.resume()
        return running

    eventually(handlers_running, timeout_s=60, every_s=0.01, what="the host is at work")
