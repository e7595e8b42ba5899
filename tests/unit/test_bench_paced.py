"""The fixed pace: what counts of it, and what a rival gets before it. Nothing is started."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import disturbance, frameworks, latency, paced
from bench.contenders import CONTENDERS
from bench.environments import SOURCES
from bench.paced import Pace
from bench.place import Place
from bench.progress import Progress
from bench.run import QUICK, Benchmark
from bench.watched import Broken, Measured
from kworker.config.client_properties import PRODUCER_DEFAULTS

PLACE = Place("kafka", "redis", Path())
IDLE_S = 1.0


class Late:
    """A client that gives its results on with the next order, or after it was idle for a second.

    It is also the clock, on which each look at the results takes two milliseconds.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.written = 0
        self._waiting: list[tuple[float, str]] = []
        self._results: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def produce(self, _: str, value: str, __: str) -> None:
        self._results += [value for at, value in self._waiting if at < self.now]
        self._waiting = [each for each in self._waiting if each[0] == self.now]
        self._waiting.append((self.now, value))
        self.written += 1

    def poll(self, _: float) -> None: ...

    def assign(self, _: object) -> None: ...

    def consume(self, _: int, wait_s: float) -> list[SimpleNamespace]:
        self.now += wait_s
        if self._waiting and self.now - self._waiting[-1][0] > IDLE_S:
            self._results += [value for _, value in self._waiting]
            self._waiting = []
        found, self._results = self._results, []
        return [SimpleNamespace(value=lambda value=value: value) for value in found]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Late:
    client = Late()
    monkeypatch.setattr(paced, "time", client)
    monkeypatch.setattr(paced, "Producer", lambda _: client)
    return client


def made(reader: Late, per_second: int = 100) -> Pace:
    typed: Any = reader
    return Pace("kafka", "orders", "results", typed, per_second)


def test_the_last_of_a_phase_are_not_late_since_nothing_follows(client: Late) -> None:
    delays_ms = made(client).keep(0.5)
    assert len(delays_ms) == 50
    assert max(delays_ms) < 20


def test_a_phase_ends_when_no_result_is_missing(client: Late) -> None:
    """What is written after the counted orders has come, too."""
    pacing = made(client)
    seen: list[str] = []
    delays_ms = pacing.keep(0.5, lambda message, _: seen.append(message.value()))
    assert client.written == pacing.written > 50
    assert len(seen) == len(delays_ms) == 50
    assert client.consume(1_000, 2 * IDLE_S) == []
    ids = [json.loads(value)["order_id"] for value in seen]
    assert ids == sorted(ids)


def test_missing_results_are_waited_for_a_limited_time(
    client: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced, "TIMEOUT_S", 0.2)
    with pytest.raises(Broken, match="results have not come"):
        made(client).keep(0.5)


class Clock:
    """A clock of the stolen share that finds none, and notes when it begins."""

    def __init__(self, done: list[str]) -> None:
        done.append("clock")

    def share(self) -> float:
        return 0.0


def test_a_rival_gathers_batches_as_long_as_kworker_does() -> None:
    """Else its latency would be that of the setting for the highest rate."""
    probes = (latency.CONTENDERS | latency.ASKED).values()
    programs = [each for each in probes if isinstance(each, frameworks.Program)]
    kworkers = PRODUCER_DEFAULTS["linger.ms"]
    told = {each.environment(PLACE, "run")["BENCH_LINGER_MS"] for each in programs}
    assert told == {str(kworkers)}
    for rival in ("quix", "arroyo_rival", "aiokafka_rival"):
        assert 'os.environ["BENCH_LINGER_MS"]' in (SOURCES / f"{rival}.py").read_text()


def test_a_rival_is_prepared_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what pip and Maven need would be a part of the stolen share."""
    done: list[str] = []
    [quix] = [each for each in CONTENDERS if each.name == "quix"]

    def measured(*_: object) -> Measured:
        done.append("measure")
        return Measured(1, 1.0, 0)

    monkeypatch.setattr(frameworks, "prepare", done.append)
    monkeypatch.setattr(disturbance, "Stolen", lambda: Clock(done))
    monkeypatch.setattr(Benchmark, "_measure", measured)
    Benchmark(PLACE, QUICK, (quix,), Progress(None, {})).run()
    assert done == ["quix", "clock", "measure"]
