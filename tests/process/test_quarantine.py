"""Quarantine with real isolated processes: handlers that crash, exit, hang and eat memory."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from kworker.config.model import (
    Config,
    DeadLetterSettings,
    KafkaSettings,
    SourceSettings,
    WorkersSettings,
)
from kworker.core.failure import Described, Failure
from kworker.core.headers import ATTEMPT, SOURCE, Envelope
from kworker.core.outcome import Failed, Results, Succeeded, outputs_of
from kworker.core.record import Partition, Record
from kworker.instance.crash_journal import CrashJournal
from kworker.instance.proc import rss_bytes
from kworker.worker.quarantine.isolated_process import COMMAND
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.topic_limits import TopicLimits
from tests.support.lines import whole_lines
from tests.support.records import a_partition, a_record
from tests.support.service import stop
from tests.support.waiting import eventually

HANDLERS = """
import asyncio, ctypes, os, re, time

def killer(what):
    if what == b"segv":
        ctypes.string_at(0)
    elif what == b"exit":
        os._exit(3)
    elif what == b"stack":
        many = 20_000_000
        ctypes.CDLL(None).regcomp(
            ctypes.create_string_buffer(256), b"(" * many + b")" * many, 1
        )
    elif what == b"memory":
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * (4 << 20)))
    elif what == b"sleep":
        time.sleep(3600)
    elif what == b"gil":
        re.match(r"(a+)+$", "a" * 60 + "b")

def handle(message):
    with open("ran", "a") as ran:
        ran.write(f"{message.topic}/{message.partition}/{message.offset}/{message.attempt} "
                  f"{message.value.decode()} {os.getpid()}\\n")
    if message.value == b"slow":
        time.sleep(0.3)
    if message.value == b"raise":
        raise ValueError("no such customer")
    if message.value == b"huge":
        return b"x" * 2000
    killer(message.value)
    return {"value": message.value.decode(), "headers": [name for name, _ in message.headers]}

async def handle_async(message):
    if message.value == b"slow":
        await asyncio.sleep(0.3)
    killer(message.value)
    return {"value": message.value.decode()}

class Broken:
    def __init__(self):
        if os.path.exists("broken"):
            raise ConnectionError("no database")

    def __call__(self, message):
        return {}

class Unopened:
    async def open(self):
        if os.path.exists("broken"):
            raise ConnectionError("no database")

    async def __call__(self, message):
        return {}

