"""When the fault is not the records': the breaker, and what handlers say is unavailable."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kafka import New, Read, Writer, numbered, read_all
from tests.support.ledgers import Invocation, Position, Produced, invocations
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

WORKERS, THREADS = 2, 4
WINDOW = 20
TRY_EVERY_S = 5.0
UNAVAILABLE_S = float(os.environ.get("PROOF_UNAVAILABLE_S", "11"))
PROBES = int(UNAVAILABLE_S // TRY_EVERY_S)  # of each worker
EARLY_S = 1.0  # what was in hand when it went down has ended by then
CLOCKS_S = 0.2  # between the decision and the handler's own beginning, and back


class Run(NamedTuple):
    """What one service left behind."""

    produced: Sequence[Produced]
    runs: Sequence[Invocation]
    results: Sequence[Read]
    letters: Sequence[Read]

    @property
    def missing(self) -> set[Position]:
        """Neither a result nor a dead letter."""
        ends = {read.source for read in (*self.results, *self.letters)}
        return {record.position for record in self.produced} - ends


@pytest.fixture(scope="module", autouse=True)
def running(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic
) -> Iterator[dict[str, "Future[Run]"]]:
    """The three services at once: most of their time they wait."""
    with ThreadPoolExecutor() as pool:
        yield {
            scene.__name__: pool.submit(
                scene, tmp_path_factory.mktemp(scene.__name__), bootstrap, topic
            )
            for scene in (broken, unavailable, one_customer)
        }


def seen(left: Service, writer: Writer) -> Run:
    return Run(
        writer.acked,
        invocations(left.ledger),
        read_all(left.bootstrap, left.results),
        read_all(left.bootstrap, f"{left.name}.dead"),
    )


def reasons(of: Service, what: str) -> int:
    return sum(what in reason for reason in of.status().get("reasons", []))


# -- everything fails ------------------------------------------------------------------------

FAILING = """
from pathlib import Path
from tests.support.recorded import recorded

FIXED = Path(__file__).with_name("fixed")

@recorded
def handle(message):
    if not FIXED.exists():
        raise ConnectionError("a password has expired")
    return message.value
"""
FAILED, FOLLOWING = 300, 100  # records before the fix, and after


def broken(folder: Path, bootstrap: str, topic: Topic) -> Run:
    """Fails until the file is there; meanwhile held records are tried in vain."""
    source = topic("proof", partitions=8)
    settings = {
        "workers": {"processes": WORKERS, "threads": THREADS},
        "retry": {"delays": []},
        "dead_letter": {"breaker": f"50% of {WINDOW}"},
    }
    writer = Writer(bootstrap, folder / "produced")
    writer.write(source, numbered(FAILED, keys=FAILED))
    with service(
        folder / "service", bootstrap, [source], handlers=FAILING, settings=settings
    ) as failing:
        failing.start()
        eventually(lambda: reasons(failing, "breaker is open") == WORKERS, what="both open")
        eventually(lambda: failing.counter("failed") > FAILED, what="held ones are tried")
        (failing.folder / "fixed").touch()
        writer.write(source, numbered(FOLLOWING, keys=FOLLOWING, first=FAILED))
        failing.caught_up()
        eventually(lambda: failing.state() == "running", what="nothing is wrong any more")
        assert failing.stop() == 0
    return seen(failing, writer)


def test_a_total_failure_kills_only_the_dead_letter_limit(
    running: dict[str, "Future[Run]"],
) -> None:
    """Without the breaker an expired password would send a whole topic to the dead letters."""
    run = running["broken"].result()
    assert WINDOW < len(run.letters) <= WINDOW * WORKERS
    assert run.missing == set()
    assert len(run.results) == FAILED + FOLLOWING - len(run.letters)
    assert {read.source for read in run.results}.isdisjoint(read.source for read in run.letters)


# -- a service is unavailable -------------------------------------------------------------------

UNAVAILABLE = """
import time
from pathlib import Path
from kworker import Unavailable
from tests.support.recorded import recorded

DOWN = Path(__file__).with_name("down")

@recorded
def handle(message):
    time.sleep(0.005)
    if DOWN.exists():
        raise Unavailable("billing")
    return message.value
