"""`make backpressure`: three consumers of the same 10,000 messages, under the same memory limit.

It starts a Kafka and a billing service that takes 200 ms a call, lets one producer write 10,000
messages of 40 KB, and runs three consumers one after the other, each held by the kernel to the same
memory: one that does nothing and prints its rate; one that calls the service for each message,
without a limit on what it has begun; and kworker with the same call. It takes about a minute, and
draws the memory of each over time, and the number of messages in it. The exit code is 0 if the
second ran out of memory, the others did all, and the memory of kworker stayed flat, or it ended too
soon to tell. The programs are in `examples/backpressure`.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from bench.confined import confined
from bench.ours import command
from bench.place import KWORKER, ROOT, Place, servers
from kworker.errors import KworkerError
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient

PROGRAMS = ROOT / "examples" / "backpressure"
BILLING = ROOT / "examples" / "orders" / "billing.py"
TOPIC = "photos"
MESSAGES = 10_000
LIMIT_MIB = 256
LATENCY_MS = 200
PARTITIONS = 8
LOOK_S = 0.1
TELL_S = 2.0  # of kworker, which prints nothing by itself
PATIENCE_S = 300.0
TIMED_OUT = 124  # as `timeout` has it
GROWTH_MAX = 0.25  # what the client fetches ahead comes and goes; all messages are 400 MB
SAMPLES_LEAST = 20  # fewer show how memory fills, and not whether it stays so


@dataclass(frozen=True)
class Sample:
    """A moment of an act: seconds since it began, bytes of memory, messages begun and not done."""

    at_s: float
    bytes: int
    in_memory: int


@dataclass
class Act:
    """A consumer's run; `exit_code` is 0 if it did all, and negative if a signal ended it."""

    name: str
    exit_code: int = 0
    seconds: float = 0.0
    done: int = 0
    limited_by: str = ""
    samples: list[Sample] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        return max((sample.bytes for sample in self.samples), default=0)

    def __str__(self) -> str:
        end = "all done" if not self.exit_code else f"ended by {_cause(self.exit_code)}"
        return (
            f"{self.name:<22}{end} after {self.seconds:.1f} s: {self.done:,} messages done,"
            f" {self.peak_bytes / 2**20:,.0f} MiB at most,"
            f" {max((s.in_memory for s in self.samples), default=0):,} in memory at most"
        )


class Stage:
    """The servers, the limit and the programs of the acts."""

    def __init__(self, place: Place, billing: str, messages: int, limit_bytes: int) -> None:
        self._place = place
        self._messages = messages
        self._limit_bytes = limit_bytes
        self._environment = {
            "BILLING_URL": billing,
            "KWORKER_CONFIG": str(PROGRAMS / "kworker.toml"),
            "KWORKER_KAFKA__BOOTSTRAP_SERVERS": place.kafka,
            "KWORKER_STATE_DIR": str(place.folder / "state"),
            "KWORKER_CONSOLE__LISTEN": "",
        }

    def produce(self) -> None:
        """Creates the topics, and writes the messages."""
        topics = ("topics", "create", "--partitions", str(PARTITIONS), "--replication", "1")
        command({**os.environ, **self._environment}, *topics)
        subprocess.run(self._program("produce"), check=True)

    def instant(self) -> Act:
        return self._watch(Act("does nothing"), self._program("instant"), _seen)

    def unbounded(self) -> Act:
        return self._watch(Act("calls without a limit"), self._program("unbounded"), _begun)

    def kworker(self) -> Act:
        """Runs the service until all is done, then stops it as an operator does."""
        client = ControlClient(TOPIC, StateFolder(self._place.folder / "state"))
        told_at = 0.0

        def look(_said: str) -> tuple[int, int]:
            nonlocal told_at
            with suppress(KworkerError):
                status = client.request("status")
                done = int(status["counters"]["done"])
                held = sum(int(row["in_hand"]) for row in status["workers"])
                if time.monotonic() - told_at > TELL_S:
                    told_at = time.monotonic()
                    print(f"    {done:6,} done, {held:6,} in memory", flush=True)
                return done, held
            return 0, 0

        return self._watch(Act("kworker"), [KWORKER, "start"], look, serves=True)

    def _program(self, name: str) -> list[str | Path]:
        options = ("--servers", self._place.kafka, "--topic", TOPIC)
        return [
            sys.executable,
            PROGRAMS / f"{name}.py",
            *options,
            "--messages",
            str(self._messages),
        ]

    def _watch(
        self,
        act: Act,
        program: Sequence[str | Path],
        look: Callable[[str], tuple[int, int]],
        *,
        serves: bool = False,
    ) -> Act:
        """Runs a program to its end; one that `serves` is stopped when all messages are done.

        `look` returns the numbers of messages that are done and in memory, given its last line.
        """
        print(f"\n  {act.name}", flush=True)
        log = self._place.folder / f"{act.name.replace(' ', '-')}.log"
        began, shown = time.monotonic(), 0
        with confined(program, self._limit_bytes, self._environment, log) as running:
            act.limited_by = running.limited_by
            process = psutil.Process(running.process.pid)
            while running.process.poll() is None and time.monotonic() - began < PATIENCE_S:
                lines = log.read_text().splitlines()
                if not serves:
                    _show(lines[shown:])
                    shown = len(lines)
                act.done, in_memory = look(lines[-1] if lines else "")
                act.seconds = time.monotonic() - began
                if held := _bytes(process):  # else it has ended meanwhile
                    act.samples.append(Sample(act.seconds, held, in_memory))
                if serves and act.done >= self._messages:
                    running.process.terminate()
                    running.process.wait(PATIENCE_S)
                time.sleep(LOOK_S)
            lines = log.read_text().splitlines()
            if not serves:
                _show(lines[shown:])
                act.done = max(act.done, look(lines[-1] if lines else "")[0])
            code = running.process.poll()
            act.exit_code = TIMED_OUT if code is None else code
        return act


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"    {line}", flush=True)


