"""Claims by real threads, on the real clock: deaths and outages as they are."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kworker.core.claim import ClaimDone, Exchange
from kworker.core.event_id import id_of
from kworker.core.outcome import Output, Results
from kworker.core.record import Record
from kworker.instance.process_identity import LocalProcesses, own_identity
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.claim_thread import ClaimPolicy, ClaimThread
from kworker.worker.idempotency.prefetch import ClaimPrefetch
from kworker.worker.idempotency.redis_outbox import RedisOutbox
from tests.support.records import a_partition, a_record, with_outputs
from tests.support.redis_and_twin import OwnServer, RealStore, Store
from tests.support.waiting import eventually

LEASE_S = 0.6
DRAIN_S = 10.0
END_S = 20.0

_CLAIMS_AND_WAITS = """
import sys
from kworker.clients.redis import RedisClaims
from kworker.core.claim import Exchange
from kworker.instance.process_identity import own_identity
url, prefix = sys.argv[1:]
claims = RedisClaims(url, prefix=prefix, owner=own_identity("host"), ttl_s=60)
claims.exchange(Exchange(ids=["e"], sources=["orders/0/1"]))
print("claimed", flush=True)
input()
"""


class Member:
    """A worker's claims, with a loop instead of a poll thread."""

    def __init__(self, store: Store, folder: Path, owner: str, lease_s: float) -> None:
        claiming = ClaimThread(
            store.claims(owner),
            owner=owner,
            id_of=id_of("key"),
            policy=ClaimPolicy(lease_s),
            gone=LocalProcesses("host").has_ended,
            outbox=RedisOutbox(folder, owner),
        )
        self.claimant = ClaimClient(claiming, ClaimPrefetch(16))
        self.claimant.start()
        self.duplicates: list[Record] = []
        self.ended: list[Record] = []
        self.busy = 0

    def turn(self) -> None:
        answers = self.claimant.turn(time.monotonic())
        self.duplicates += answers.duplicates
        self.ended += answers.with_kept_outcome
        self.busy += len(answers.busy)
        self.claimant.claim([record for record, _ in answers.busy])

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
        """Turns, until it is so."""

        def so() -> bool:
            self.turn()
            return bool(condition())

        eventually(so, what=what, every_s=0.005, timeout_s=timeout_s)

    def runs(self, record: Record) -> None:
        """Asks for it until it may run."""
        self.claimant.claim([record])
        self.until(lambda: record in self.claimant.take(9), f"{record.offset} may run")


