"""`kworker plan`: the keys that it gives to paste are such as kworker takes, and as it says why."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kworker.cli.main import run
from kworker.cli.plan.estimate import PlanQuestion, estimate
from kworker.config import toml_file
from kworker.config.model import Config
from kworker.config.rules import memory_ceiling
from kworker.core.capacity import EXACTLY_ONCE, IDEMPOTENT, RESULTS, THREADS, Load, Measured

FILE = """
name = "orders"
handler = "json:loads"
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[workers]
processes = 2
threads = 16
"""
EXACT = '\n[delivery]\nguarantee = "exactly-once"\n'
CLAIMS = '\n[idempotency]\nredis = "redis://localhost"\nkey = "key"\n'


class PlanDesk:
    """A person who plans, in a folder with a configuration or without."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "kworker.toml"
        self._capsys = capsys
        self.errors = ""

    def config(self, more: str = "") -> Config:
        self.file.write_text(FILE + more)
        return toml_file.load(self.file)

    def types(self, *arguments: str, code: int = 0) -> str:
        got = run(["plan", *arguments])
        out, self.errors = self._capsys.readouterr()
        assert got == code, self.errors
        return out

    def data(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.types(*arguments, "--json"))
        return found


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> PlanDesk:
    monkeypatch.chdir(tmp_path)
    return PlanDesk(tmp_path, capsys)


USUAL = ("--rate", "2000/s", "--handler-time", "50ms")


def test_the_printed_keys_can_be_pasted_and_are_enough(desk: PlanDesk) -> None:
    """The whole circle: kworker takes them, and says that they do."""
    asked = (*USUAL, "--p99", "45s", "--record-bytes", "900000", "--headroom", "2")
    printed = desk.types(*asked)
    table = printed[printed.index("[workers]") :].split("\n\n")[0]
    assert tomllib.loads(table)["workers"]["threads"] == 50
    desk.file.write_text(FILE.partition("[workers]")[0] + table)
    config = toml_file.load(desk.file)
    ceiling = memory_ceiling(config)
    assert ceiling
    assert ceiling.total <= config.workers.memory
    assert (config.workers.drain_timeout, config.workers.revoke_timeout) == (90, 45)
    again = desk.data(*asked)
    assert again["now"]["enough"] is True
    assert again["workers"] == {"processes": 4, "threads": 50}
    assert "; enough" in desk.types(*asked)


def test_without_a_file_the_defaults_are_compared_with_nothing(desk: PlanDesk) -> None:
    found = desk.data(*USUAL)
    assert (found["in_flight"], found["handlers"]) == (100, 150)
    assert (found["processes"], found["threads"]) == (3, 50)
    assert (found["partitions"], found["partitions_min"]) == (6, 3)
    assert found["workers"] == {"processes": 3, "threads": 50}
    assert found["now"] is None
    assert found["memory_ceiling_bytes"] == 120_000_000 + 2 * (80 << 20) + (64 << 20)


def test_a_configuration_is_told_the_rate_that_it_allows(desk: PlanDesk) -> None:
    desk.config()
    now = desk.data(*USUAL)["now"]
    assert (now["processes"], now["threads"], now["rate_max"]) == (2, 16, 640)
    assert now["enough"] is False
    shown = desk.types(*USUAL)
    assert "2 processes with threads = 16: at most 640 records/s, 427 with head room" in shown
    assert "too few" in shown


@pytest.mark.parametrize(
    ("more", "candidates"),
    [
        ("", [RESULTS]),
        (EXACT, [RESULTS, EXACTLY_ONCE]),
        (CLAIMS, [RESULTS, IDEMPOTENT]),
        (EXACT + CLAIMS, [RESULTS, EXACTLY_ONCE, IDEMPOTENT]),
    ],
)
def test_the_figure_is_that_of_the_guarantee(
    desk: PlanDesk, more: str, candidates: list[Measured]
) -> None:
    """The lowest of those that the configuration has a part of."""
    load, measured = Load(200_000, 0.0001, 1.0), min(candidates)
    found = estimate(PlanQuestion(load), desk.config(more))
    assert found.measured == measured
    assert found.workers.processes == -(-200_000 // measured.rate)


def test_large_records_limit_what_a_configuration_does(desk: PlanDesk) -> None:
    """As many run at once as there are bytes for."""
    question = PlanQuestion(Load(100, 1.0, 1.0), record_bytes=16 << 20)
    found = estimate(question, desk.config())
    assert found.now is not None
    assert found.now[0] == (2, 4)
    assert found.keys["in_flight_bytes"] == 2 * found.workers.handlers * (16 << 20)
    assert found.keys["memory"] >= found.keys["in_flight_bytes"] * 2


def test_an_ordered_partition_needs_one_for_each_handler(desk: PlanDesk) -> None:
    config = desk.config('ordering = "partition"\n')
    found = estimate(PlanQuestion(Load(2_000, 0.05, 1.5)), config)
    assert found.partitions == (150, 150)
    assert "one partition runs one record at a time: at most 20/s" in desk.types(*USUAL)


def test_async_handlers_get_concurrency_and_room_in_flight(desk: PlanDesk) -> None:
    found = desk.data("--rate", "900/s", "--handler-time", "2s", "--async", "--processes", "1")
    assert found["workers"] == {"processes": 1, "concurrency": 2700, "in_flight": 5400}
    assert found["warnings"] == []


def test_too_few_processes_are_warned_of(desk: PlanDesk) -> None:
    """Twice what one was measured to do, in handlers of 2 ms."""
    rate = 2 * RESULTS.rate
    asked = ("--rate", f"{rate}", "--handler-time", "2ms", "--headroom", "1", "--processes", "1")
    most = f"{THREADS} for which processes are planned"
    threads = f"{-(-2 * rate // 1000):,} threads in a process are more than the {most}"
    assert desk.data(*asked)["warnings"] == [
        threads,
        f"each process would do {rate:,} records/s, but did {RESULTS.rate:,} at most"
        f" ({RESULTS.what})",
    ]
    assert f"beware: {threads}" in desk.types(*asked)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "fast", "--handler-time", "1s"), "--rate: expected records a second"),
        (("--rate", "1", "--handler-time", "1"), "the value of --handler-time is wrong"),
        (("--rate", "1", "--handler-time", "0s"), "expected at least 1ms"),
        (
            ("--rate", "1", "--handler-time", "1s", "--p99", "1ms"),
            "at least the mean time, --handler-time 1s",
        ),
        (("--rate", "1", "--handler-time", "1s", "--headroom", "0.5"), "headroom"),
        (("--handler-time", "1s"), "--rate"),
    ],
)
def test_wrong_options_of_a_plan_are_named(
    desk: PlanDesk, arguments: tuple[str, ...], words: str
) -> None:
    desk.types(*arguments, code=2)
    assert words in desk.errors
    assert len(desk.errors.splitlines()) == 1


def test_a_wrong_file_is_no_missing_one(desk: PlanDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.file.write_text("name = 7")
    desk.types(*USUAL, code=78)
    desk.file.unlink()
    desk.types(*USUAL, "--config", "elsewhere.toml", code=78)
    monkeypatch.setenv("KWORKER_CONFIG", "elsewhere.toml")
    desk.types(*USUAL, code=78)
