"""Metrics scraped through a run with kills equal what the topics and ledgers say, to the record.

A worker counts what it has settled within milliseconds. A kill in between takes the numbers with
it, so each worker is killed at a moment when all that is settled is counted.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import kafka, transaction_log
from tests.support.console import ConsoleClient
from tests.support.kafka import Writer, numbered
from tests.support.ledgers import invocations
from tests.support.service import Service, frozen, service
from tests.support.waiting import eventually

RECORDS = int(os.environ.get("PROOF_METRICS", "3000"))
KILLS = 4
KINDS = 10
STOPS_MOST = 40  # for a kill: in one of three or so, no commit is under way
TOLD_S = 2.0  # what the console shows is up to a second old
AGREE_S = 5.0
HANDLER = f"""
import time
from kworker import Reject
from tests.support.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.005)
    kind = int(message.value) % {KINDS}
    if kind == 0:
        raise Reject("no such customer")
    if kind == 2 or (kind == 3 and message.attempt < 3):
        raise ConnectionError("the billing service does not answer")
    return message.value
"""

Samples = dict[tuple[str, ...], float]
FreePort = Callable[[], int]


class Told(NamedTuple):
    """Numbers of one run, as the metrics or as the topics have them."""

    done: int
    retries: int
    rejected: int
    exhausted: int
    transactions: int  # committed
    rebalances: int


def test_metrics_equal_what_the_topics_hold(
    tmp_path: Path, bootstrap: str, free_port: FreePort
) -> None:
    """Exactly once, so that no output is in its topic twice."""
    with running(tmp_path, bootstrap, free_port()) as (here, console, source):
        load = Load(Writer(bootstrap, here.folder / "produced"), source)
        before: Samples = {}
        for turn in range(KILLS):
            killed_at_work(here, console, load, turn % 2)
            before = goes_on(before, scrape(console))
        here.kill_other("delay", int(here.status()["delay"]["pid"]))
        load.writer.finish()
        here.comes_to_rest()
        # What the console shows is up to a second old.
        here.until(lambda: not unfinished(scrape(console)), "the metrics tell that it rests")
        found = goes_on(before, scrape(console))
        assert found["kworker_worker_deaths_total", "SIGKILL"] == KILLS
        ran = sum(run.end_ns is not None for run in invocations(here.ledger))
        assert found["kworker_handler_run_seconds_count",] <= ran
        assert 0 < found["kworker_queue_seconds_count",] <= len(invocations(here.ledger))
        assert found["kworker_rebalance_seconds_total",] > 0
        assert found["kworker_transaction_seconds_sum", "committed"] > 0
        # The last positions are committed after the last record.
        told, held = compared(here, console, AGREE_S)
        print("told", told, "held", held)
        assert told == held


class Load:
    """Records without end, so that a worker is at work however often it is stopped before."""

    def __init__(self, writer: Writer, source: str) -> None:
        self.writer = writer
        self._source = source
        self._records = numbered(10**9, keys=300)

    def more(self) -> None:
        some = RECORDS // KILLS
        self.writer.begin(self._source, [next(self._records) for _ in range(some)])


def killed_at_work(here: Service, console: ConsoleClient, load: Load, victim: int) -> None:
    """Stops all workers, and kills one, once that is at a moment when all is counted."""
    for _ in range(STOPS_MOST):
        load.more()
        here.until(lambda: here.worker(victim)["in_hand"] > 0, "it is at work")
        with ExitStack() as stopped:
            for pid in here.worker_pids().values():
                stopped.enter_context(frozen(pid))
            told, held = compared(here, console, TOLD_S)
            # But a rebalance is counted a moment before the log tells of it.
            assert all(a <= b for a, b in zip(told[:-1], held[:-1], strict=True)), (told, held)
            if told == held and here.worker(victim)["in_hand"] > 0:
                here.kill_worker(victim)
                return
    pytest.fail(f"in none of {STOPS_MOST} moments all was counted")


def compared(here: Service, console: ConsoleClient, within_s: float) -> tuple[Told, Told]:
    """What the metrics tell and the topics hold, as soon as they agree, or at last."""
    both: list[tuple[Told, Told]] = []

    def agree() -> bool:
        held = topics(here)
        both.append((metrics(scrape(console)), held))
        return both[-1][0] == held

    with suppress(AssertionError):
        eventually(agree, timeout_s=within_s, every_s=0.5)
    return both[-1]


def metrics(found: Samples) -> Told:
    return Told(
        int(found["kworker_records_done_total",]),
        int(found["kworker_retries_total",]),
        int(found["kworker_dead_letters_total", "rejected"]),
        int(found["kworker_dead_letters_total", "exhausted"]),
        int(found["kworker_transaction_seconds_count", "committed"]),
        int(found["kworker_rebalances_total",]),
    )


def topics(here: Service) -> Told:
    letters = Counter(read.headers["kworker-reason"] for read in read_all(here, "dead"))
    retries = len(read_all(here, "retry.200ms")) + len(read_all(here, "retry.400ms"))
    return Told(
        len(read_all(here, "results")),
        retries,
        letters[b"rejected"],
        letters[b"exhausted"],
        transaction_log.committed(here.bootstrap, [f"{here.name}-here-{slot}" for slot in (0, 1)]),
        here.said().count('"event":"partitions assigned"'),
    )


def read_all(here: Service, ending: str) -> list[kafka.Read]:
    return kafka.read_all(here.bootstrap, f"{here.name}.{ending}")


def scrape(console: ConsoleClient) -> Samples:
    """By name and the values of labels, as Prometheus reads them."""
    families = text_string_to_metric_families(console.comes("/metrics").text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def unfinished(found: Samples) -> float:
    """How many records wait in any topic, or are in hand."""
    delayed = sum(n for name, n in found.items() if name[0] == "kworker_delayed_records")
    return found["kworker_unfinished_records",] + delayed


def goes_on(before: Samples, now: Samples) -> Samples:
    """No counter goes back, whoever was killed: Prometheus would take that for a restart."""
    back = {
        name: (value, now[name])
        for name, value in before.items()
        if name[0].endswith("_total") and name in now and now[name] < value
    }
    assert back == {}
    return now


@contextmanager
def running(
    folder: Path, bootstrap: str, port: int
) -> Iterator[tuple[Service, ConsoleClient, str]]:
    name = f"metrics-{folder.parent.name[-6:]}-{folder.name}-{os.getpid()}"
    source = kafka.create_topic(bootstrap, f"{name}-source", 4)
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"guarantee": "exactly-once"},
        "retry": {"delays": ["200ms", "400ms"]},
        "dead_letter": {"breaker": ""},
        "console": {"listen": f"127.0.0.1:{port}"},
    }
    options: dict[str, Any] = {"handlers": HANDLER, "settings": settings, "name": name}
    with service(folder / "service", bootstrap, [source], **options) as here:
        here.serve()
        console = ConsoleClient(port)
        console.comes("/readyz")
        yield here, console, source
