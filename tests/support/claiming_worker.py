"""A whole worker with claims, over Kafka and Redis in memory, turned by hand."""

from typing import Any

from kworker.clients.memory.broker import MemoryKafka
from tests.support import claims_rig
from tests.support.poll_loop_rig import Bench


class ClaimingWorker:
    """The poll loop of a worker, and its claims thread in turns."""

    def __init__(
        self,
        kafka: MemoryKafka,
        store: claims_rig.Bench,
        owner: str = "host/1",
        **options: Any,
    ) -> None:
        """`options` are those of the poll loop's bench."""
        self.store = store
        self.claims = store.worker(owner)
        self.bench = Bench(kafka, ["foo"], claims=self.claims.claimant, **options)

    def turn(self, count: int = 6) -> None:
        for _ in range(count):
            self.bench.turn()
            self.store.now = self.bench.clock.now
            self.claims.claiming.turn(0.0)

    def begun(self) -> list[int]:
        """The offsets of all runs, in the order of their begin."""
        return [record.offset for record in self.bench.pool.runs]

    def end_drain(self) -> None:
        """As a worker whose drain is out of time; then it is known to be gone."""
        loop = self.bench.poll_loop
        loop.end(self.bench.clock.now)
        loop.hand_over()
        self.claims.step()
        self.claims.end()
        self.bench.die()
