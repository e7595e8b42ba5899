"""Frameworks as contenders: each a program in `bench/rivals`, watched from outside like kworker.

A program gets all it needs in environment variables, tells its version in its first line, writes
when its handler was first called, and runs until SIGTERM.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import environments
from bench.place import Place
from bench.topic import TOPIC, Group, count_records, create
from bench.watched import Broken, Measured, wait_until_done

STOP_S = 20.0
COMMANDS: Mapping[str, Callable[[], list[str]]] = {
    "quix": partial(environments.python, "quix"),
    "arroyo": partial(environments.python, "arroyo_rival"),
    "aiokafka": partial(environments.python, "aiokafka_rival"),
    "faststream": partial(environments.python, "faststream_rival"),
    "celery": partial(environments.python, "celery_rival"),
    "parallel-consumer": partial(environments.java, "parallel_consumer"),
}


@dataclass(frozen=True)
class Program:
    """What a rival does in a run. `variables` are its own settings, such as BENCH_ORDERING.

    A producer that gathers batches waits for `linger_ms`, by default for the highest rate. With
    `rest`, the time ends with so many of the records that the handler counts as the others.
    """

    rival: str
    handler: str
    concurrency: int
    exactly_once: bool = False
    topic: str = TOPIC
    rest: int = 0
    linger_ms: int = 20
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, place: Place, run: str) -> dict[str, str]:
        return {
            **os.environ,
            "BENCH_SERVERS": place.kafka,
            "BENCH_REDIS": place.redis,
            "BENCH_GROUP": run,
            "BENCH_TOPIC": self.topic,
            "BENCH_RESULTS": f"{run}.results",
            "BENCH_HANDLER": self.handler,
            "BENCH_WAIT_S": "0.010",
            "BENCH_CONCURRENCY": str(self.concurrency),
            "BENCH_GUARANTEE": "exactly-once" if self.exactly_once else "at-least-once",
            "BENCH_BEGUN": str(place.folder / f"{run}.begun"),
            "BENCH_LINGER_MS": str(self.linger_ms),
            "BENCH_REST": str(self.rest),
            "BENCH_REST_ENDED": str(place.folder / f"{run}.rest-ended"),
            **self.variables,
        }


def prepare(rival: str) -> None:
    """Makes the environment of a rival, so that no measurement has a part in that.

    Raises Unavailable if it cannot run here.
    """
    COMMANDS[rival]()


def measure(place: Place, run: str, program: Program, records: int) -> Measured:
    """Measures the time from the first record read to the last one committed.

    With `program.rest`, the time is that until so many others had ended. The program reads the last
    records of the topic. Raises Broken if results are missing, or others, and Unavailable if the
    rival cannot run here.
    """
    command = COMMANDS[program.rival]()
    group = Group(place.kafka, run, program.topic)
    records = group.begin(records)
    produces = program.handler == "decoded"
    if produces:
        create(place.kafka, f"{run}.results")
    try:
        log, environment = place.folder / f"{run}.log", program.environment(place, run)
        with started(command, environment, log) as process:
            measured = wait_until_done(group, place.folder / f"{run}.begun", records, process)
    finally:
        group.close()
    if produces and (results := count_records(place.kafka, f"{run}.results")) < records:
        raise Broken(f"{program.rival}: {results:,} results of {records:,} records")
    return _of_the_rest(place, run, program, measured) if program.rest else measured


def _of_the_rest(place: Place, run: str, program: Program, measured: Measured) -> Measured:
    begun, ended = ((place.folder / f"{run}.{what}") for what in ("begun", "rest-ended"))
    if not ended.exists():
        raise Broken(f"{program.rival}: fewer than {program.rest:,} others ended")
    seconds = float(ended.read_text()) - float(begun.read_text())
    return measured._replace(records=program.rest, seconds=seconds)


def version(place: Place, run: str) -> str:
    """Returns what the program of a run said in its first line: its name and version."""
    return (place.folder / f"{run}.log").read_text().partition("\n")[0]


@contextmanager
def started(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a rival, and stops it at the end of the block."""
    with log.open("w") as output, log.with_suffix(".errors").open("w") as errors:
        rival = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        try:
            yield rival
        finally:
            rival.terminate()
            try:
                rival.wait(STOP_S)
            except subprocess.TimeoutExpired:
                rival.kill()  # its users would, too
                rival.wait()
