"""The cost of the console's page to a service at full load: with ten clients and without, in turn.

`python -m bench.console` starts a Kafka, writes 4,000,000 records of 200 bytes, and runs a service
over them three times, with one worker and a result for each record. For five seconds ten clients
ask for what the page asks for, as often as it does; for five seconds nobody does; and so on. It
takes some three minutes, and ends with 0 if the page costs less than 1 % of a core: the CPU time of
supervisor and console together. Workers have no part in it; their CPU time and rate are shown.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import kworker
from bench import ours
from bench.disturbance import Stolen
from bench.handwritten import NO_OP_THREADS
from bench.place import Place, free_port, servers
from bench.topic import TOPIC, Group, fill
from bench.watched import Broken
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient

RECORDS = 4_000_000
ROUNDS = 3
CLIENTS = 10
PAGE = Path(kworker.__file__).parent / "console" / "page" / "page.js"
EVERY_S = int(re.findall(r"EVERY_MS = (\d+)", PAGE.read_text())[0]) / 1000
HEADERS = {  # as Chromium 156 sends them
    "sec-ch-ua-platform": '"Linux"',
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
    " Chrome/156.0.0.0 Safari/537.36",
    "sec-ch-ua": '"Not:A-Brand";v="8", "Chromium";v="156"',
    "sec-ch-ua-mobile": "?0",
    "Accept": "*/*",
    "Sec-Fetch-Site": "same-origin",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
    "Referer": "http://127.0.0.1:8321/",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Accept-Language": "en-US,en;q=0.9",
}
WINDOW_S = 5.0  # as SAMPLE_S of the console: so often it asks the supervisor without clients
WARM_S = 4.0
LOOK_S = 0.05
COST_MAX = 0.01


class Cpu(NamedTuple):
    """CPU seconds, or cores, by process."""

    supervisor: float
    workers: float  # and the delay process
    console: float
    clients: float  # of this benchmark; browsers run elsewhere


class Window(NamedTuple):
    """The rates of some seconds: records a second, and cores."""

    records: float
    cores: Cpu


class Pair(NamedTuple):
    """Two windows, one after the other."""

    without: Window
    polled: Window


class Watched:
    """A running service, read over its control socket and from /proc."""

    def __init__(self, name: str, state_dir: Path) -> None:
        self._client = ControlClient(name, StateFolder(state_dir))

    def window(self, pastime: Callable[[float], None]) -> Window:
        """Returns the rates while `pastime` lasts, which is called with the time of its end."""
        began = time.monotonic()
        before = self._read()
        pastime(began + WINDOW_S)
        after = self._read()
        seconds = time.monotonic() - began
        done, *cpu = ((now - then) / seconds for now, then in zip(after, before, strict=True))
        return Window(done, Cpu(*cpu))

    def done(self) -> int:
        """The number of records done so far."""
        return int(self._client.request("status")["counters"]["done"])

    def _read(self) -> tuple[float, ...]:
        """The records done, and the fields of `Cpu`, since the processes started."""
        status = self._client.request("status")
        workers = [row["pid"] for row in (*status["workers"], status["delay"])]
        return (
            status["counters"]["done"],
            _cpu_s(status["pid"]),
            sum(map(_cpu_s, workers)),
            _cpu_s(status["console"]["pid"]),
            time.process_time(),
        )


def _cpu_s(pid: int) -> float:
    """The CPU seconds of a process's threads; its `stat` counts in hundredths."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rest(until: float) -> None:
    """Does nothing."""
    time.sleep(max(0.0, until - time.monotonic()))


def poll(port: int, until: float) -> None:
    """Asks as so many open pages do, each over its own connection, evenly spread."""
    pages = [HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(CLIENTS)]
    due = time.monotonic()
    for page in cycle(pages):
        page.request("GET", "/page.json", headers=HEADERS)
        answer = page.getresponse()
        if answer.status != 200 or not answer.read():
            raise Broken(f"the console answers {answer.status}")
        due += EVERY_S / CLIENTS
        rest(due)
        if due >= until:
            break
    for page in pages:
        page.close()


def measure(place: Place, run: str) -> Iterator[Pair]:
    """Runs the service over the topic, and yields pairs of windows while it has records."""
    group = Group(place.kafka, run)
    records = group.begin(RECORDS)
    group.close()
    port = free_port()
    environment = ours.Service("result", NO_OP_THREADS).environment(place, run)
    environment["KWORKER_CONSOLE__LISTEN"] = f"127.0.0.1:{port}"
    ours.command(environment, "topics", "create")
    with ours.started(environment, place.folder / f"{run}.log"):
        while not (place.folder / f"{run}.begun").exists():
            rest(time.monotonic() + LOOK_S)
        rest(time.monotonic() + WARM_S)
        watched = Watched(run, place.folder / f"{run}.state")
        order, fastest = [False, True], 0.0
        while records - watched.done() > 2.5 * WINDOW_S * fastest:
            windows = {
                polled: watched.window(partial(poll, port) if polled else rest) for polled in order
            }
            yield Pair(windows[False], windows[True])
            order.reverse()  # so that a drift of the machine affects both alike
            fastest = max(fastest, *(window.records for window in windows.values()))


def show(pairs: Sequence[Pair]) -> bool:
    """Prints the table and the verdict; returns True if the page is cheap enough."""
    without, polled = (_mean(windows) for windows in zip(*pairs, strict=True))
    costs = Cpu(*(now - then for now, then in zip(polled.cores, without.cores, strict=True)))
    print(f"\nmeans of {len(pairs)} pairs of {WINDOW_S:g} s, at full load\n")
    print(f"{'':<24}{'no client':>12}{f'{CLIENTS} clients':>12}{'difference':>12}")
    for name, *cores in zip(Cpu._fields, without.cores, polled.cores, costs, strict=True):
        print(f"{name:<24}" + "".join(f"{each:>12.2%}" for each in cores) + "  of a core")
    for what, of in (("workers, µs a record", _us_each), ("records/s", _records)):
        told = "".join(f"{of(each):>12,.1f}" for each in (without, polled))
        changes = sorted(of(pair.polled) / of(pair.without) - 1 for pair in pairs)
        spread = f"{changes[0]:.1%} to {changes[-1]:.1%}"
        print(f"{what:<24}{told}{median(changes):>12.2%}  median; the pairs {spread}")
    cost = costs.supervisor + costs.console
    verdict = "PASS" if cost < COST_MAX else "FAIL"
    print(
        f"\n{verdict}  the page costs {cost:.2%} of a core, and must cost less than {COST_MAX:.0%}"
    )
    return cost < COST_MAX


def _records(window: Window) -> float:
    return window.records


def _us_each(window: Window) -> float:
    return 1e6 * window.cores.workers / window.records


def _mean(windows: Sequence[Window]) -> Window:
    cores = zip(*(window.cores for window in windows), strict=True)
    return Window(mean(window.records for window in windows), Cpu(*map(mean, cores)))


def main(arguments: Sequence[str] | None = None) -> int:
    told = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m bench.console", description=__doc__, formatter_class=told
    ).parse_args(arguments)
    with servers(".bench-console") as place:
        print(f"writing {RECORDS:,} records", flush=True)
        fill(place.kafka, TOPIC, RECORDS)
        stolen = Stolen()
        pairs = [pair for number in range(ROUNDS) for pair in measure(place, f"page-{number}")]
        share = stolen.share()
    cheap = show(pairs)
    print(f"{share:.1%} of the CPU went to other virtual machines")
    return 0 if cheap else 1


if __name__ == "__main__":
    sys.exit(main())
