"""A large lag and slow handlers under a memory limit: which consumer is killed, which is not.

`python -m bench.memory` starts a Kafka, writes 100,000 records of 10 KB, and runs two consumers one
after the other, each held by the kernel to the same memory: one that starts a task for each record,
and kworker. It takes some three minutes, and ends with 0 when the first is killed and kworker is
not. The tests of memory use the parts.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.confined import confined
from bench.ours import KWORKER, command
from bench.place import ROOT, servers
from bench.topic import fill

TOPIC = "backlog"
RECORDS = 100_000
RECORD_BYTES = 10_000
LIMIT_BYTES = 512 << 20
HANDLER_S = 10.0  # far slower than records arrive
WATCHED_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one consumer."""

    name: str
    exit_code: int | None  # None when it still ran at the end
    seconds: float
    peak_bytes: int | None
    limited_by: str

    @property
    def survived(self) -> bool:
        return self.exit_code is None

    def __str__(self) -> str:
        peak = f"{self.peak_bytes / 2**20:,.0f} MiB at most" if self.peak_bytes else "peak unknown"
        end = "still at work" if self.survived else f"dead, exit code {self.exit_code},"
        return f"{self.name:<16}{end} after {self.seconds:.0f} s, {peak} ({self.limited_by})"


def naive(servers: str, folder: Path, limit_bytes: int = LIMIT_BYTES) -> Outcome:
    """Runs the consumer of `bench.naive`."""
    program = [sys.executable, "-m", "bench.naive", "--servers", servers, "--topic", TOPIC]
    program += ["--group", "naive", "--seconds", str(HANDLER_S)]
    return _watched("a task a record", program, limit_bytes, {"PYTHONPATH": str(ROOT)}, folder)


def ours(servers: str, folder: Path, limit_bytes: int = LIMIT_BYTES) -> Outcome:
    """Runs kworker with one worker, supervisor included."""
    environment = {
        "KWORKER_CONFIG": str(ROOT / "bench" / "kworker.toml"),
        "KWORKER_KAFKA__BOOTSTRAP_SERVERS": servers,
        "KWORKER_NAME": TOPIC,
        "KWORKER_HANDLER": "handlers:wait",
        "KWORKER_SOURCE__TOPICS": f'["{TOPIC}"]',
        "KWORKER_STATE_DIR": str(folder / "state"),
        "BENCH_BEGUN": str(folder / "begun"),
        "BENCH_WAIT_S": str(HANDLER_S),
    }
    command({**os.environ, **environment}, "topics", "create")
    return _watched("kworker", [KWORKER, "start"], limit_bytes, environment, folder)


def _watched(
    name: str, program: list, limit_bytes: int, environment: dict[str, str], folder: Path
) -> Outcome:
    log = folder / f"{name.replace(' ', '-')}.log"
    started = time.monotonic()
    with confined(program, limit_bytes, environment, log) as running:
        while running.process.poll() is None and time.monotonic() - started < WATCHED_S:
            time.sleep(0.1)
        seconds = time.monotonic() - started
        code = running.process.poll()
        return Outcome(name, code, seconds, running.peak_bytes(), running.limited_by)


def main(arguments: list[str] | None = None) -> int:
    told = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m bench.memory", description=__doc__, formatter_class=told
    ).parse_args(arguments)
    with servers(".bench-memory") as place:
        print(f"writing {RECORDS:,} records of {RECORD_BYTES:,} bytes", flush=True)
        fill(place.kafka, TOPIC, RECORDS, RECORD_BYTES)
        print(f"each consumer may use {LIMIT_BYTES >> 20} MiB; a handler takes {HANDLER_S:.0f} s")
        outcomes = [naive(place.kafka, place.folder), ours(place.kafka, place.folder)]
    for outcome in outcomes:
        print(f"  {outcome}")
    return 0 if [outcome.survived for outcome in outcomes] == [False, True] else 1


if __name__ == "__main__":
    sys.exit(main())