def _seen(said: str) -> tuple[int, int]:
    """Of the first act, which has no message in memory but what the client fetched."""
    found = re.search(r"([\d,]+) seen", said)
    return (int(found[1].replace(",", "")) if found else 0), 0


def _begun(said: str) -> tuple[int, int]:
    found = re.search(r"([\d,]+) done, +([\d,]+) in memory", said)
    done, held = (int(n.replace(",", "")) for n in found.groups()) if found else (0, 0)
    return done, held


def _bytes(process: psutil.Process) -> int:
    """The memory of a process and its children; what they share counts once."""
    total = 0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_full_info().pss
    return total


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextmanager
def billing() -> Iterator[str]:
    """The billing service of the orders example, slow; its address."""
    latency = ("--latency-ms", str(LATENCY_MS), str(LATENCY_MS))
    program = subprocess.Popen(
        [sys.executable, BILLING, "--port", "0", *latency], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout
        yield program.stdout.readline().strip()
    finally:
        program.terminate()
        program.wait()


def growth(samples: Sequence[Sample]) -> float | None:
    """The growth of peak memory from the first quarter to the second half, as a share of the first.

    Time begins with the first message in memory. None if there are too few samples to tell.
    """
    first = next((i for i, sample in enumerate(samples) if sample.in_memory), len(samples))
    working = samples[first:]
    if len(working) < SAMPLES_LEAST:
        return None
    began, lasted = working[0].at_s, working[-1].at_s - working[0].at_s
    filled = max(each.bytes for each in working if each.at_s <= began + lasted / 4)
    return max(each.bytes for each in working if each.at_s >= began + lasted / 2) / filled - 1


def told_growth(share: float | None) -> str:
    """The line about `growth`."""
    if share is None:
        return "kworker has ended too soon to tell if its memory is flat"
    return f"memory of kworker after the first quarter: {share:+.0%}, at most {GROWTH_MAX:+.0%}"


def verdict(acts: Mapping[str, Act], messages: int) -> bool:
    """Returns True if the second act ran out of memory, the others did all, and kworker was flat.

    A cgroup kills for that; under `ulimit -v` the program gets an error. A run of kworker that was
    too short to tell passes for flat.
    """
    unbounded = acts["unbounded"]
    by_cgroup = unbounded.limited_by.startswith("cgroup")
    killed = unbounded.exit_code in ((-signal.SIGKILL,) if by_cgroup else (-signal.SIGABRT, 1))
    whole = all(acts[n].exit_code == 0 and acts[n].done == messages for n in ("instant", "kworker"))
    grown = growth(acts["kworker"].samples)
    return killed and whole and (grown is None or grown <= GROWTH_MAX)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.backpressure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, help="default: %(default)s")
    parser.add_argument("--limit", type=int, default=LIMIT_MIB, help="MiB, default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="default: .backpressure/plot.svg")
    options = parser.parse_args(arguments)
    with servers(".backpressure") as place, billing() as address:
        stage = Stage(place, address, options.messages, options.limit << 20)
        stage.produce()
        print(f"each consumer may use {options.limit} MiB; a call takes {LATENCY_MS} ms")
        acts = {
            "instant": stage.instant(),
            "unbounded": stage.unbounded(),
            "kworker": stage.kworker(),
        }
        report = {
            "messages": options.messages,
            "limit_bytes": options.limit << 20,
            "acts": [asdict(act) for act in acts.values()],
            "growth": (grown := growth(acts["kworker"].samples)),
        }
        told = options.json or place.folder / "report.json"
        told.write_text(json.dumps(report))
        from bench import plots  # matplotlib takes a second

        plot = options.plot or place.folder / "plot.svg"
        plots.backpressure(report, plot)
    print()
    for act in acts.values():
        print(f"  {act}")
    print(f"\n  {told_growth(grown)}")
    print(f"  limited by {acts['kworker'].limited_by}; the plot: {plot}")
    return 0 if verdict(acts, options.messages) else 1


if __name__ == "__main__":
    sys.exit(main())