"""
BEFORE, MEANWHILE = 200, 400  # records while it is well, and while it is down
IN_HAND = 2 * THREADS  # for each thread its record and the next


def unavailable(folder: Path, bootstrap: str, topic: Topic) -> Run:
    """It works, is down for a while, and is back."""
    billing = topic("billing", partitions=4)
    settings = {
        "workers": {"processes": WORKERS, "threads": THREADS},
        "retry": {"delays": ["1s"]},
    }
    writer = Writer(bootstrap, folder / "produced")
    writer.write(billing, numbered(BEFORE, keys=BEFORE))
    with service(
        folder / "service", bootstrap, [billing], handlers=UNAVAILABLE, settings=settings
    ) as served:
        served.serve()
        served.caught_up()
        (served.folder / "down").touch()
        writer.write(billing, numbered(MEANWHILE, keys=MEANWHILE, first=BEFORE))
        eventually(lambda: reasons(served, "billing is unavailable") > 0, what="red")
        eventually(
            lambda: len(probes(invocations(served.ledger))) >= WORKERS * PROBES,
            timeout_s=30 + UNAVAILABLE_S,
            what="the probes",
        )
        (served.folder / "down").unlink()
        served.caught_up()
        eventually(lambda: served.state() == "running", what="nothing is wrong any more")
        assert served.stop() == 0
    return seen(served, writer)


def probes(runs: Sequence[Invocation]) -> list[Invocation]:
    """Calls in vain that began when what was in hand at onset was over, worker by worker."""
    found = []
    for in_vain in by_worker(runs).values():
        onset_ns = min(run.end_ns or run.start_ns for run in in_vain)
        found += [run for run in in_vain if run.start_ns > onset_ns + EARLY_S * 1e9]
    return found


def by_worker(runs: Sequence[Invocation]) -> dict[int, list[Invocation]]:
    """Calls in vain by process."""
    found: dict[int, list[Invocation]] = {}
    for run in runs:
        if run.raised:
            found.setdefault(run.pid, []).append(run)
    return found


def test_each_worker_probes_an_outage_each_five_seconds(
    running: dict[str, "Future[Run]"],
) -> None:
    """No attempt is spent, and all are done when it is back."""
    run = running["unavailable"].result()
    assert {each.attempt for each in run.runs} == {1}
    assert (run.missing, run.letters) == (set(), [])
    workers = by_worker(run.runs)
    assert len(workers) == WORKERS
    for in_vain in workers.values():
        late = probes(in_vain)
        assert len(in_vain) - len(late) <= IN_HAND
        calls = [in_vain[0], *late]
        pauses = [(after.start_ns - before.start_ns) / 1e9 for before, after in pairwise(calls)]
        print(f"{len(in_vain) - len(late)} calls at onset, then after", pauses)
        assert len(late) >= PROBES
        assert min(pauses) >= TRY_EVERY_S - CLOCKS_S
        assert len({each.position for each in calls}) == len(calls), "each another record"


# -- one customer is unavailable -----------------------------------------------------------------

CUSTOMERS = """
from kworker import Unavailable, batch
from tests.support.recorded import recorded_batch

@batch(size=50, wait="100ms")
@recorded_batch
def handle(messages):
    if any(message.value.startswith(b"customer-7 ") for message in messages):
        raise Unavailable("customer-7")
    return [message.value for message in messages]
"""
ORDERS, OF_EACH = 1_000, 40  # of all customers, one of which is never served


def one_customer(folder: Path, bootstrap: str, topic: Topic) -> Run:
    """Its records are in every batch, and are there for as long as the service runs."""
    orders = topic("orders", partitions=4)
    settings = {"workers": {"processes": 1, "threads": THREADS}, "retry": {"delays": ["1s"]}}
    writer = Writer(bootstrap, folder / "produced")
    writer.write(orders, of_customers())
    with service(
        folder / "service", bootstrap, [orders], handlers=CUSTOMERS, settings=settings
    ) as served:
        served.start()
        eventually(
            lambda: served.counter("done") == ORDERS - OF_EACH, timeout_s=60, what="the others"
        )
        assert served.stop() == 0
    return seen(served, writer)


def of_customers() -> Iterator[New]:
    for n in range(ORDERS):
        name = f"customer-{n % (ORDERS // OF_EACH)} order {n}"
        yield New(name, name.encode(), b"order-%d" % n)


def test_a_single_unavailable_customer_stops_no_other(
    running: dict[str, "Future[Run]"],
) -> None:
    """Not even those whose records are in one batch with theirs.

    At first nobody can know that it is one customer's matter: then all wait for a probe, and
    perhaps for a second one. If all were stopped each time, they would wait with every batch.
    """
    run = running["one_customer"].result()
    theirs = {each.position for each in run.produced if each.identity.startswith("customer-7 ")}
    assert len(theirs) == OF_EACH
    assert (run.missing, run.letters) == (theirs, [])
    assert {each.attempt for each in run.runs} == {1}
    others = [each for each in run.runs if each.position not in theirs]
    pauses_s = [(after.start_ns - before.start_ns) / 1e9 for before, after in pairwise(others)]
    print("the others paused for up to", max(pauses_s))
    assert sum(pause_s >= TRY_EVERY_S - CLOCKS_S for pause_s in pauses_s) <= 2