class Closing:
    async def __call__(self, message):
        return {}

    async def close(self):
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        open("closed", "w").close()
"""
WAIT_S = 60.0

CGROUPS = Path("/sys/fs/cgroup/memory")  # of version 1


class Bench:
    """A ward as a worker has it, turned as the poll thread does."""

    def __init__(
        self, folder: Path, handler: str, command: Sequence[str], **workers: object
    ) -> None:
        (folder / "handlers.py").write_text(HANDLERS)
        self.config = Config(
            name="orders",
            handler=f"handlers:{handler}",
            file=folder / "kworker.toml",
            state_dir=folder,
            instance="test",
            source=SourceSettings(topics=["orders"]),
            kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:1"}),
            workers=WorkersSettings(**{"threads": 4, "concurrency": 8, **workers}),
            dead_letter=DeadLetterSettings(crash_limit=2),
        )
        self.journal = CrashJournal(folder / "suspects")
        facts = TopicLimits(["orders.results"])
        facts.update({"orders.results": 1000}, {})
        self.ward = Quarantine(self.config, folder / "suspects", facts, command=command)
        self.partition = a_partition()
        self.decided: list[Record] = []
        self.cells: set[int] = set()
        self.ran = folder / "ran"

    def suspect(self, *values: str, why: str = "crash", partition: Partition | None = None) -> None:
        """One record of each value, at offsets from 0, in the journal and in the ward."""
        partition = partition or self.partition
        records = [a_record(partition, i, value=v.encode()) for i, v in enumerate(values)]
        self.journal_of(records, why)
        self.ward.refresh(time.monotonic(), force=True)
        assert all(self.ward.is_suspect(record) for record in records)
        self.ward.add(records)

    def journal_of(self, records: list[Record], why: str = "crash") -> None:
        places = [record.source.place for record in records]
        self.journal.add_suspects(places, why, "SIGSEGV", time.time(), 1000)

    def turn(self) -> list[Record]:
        self.ward.refresh(time.monotonic())
        decided = self.ward.turn(time.monotonic())
        if self.cell:
            self.cells.add(self.cell)
        self.decided += decided
        self.ward.settled(decided)
        return decided

    @property
    def cell(self) -> int | None:
        cell = self.ward._process
        return cell.pid if cell else None

    def until(self, condition: Callable[[], object], what: str = "") -> None:
        def turned() -> bool:
            self.turn()
            return bool(condition())

        eventually(turned, timeout_s=WAIT_S, every_s=0.005, what=what)

    def until_all(self, count: int) -> dict[int, Failure | list[bytes]]:
        """Outcomes by offset, once so many are there."""
        self.until(lambda: len(self.decided) >= count, f"{count} outcomes")
        assert len(self.decided) == count
        return {record.offset: told(record) for record in self.decided}

    def runs(self, value: str) -> int:
        return sum(line.split()[1] == value for line in whole_lines(self.ran))


def told(record: Record) -> Failure | list[bytes]:
    outcome = record.outcome
    if isinstance(outcome, Failed):
        assert isinstance(outcome.error, Described)
        return outcome.error.failure
    assert isinstance(outcome, Succeeded)
    return [output.value or b"" for output in outputs_of(outcome)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)

    def make(handler: str = "handle", command: Sequence[str] = COMMAND, **workers: object) -> Bench:
        made.append(Bench(tmp_path, handler, command, **workers))
        return made[-1]

    yield make
    for one in made:
        one.ward.abandon()
        one.until(lambda one=one: one.cell is None)


def test_an_innocent_suspect_is_processed_as_in_the_pool(bench: Callable[..., Bench]):
    """Most suspects only stood beside the culprit; their results and failures are as ever."""
    ward = bench()
    ward.suspect("good", "raise", "huge")
    outcomes = ward.until_all(3)
    assert outcomes[0] == [b'{"value":"good","headers":[]}']
    failed = outcomes[1]
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.exception, failed.message) == (
        "error",
        "ValueError",
        "no such customer",
    )
    assert 'raise ValueError("no such customer")' in failed.stack
    too_large = outcomes[2]
    assert isinstance(too_large, Failure)
    assert too_large.kind == "unpublishable"
    assert not ward.ward.isolates_any
    assert ward.journal.read() == {}
    assert ward.ward.count == 0


def test_results_from_quarantine_keep_source_and_attempt(
    bench: Callable[..., Bench],
):
    """The cell never sees kworker's own topics, nor the headers that it writes there."""
    ward = bench()
    requeue = a_partition("orders.requeue", 1, scoreboard_index=1)
    headers = ((SOURCE, b"orders/3/77/1700000000000"), (ATTEMPT, b"4"), ("trace", b"x"))
    record = a_record(requeue, 5, value=b"good", headers=headers)
    record.comes_again(Envelope.open(headers), scoreboard_index=0)
    ward.journal_of([record])
    ward.ward.refresh(time.monotonic(), force=True)
    ward.ward.add([record])
    ward.until_all(1)
    assert isinstance(record.outcome, Results)
    [output] = record.outcome
    assert output.value == b'{"value":"good","headers":["trace"]}'
    assert dict(output.headers)[SOURCE] == b"orders/3/77/1700000000000"
    assert "orders/3/77/4 good" in ward.ran.read_text()


@pytest.mark.parametrize(
    ("what", "how"),
    [("segv", "SIGSEGV"), ("exit", "exit code 3"), ("stack", "SIGSEGV")],
)
def test_the_culprit_alone_is_convicted_with_the_signals_name(
    bench: Callable[..., Bench], what: str, how: str
):
    ward = bench()
    ward.suspect("good", "slow", what, "slow", "good")
    outcomes = ward.until_all(5)
    verdict = outcomes.pop(2)
    assert isinstance(verdict, Failure)
    assert (verdict.kind, verdict.message) == ("crashed", how)
    assert all(isinstance(outcome, list) for outcome in outcomes.values())
    assert ward.runs(what) <= 2 + 4  # the limit, and the halvings before
    assert ward.journal.read() == {}


def test_two_culprits_at_once_are_the_only_convicted(bench: Callable[..., Bench]):
    ward = bench()
    ward.suspect("slow", "segv", "slow", "exit", "slow", "good")
    outcomes = ward.until_all(6)
    crashed = {o: f.message for o, f in outcomes.items() if isinstance(f, Failure)}
    assert crashed == {1: "SIGSEGV", 3: "exit code 3"}