@pytest.fixture
def member(store: Store, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    """Makes members, each of which ends with the test."""
    with ExitStack() as stack:

        def make(owner: str, lease_s: float = LEASE_S) -> Member:
            made = Member(store, tmp_path / "marks", owner, lease_s)
            stack.callback(made.claimant.drain, time.monotonic() + END_S)
            return made

        yield make


def event(offset: int, name: bytes = b"e") -> Record:
    return a_record(a_partition("orders"), offset, key=name)


def test_a_killed_owners_claim_is_taken_over_at_once(own_redis: OwnServer, tmp_path: Path) -> None:
    """Long before its lease, since the next owner of the host looks whether it lives."""
    store = RealStore(own_redis)
    command = [sys.executable, "-c", _CLAIMS_AND_WAITS, own_redis.url, store.prefix]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "claimed\n"
    next_owner = Member(store, tmp_path, own_identity("host"), lease_s=3600.0)
    again = event(1)
    next_owner.claimant.claim([again])
    next_owner.until(lambda: next_owner.busy, "it is in living hands")
    child.kill()
    next_owner.until(lambda: again in next_owner.claimant.take(9), "it is taken over")
    child.communicate()
    assert next_owner.claimant.drain(time.monotonic() + DRAIN_S)
    store.end()


def test_an_owner_that_is_silent_for_a_lease_is_taken_over_from(
    store: Store, member: Callable[..., Member]
) -> None:
    """Its host is gone: nobody can look."""
    store.claims("far/1").exchange(Exchange(ids=["e"], sources=["orders/0/1"]))
    began = time.monotonic()
    member("host/2").runs(event(1))
    assert time.monotonic() - began >= LEASE_S


def test_an_outage_over_leases_frees_no_claim_of_the_living(
    store: Store, member: Callable[..., Member]
) -> None:
    """What waited for it goes on waiting, until it is done."""
    a, b = member("far/1"), member("host/2")
    first, again = event(1), event(1)
    a.runs(first)
    b.claimant.claim([again])
    b.until(lambda: b.busy, "it is in living hands")
    with store.trouble("away"):
        b.until(lambda: b.claimant.problem, "it is seen that Redis is away")
        until = time.monotonic() + 3 * LEASE_S
        b.until(lambda: time.monotonic() > until, "leases have passed")
    b.until(lambda: not b.claimant.problem, "Redis answers again")
    heard, until = b.busy, time.monotonic() + 2 * LEASE_S
    b.until(lambda: time.monotonic() > until and b.busy > heard, "it was asked for again")
    assert b.claimant.ready == 0
    a.claimant.settled([first])
    a.until(lambda: not a.claimant.pending, "the mark is on its way")
    b.until(lambda: b.duplicates, "it is done")
    assert b.duplicates == [again]


def test_the_next_worker_sends_the_outbox_of_an_outage(
    store: Store, member: Callable[..., Member], tmp_path: Path
) -> None:
    """It lies in the folder meanwhile, and is sent before anything is asked for."""
    a = member("host/1")
    first = event(1)
    a.runs(first)
    with store.trouble("away"):
        a.claimant.settled([first])
        assert a.claimant.drain(time.monotonic() + DRAIN_S)
        assert len(list((tmp_path / "marks").iterdir())) == 1
    b = member("host/2")
    again = [event(1), event(5)]
    b.claimant.claim(again)
    b.until(lambda: {*b.duplicates} == {*again}, "it is done")
    assert list((tmp_path / "marks").iterdir()) == []


def test_an_outcome_is_handed_on(store: Store, member: Callable[..., Member]) -> None:
    """From a handler that outlived its partition to the next owner, who settles it."""
    a, b = member("host/1"), member("host/2")
    old, new = event(1), event(1)
    a.runs(old)
    b.claimant.claim([new])
    b.until(lambda: b.busy, "it is in living hands")
    with_outputs(old, [Output("results", b"k", b"\xff\x00", [("h", None)])])
    a.claimant.hand_over([old])
    a.until(lambda: not a.claimant.pending, "the outcome is on its way")
    b.until(lambda: b.ended, "it is handed on")
    assert isinstance(new.outcome, Results)
    assert [(o.topic, o.key, o.value, o.headers) for o in new.outcome] == [
        ("results", b"k", b"\xff\x00", [("h", None)])
    ]
    assert b.claimant.ready == 0
    b.claimant.settled([new])
    b.until(lambda: not b.claimant.pending, "the mark is on its way")
    ask = Exchange(ids=["e"], sources=["orders/0/9"])
    asker = store.claims("c")
    eventually(lambda: asker.exchange(ask).refused == {0: ClaimDone()}, what="done")


def test_events_in_opposite_order_do_not_deadlock_two_workers(
    member: Callable[..., Member],
) -> None:
    """Each event runs once, and nobody waits for ever."""
    names = [b"e%d" % i for i in range(50)]
    a, b = member("host/1"), member("host/2")
    ran: list[object] = []
    lanes = {a: [event(i, n) for i, n in enumerate(names)]}
    lanes[b] = [event(100 + i, n) for i, n in enumerate(reversed(names))]
    asked: set[Record] = set()

    def advance(worker: Member) -> None:
        lane = lanes[worker]
        if lane and lane[0] not in asked:
            asked.add(lane[0])
            worker.claimant.claim(lane[:1])
        worker.turn()
        run = worker.claimant.take(9)
        ran.extend(record.claim for record in run)
        worker.claimant.settled(run)
        if lane and (lane[0] in run or lane[0] in worker.duplicates):
            lane.pop(0)

    def both_ended() -> bool:
        advance(a)
        advance(b)
        return lanes == {a: [], b: []}

    eventually(both_ended, what="both have ended", every_s=0.002)
    assert sorted(map(str, ran)) == sorted(name.decode() for name in names)
