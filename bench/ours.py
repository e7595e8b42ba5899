"""kworker as a contender: the real command with a handler, watched from outside."""

import inspect
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import handlers
from bench.place import KWORKER, Place
from bench.topic import ALL, DELAY, TOPIC, Group, count_records, wait_for_retries
from bench.watched import Broken, Measured, wait_until_done

HERE = Path(__file__).resolve().parent
STOP_S = 60.0
COMMAND = "BENCH_KWORKER"
IN_FLIGHT = 2_000  # the default
AHEAD = 4_000  # records beyond those that tasks run, whose keys are often not free


@dataclass(frozen=True)
class Service:
    """The service to run; all else is as in `kworker.toml`.

    `concurrency` handlers run at once, in threads or as tasks. With `claims`, each order is claimed
    and marked as done in Redis. `retries` records wait meanwhile in the delay topic of ten minutes.
    With `rest`, the time ends with so many of the records that the handler counts as the others.
    With `mark_each`, the handler marks the time after each so many records (see `bench.marks`).
    A service that is `paused` at times stays in its group meanwhile.
    `kworker` is the command that runs, of this checkout or of another one.
    """

    handler: str
    concurrency: int
    topic: str = TOPIC
    claims: bool = False
    exactly_once: bool = False
    retries: int = 0
    commit_interval: str = "200ms"
    processes: int = 1
    rest: int = 0
    mark_each: int = 0
    paused: bool = False
    ordering: str = "key"
    kworker: Path = KWORKER

    @property
    def in_flight(self) -> int:
        """Enough for each thread or task to have its next record at once."""
        return max(IN_FLIGHT, self.concurrency + AHEAD if self.is_async else 0)

    @property
    def is_async(self) -> bool:
        """True if the handler runs in tasks of an event loop."""
        return inspect.iscoroutinefunction(getattr(handlers, self.handler))

    def environment(self, place: Place, run: str) -> dict[str, str]:
        """The environment of every command of this run."""
        environment = {
            **os.environ,
            COMMAND: str(self.kworker),
            "KWORKER_CONFIG": str(HERE / "kworker.toml"),
            "KWORKER_KAFKA__BOOTSTRAP_SERVERS": place.kafka,
            "KWORKER_NAME": run,
            "KWORKER_HANDLER": f"handlers:{self.handler}",
            "KWORKER_SOURCE__TOPICS": f'["{self.topic}"]',
            "KWORKER_STATE_DIR": str(place.folder / f"{run}.state"),
            "KWORKER_WORKERS__THREADS": str(self.concurrency),
            "KWORKER_WORKERS__CONCURRENCY": str(self.concurrency),
            "KWORKER_WORKERS__IN_FLIGHT": str(self.in_flight),
            "KWORKER_DELIVERY__COMMIT_INTERVAL": self.commit_interval,
            "KWORKER_WORKERS__PROCESSES": str(self.processes),
            "KWORKER_WORKERS__ORDERING": self.ordering,
            "BENCH_BEGUN": str(place.folder / f"{run}.begun"),
            "BENCH_REST": str(self.rest),
            "BENCH_MARK_EACH": str(self.mark_each),
            "BENCH_MARKS": str(place.folder / f"{run}.marks"),
            "BENCH_REST_ENDED": str(place.folder / f"{run}.rest-ended"),
        }
        if self.retries:
            environment["KWORKER_RETRY__DELAYS"] = f'["{DELAY}"]'
        if self.exactly_once:
            environment["KWORKER_DELIVERY__GUARANTEE"] = "exactly-once"
        if self.paused:
            environment["KWORKER_KAFKA__SESSION_TIMEOUT_MS"] = "60000"
        if self.claims:
            environment["KWORKER_IDEMPOTENCY__REDIS"] = place.redis
            environment["KWORKER_IDEMPOTENCY__KEY"] = "json:order_id"
        return environment


class Running(NamedTuple):
    """A service that reads `records` records."""

    process: subprocess.Popen[bytes]
    group: Group
    environment: dict[str, str]
    records: int


@contextmanager
def reading(place: Place, run: str, service: Service, records: int) -> Iterator[Running]:
    """Runs `kworker start` for about so many records; a topic of its own is read from its begin."""
    group = Group(place.kafka, run, service.topic)
    try:
        records = group.begin(records if service.topic == TOPIC else ALL)
        environment = service.environment(place, run)
        command(environment, "topics", "create")
        wait_for_retries(place.kafka, run, service.retries)
        with started(environment, place.folder / f"{run}.log") as process:
            yield Running(process, group, environment, records)
    finally:
        group.close()


def measure(place: Place, run: str, service: Service, records: int) -> Measured:
    """Measures the time from the first record read to the last one committed.

    With `service.rest`, the time is that until so many others had ended.
    """
    with reading(place, run, service, records) as running:
        measured = end(place, run, service, running)
    if service.rest:
        begun, ended = ((place.folder / f"{run}.{what}") for what in ("begun", "rest-ended"))
        seconds = float(ended.read_text()) - float(begun.read_text())
        measured = Measured(service.rest, seconds, measured.peak_bytes)
    return measured


def end(place: Place, run: str, service: Service, running: Running) -> Measured:
    """Waits until all records are done, each once."""
    process, group, environment, records = running
    measured = wait_until_done(group, place.folder / f"{run}.begun", records, process)
    check(environment, place.kafka, run, service.handler, records)
    return measured


def check(environment: dict, servers: str, run: str, handler: str, records: int) -> None:
    """Compares kworker's count of done records with Kafka's: a worker that skips must not win."""
    done = json.loads(command(environment, "status", "--json"))["counters"]["done"]
    results = count_records(servers, f"{run}.results")
    if done != records or results != (records if handler in ("result", "decoded") else 0):
        raise Broken(f"{done:,} done and {results:,} results, of {records:,} records")


@contextmanager
def started_at_the_end(
    place: Place, run: str, topic: str, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `kworker start` for the records that come into the topic from now on."""
    Group.skip(place.kafka, run, topic)
    command(environment, "topics", "create")
    with started(environment, place.folder / f"{run}.log") as process:
        yield process


@contextmanager
def started(environment: dict, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `kworker start`, and drains at the end. Raises Broken if it ended otherwise."""
    with log.open("w") as output:
        service = subprocess.Popen(
            [environment.get(COMMAND, KWORKER), "start"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # One that is paused would get SIGHUP, a reload, if the shell that began all this ended.
            start_new_session=True,
        )
        try:
            yield service
        finally:
            service.terminate()
            try:
                code = service.wait(STOP_S)
            except subprocess.TimeoutExpired:
                service.kill()
                raise
    if code:
        raise Broken(f"`kworker start` ended with exit code {code}; see {log}")


def command(environment: dict, *verb: str) -> str:
    """Runs `kworker VERB` and returns its output. Raises Broken if it fails."""
    done = subprocess.run(
        [environment.get(COMMAND, KWORKER), *verb],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode and not (
        verb[0] == "status" and done.returncode == 1
    ):  # exit code 1 means red
        raise Broken(f"`kworker {' '.join(verb)}` ended with exit code {done.returncode}")
    return done.stdout