def test_suspect_coroutines_run_on_a_loop_and_are_judged_alike(bench: Callable[..., Bench]):
    ward = bench("handle_async")
    ward.suspect("slow", "segv", "slow", "good")
    outcomes = ward.until_all(4)
    crashed = {o: f.message for o, f in outcomes.items() if isinstance(f, Failure)}
    assert crashed == {1: "SIGSEGV"}


@pytest.mark.parametrize("what", ["sleep", "gil"])
def test_a_handler_that_never_ends_is_convicted_as_a_timeout(
    bench: Callable[..., Bench], what: str, capfd: pytest.CaptureFixture[str]
):
    """Not even one that holds the interpreter's lock, which no signal handler of Python's sees."""
    ward = bench(handler_timeout="1s")
    ward.suspect("good", what, "good")
    outcomes = ward.until_all(3)
    verdict = outcomes.pop(1)
    assert isinstance(verdict, Failure)
    assert (verdict.kind, verdict.message) == ("timeout", "over workers.handler_timeout = 1s")
    assert all(isinstance(outcome, list) for outcome in outcomes.values())
    # Beside others, in a half with one of those if it had not ended by then, and twice alone.
    assert ward.runs(what) in ((3,) if what == "sleep" else (3, 4))
    assert "in killer" in capfd.readouterr().err


def test_counted_deaths_survive_the_worker(bench: Callable[..., Bench], tmp_path: Path):
    """A worker may die in between; its cell dies with it, and that counts for nobody."""
    ward = bench()
    ward.suspect("segv")
    ward.until(lambda: [s.deaths for s in ward.journal.read().values()] == [1])
    ward.ward.abandon()
    again = bench()
    record = a_record(again.partition, 0, value=b"segv")
    again.ward.refresh(time.monotonic(), force=True)
    assert again.ward.is_suspect(record)
    again.ward.add([record])
    verdict = again.until_all(1)[0]
    assert isinstance(verdict, Failure)
    assert verdict.kind == "crashed"
    assert again.runs("segv") == 2


def test_outside_kills_convict_no_record(bench: Callable[..., Bench]):
    """Whoever kills processes at random must not be able to dead-letter an order."""
    ward = bench()
    ward.suspect("slow")
    for kills in (1, 2):
        ward.until(lambda kills=kills: ward.runs("slow") == kills)
        assert ward.cell
        os.kill(ward.cell, signal.SIGKILL)
        ward.until(lambda: ward.cell is None)
    assert ward.until_all(1)[0] == [b'{"value":"slow","headers":[]}']


def _confines() -> bool:
    """Whether a cgroup can be made here; without one, nothing could be made to run out."""
    probe = CGROUPS / f"kworker-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


if _confines():

    def test_kernel_memory_kills_convict_at_the_limit(
        confined: Sequence[str], bench: Callable[..., Bench]
    ):
        ward = bench(command=confined)
        ward.suspect("good", "memory")
        verdict = ward.until_all(2)[1]
        assert isinstance(verdict, Failure)
        assert (verdict.kind, verdict.message) == ("crashed", "SIGKILL")
        assert ward.runs("memory") <= 4


