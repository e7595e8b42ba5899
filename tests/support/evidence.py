"""All that a run left behind, gathered after quiescence and held against every oracle."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.support import kafka, oracles
from tests.support.history import Commit, history
from tests.support.kafka import Read
from tests.support.ledgers import At, Fault, Invocation, Produced, invocations
from tests.support.service import Service

SHOWN = 3


@dataclass(frozen=True)
class Evidence:
    """Ledgers, commits and results of one group."""

    produced: Sequence[Produced]
    runs: Sequence[Invocation]
    commits: Sequence[Commit]
    results: Sequence[Read]
    uncommitted_results: int  # seen by a reader that does not care about transactions
    ends: dict[At, int]
    committed: dict[At, int]
    faults: Sequence[Fault]
    workers: Collection[int]  # by pid; any other that ran a handler was a cell
    exactly_once: bool = False

    @property
    def repeated(self) -> list[tuple[Invocation, Invocation]]:
        return oracles.repeated(self.runs)

    def contradictions(self) -> dict[str, str]:
        """Every oracle that does not hold, with its first witnesses; empty is as it should be."""
        ends, results = oracles.first_ends(self.runs), oracles.first_results(self.results)
        # What a transaction was aborted with is there for whoever does not care.
        hidden = 0 if self.exactly_once else self.uncommitted_results - len(self.results)
        silent = set(self.ends) - {commit.at for commit in self.commits}
        found: dict[str, Sequence[object]] = {
            "no commit to judge": sorted(silent),
            "lost": oracles.lost(self.produced, self.runs),
            "handled and never written": oracles.phantoms(self.produced, self.runs),
            "without a result": oracles.without_result(self.produced, self.results),
            "results too many": oracles.results_too_many(self.results, self.runs),
            "results more than one": oracles.twice(self.results) if self.exactly_once else [],
            "result of another record": self._foreign_results(),
            "seen uncommitted only": [hidden] if hidden else [],
            "committed before its end": oracles.unsafe(self.commits, self.produced, ends),
            "committed before its result": oracles.unsafe(self.commits, self.produced, results),
            "named before its end": oracles.unsafe_maps(self.commits, self.produced, ends),
            "named before its result": oracles.unsafe_maps(self.commits, self.produced, results),
            "committed position went back": oracles.backward(self.commits),
            "lag for ever": list(oracles.short_of_the_end(self.ends, self.committed).items()),
            "out of order": oracles.disordered(self.runs, self.faults, self.workers),
            "repeated without a cause": oracles.unexplained(
                self.repeated, self.faults, self.commits, self.workers
            ),
        }
        return {
            name: f"{len(witnesses)}, such as {witnesses[:SHOWN]}"
            for name, witnesses in found.items()
            if witnesses
        }

    def _foreign_results(self) -> list[Read]:
        """A handler that echoes: the result's value must be that of the record it names."""
        identities = {record.position: record.identity for record in self.produced}
        return [
            read
            for read in self.results
            if (read.value or b"").rstrip(b".").decode() != identities.get(read.source)
        ]


def gather(
    service: Service, produced: Sequence[Produced], results: str, *, exactly_once: bool = False
) -> Evidence:
    """Reads everything; the service has caught up, or is gone.

    The topic of results stamps the time of appending, so that commits can be held against it.
    """
    ends: dict[At, int] = {}
    for topic in service.topics:
        ends.update(kafka.ends(service.bootstrap, topic))
    workers = service.logged("worker_pid")
    assert workers, "its log names no worker: the run is invalid"
    isolation = "read_committed" if exactly_once else "read_uncommitted"
    everything = kafka.read_all(service.bootstrap, results, isolation="read_uncommitted")
    return Evidence(
        produced=produced,
        runs=invocations(service.ledger),
        commits=history(service.bootstrap, service.name, isolation=isolation),
        results=kafka.read_all(service.bootstrap, results),
        uncommitted_results=len(everything),
        ends=ends,
        committed=service.committed(),
        faults=service.faults.faults,
        workers=workers,
        exactly_once=exactly_once,
    )
