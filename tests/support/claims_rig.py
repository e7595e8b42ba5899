"""Workers with claims over one Redis in memory, their threads turned by hand, on one clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kworker.clients.memory.redis import MemoryRedis, MemoryRedisClaims
from kworker.core.claim import ClaimState
from kworker.core.event_id import IdOf, id_of
from kworker.core.outcome import Outcome, Output
from kworker.core.record import Partition, Record
from kworker.worker.idempotency.claim_client import GATHER_S, ClaimClient
from kworker.worker.idempotency.claim_table import ClaimAnswers
from kworker.worker.idempotency.claim_thread import ClaimPolicy, ClaimThread, SharedState
from kworker.worker.idempotency.prefetch import ClaimPrefetch
from kworker.worker.idempotency.redis_outbox import RedisOutbox
from tests.support.records import a_record, outcome_of

PREFIX = "t:"
LEASE_S = 30.0


class Bench:
    """One Redis, one clock, the folder of one instance, and who of its workers is gone."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.redis = MemoryRedis(lambda: self.now)
        self.gone: set[str] = set()
        self.folder = folder

    def worker(self, owner: str = "host/1", **settings: Any) -> "Worker":
        return Worker(self, owner, **settings)

    def state(self, event: str) -> ClaimState | None:
        return self.redis.state(PREFIX + event)


class Worker:
    """The poll thread's side and the claims thread's, in turns."""

    def __init__(
        self,
        bench: Bench,
        owner: str,
        *,
        handlers: int = 16,
        folder: Path | None = None,
        find_id: IdOf | None = None,
        shared: Sequence[SharedState] = (),
        **policy: Any,
    ) -> None:
        self.bench = bench
        self._owner = owner
        self._insisting: set[Record] = set()
        self.marks = RedisOutbox(folder or bench.folder, owner)
        self.claiming = ClaimThread(
            MemoryRedisClaims(bench.redis, prefix=PREFIX, owner=owner, ttl_s=3600),
            owner=owner,
            id_of=find_id or id_of("key"),
            policy=ClaimPolicy(LEASE_S, **policy),
            gone=bench.gone.__contains__,
            outbox=self.marks,
            shared=shared,
            clock=lambda: bench.now,
        )
        self.claimant = ClaimClient(
            self.claiming, ClaimPrefetch(handlers), policy.get("unavailable", "wait")
        )

    def step(self, passing_s: float = 2 * GATHER_S) -> ClaimAnswers:
        """Time passes, what is due is said, and its answers are heard."""
        self.bench.now += passing_s
        self.claiming.turn(0.0)  # what it was handed before
        before = self.claimant.turn(self.bench.now)
        self.claiming.turn(0.0)
        after = self.claimant.turn(self.bench.now)
        return ClaimAnswers(
            duplicates=before.duplicates + after.duplicates,
            busy=before.busy + after.busy,
            with_kept_outcome=before.with_kept_outcome + after.with_kept_outcome,
            rejected=before.rejected + after.rejected,
        )

    def wait(self, seconds: float) -> None:
        """Lives on, with nothing to do but its beats."""
        until = self.bench.now + seconds
        while self.bench.now < until:
            self.step(1.0)

    def ask(self, *records: Record) -> ClaimAnswers:
        """Asks, and hears the answers."""
        self.claimant.claim(records)
        return self.step()

    def insist(self, record: Record, seconds: float, *, beside: "Worker | None" = None) -> bool:
        """Asks for so long as it is busy; whether it may run. `beside` lives meanwhile."""
        until = self.bench.now + seconds
        while self.bench.now < until:
            if record not in self._insisting:
                self.claimant.claim([record])
                self._insisting.add(record)
            self._insisting.difference_update(busy(self.step(1.0)))
            if beside:
                beside.step(0.0)
            if record in self.claimant.take(1000):
                return True
        return False

    def runs(self, *records: Record) -> list[Record]:
        """Asks; which of them may run."""
        self.ask(*records)
        return list(self.claimant.take(1000))

    def end(self) -> None:
        """As a drained worker ends; then it is known to be gone."""
        self.claiming.inbox.put(None)
        self.claiming.run()
        self.bench.gone.add(self._owner)


def event(partition: Partition, offset: int, name: str) -> Record:
    """A record whose event is `name`."""
    return a_record(partition, offset, key=name.encode(), lane=name.encode())


def with_outcome(record: Record, outcome: Outcome | list[Output] | None) -> Record:
    record.outcome = outcome_of(outcome)
    return record


def busy(answers: ClaimAnswers) -> list[Record]:
    return [record for record, _ in answers.busy]