@pytest.fixture
def confined() -> Iterator[Sequence[str]]:
    """How cells are started in a cgroup that counts all that they ever take.

    The system counts a process as never smaller than the one that started it, so it has 150 MiB
    more than this one is large.
    """
    folder = CGROUPS / f"kworker-test-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(rss_bytes(os.getpid()) + (150 << 20)))
    yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh", *COMMAND)
    eventually(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_a_lost_partition_takes_its_suspects_without_a_death(
    bench: Callable[..., Bench],
):
    ward = bench()
    other = a_partition(number=1)
    ward.suspect("sleep")
    ward.suspect("slow", partition=other)
    ward.until(lambda: ward.runs("sleep") == 1)
    cell = ward.cell
    ward.ward.close(ward.partition)
    assert ward.ward.count == 1
    outcomes = ward.until_all(1)
    assert outcomes == {0: [b'{"value":"slow","headers":[]}']}
    assert ward.cell != cell
    assert [s.deaths for s in ward.journal.read().values()] == [0]


def test_a_drain_begins_no_suspect_and_lets_running_ones_end(bench: Callable[..., Bench]):
    ward = bench(threads=1)
    ward.suspect("slow")
    ward.until(lambda: ward.runs("slow") == 1)
    ward.suspect("good", partition=a_partition(number=1))
    everything = {record.partition for record in ward.ward._records.values()}
    [back] = ward.ward.withdraw(everything)
    assert back.partition.number == 1
    assert ward.ward.is_running
    assert ward.ward.withdraw(everything) == []
    ward.until_all(1)
    assert not ward.ward.is_running
    assert ward.ward.abandon() == []
    ward.until(lambda: ward.cell is None)


@pytest.mark.parametrize("handler", ["Broken", "Unopened"])
def test_a_handler_that_cannot_be_made_convicts_no_record(
    bench: Callable[..., Bench], tmp_path: Path, handler: str
):
    """The database it needs is down, which is no fault of any record."""
    (tmp_path / "broken").touch()
    ward = bench(handler)
    ward.suspect("good")
    ward.until(lambda: "ConnectionError: no database" in ward.ward.problem)
    ward.until(lambda: ward.cell is None)
    ward.until(lambda: ward.cell is not None)
    (tmp_path / "broken").unlink()
    assert ward.until_all(1)[0] == [b"{}"]
    assert ward.ward.problem == ""


def test_the_isolated_process_dies_with_its_worker(tmp_path: Path, bench: Callable[..., Bench]):
    """An orphan would run a record beside the next worker, which has it, too."""
    ward = bench()
    pid = os.fork()
    if pid == 0:
        ward.suspect("sleep")
        ward.until(lambda: ward.runs("sleep"))
        (tmp_path / "cell").write_text(str(ward.cell))
        signal.pause()
    cell = int(eventually(lambda: (tmp_path / "cell").exists() and (tmp_path / "cell").read_text()))
    assert psutil.Process(cell).cmdline()[0] == "kworker: isolated [orders]"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    eventually(lambda: not psutil.pid_exists(cell) or psutil.Process(cell).status() == "zombie")


@pytest.mark.timeout(60)
def test_the_poll_thread_never_waits_for_the_isolated_process(bench: Callable[..., Bench]):
    """A heartbeat that waits for a suspect would cost the partitions.

    A cell that is stopped takes nothing and says nothing: a turn that waits for it never ends.
    """

    def turns_while_it_is_stopped() -> None:
        cell = psutil.Process(ward.cell)
        stop(cell)
        for _ in range(20):
            ward.turn()
        assert cell.status() == psutil.STATUS_STOPPED
        cell.resume()

    ward = bench()
    ward.suspect(*["x" * 50_000] * 30)  # more than its pipe holds
    ward.until(lambda: ward.cell)
    turns_while_it_is_stopped()  # at its start
    ward.until(lambda: ward.ward.is_running)
    turns_while_it_is_stopped()  # before it has taken what it is to run
    ward.until_all(30)


def test_the_kernel_kills_the_isolated_process_before_its_worker(
    bench: Callable[..., Bench],
):
    """It goes before a worker of its size, not before one that has used up the memory."""
    ward = bench()
    ward.suspect("sleep")
    ward.until(lambda: ward.runs("sleep"))
    lead = Path(f"/proc/{ward.cell}/oom_score_adj").read_text()
    assert int(lead) - int(Path("/proc/self/oom_score_adj").read_text()) == 200


def test_an_idle_isolated_process_ends(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kworker.worker.quarantine.quarantine._IDLE_S", 0.1)
    ward = bench()
    ward.suspect("good")
    ward.until_all(1)
    ward.until(lambda: ward.cell is None)


def test_tasks_of_records_end_before_the_handler_is_closed(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They rest between records, and a `close` that waits for all others would hang."""
    monkeypatch.setattr("kworker.worker.quarantine.quarantine._IDLE_S", 0.1)
    ward = bench("Closing")
    ward.suspect("good", "good")
    ward.until_all(2)
    ward.until(lambda: ward.cell is None)
    assert (tmp_path / "closed").exists()


def test_all_records_are_isolated_at_first_for_the_time_ordered(
    bench: Callable[..., Bench],
):
    """None of them is a suspect by that: if one is rejected, its handler's `dead` is called."""
    quarantine, record = bench().ward, a_record(a_partition(), 0)
    quarantine.isolate_all(60)
    seen = []
    for now, force in ((10, False), (100, True), (159, False), (160, False), (170, True)):
        quarantine.refresh(now, force=force)
        seen.append((quarantine.isolates_any, quarantine.isolates(record)))
        assert not quarantine.is_suspect(record)
    assert seen == [(False, False), (True, True), (True, True), (False, False), (False, False)]


def test_no_isolated_process_starts_without_suspects(bench: Callable[..., Bench]):
    ward = bench()
    ward.turn()
    assert not ward.ward.isolates_any
    assert ward.cell is None
    assert ward.ward.problem == ""
