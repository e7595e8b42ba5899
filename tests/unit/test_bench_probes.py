"""What a report says of a contender beside its rate: who waits behind it, what it lacks, on what.

Nothing is started.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import disturbance, environments, frameworks, handwritten, latency, ours, table
from bench.contenders import COMPUTE, CONTENDERS, Contender
from bench.environments import SOURCES, Unavailable
from bench.handlers import PROBE_S, PROBE_TOTAL
from bench.paced import PER_SECOND
from bench.place import Place
from bench.progress import Progress
from bench.run import FULL, QUICK, Benchmark, Size
from bench.watched import Broken, Measured

PROBES = {**latency.CONTENDERS, **latency.ASKED}
ALL_BARE = {
    *("poll-default", "consume-default", "poll", "consume"),
    *("threads", "threads-256", "tasks-1000", "tasks-4000", "tasks-even", "tasks-slow"),
}
JAVA = SOURCES / "parallel_consumer/src/main/java/bench/ParallelConsumerRival.java"
PLACE = Place("kafka", "redis", Path())


def is_kworker(contender: Contender) -> bool:
    return contender.name.startswith("kworker")


def test_each_contender_with_a_handler_names_a_probe() -> None:
    """The others only read, or only sleep."""
    assert {each.name for each in CONTENDERS if not each.probe} == ALL_BARE
    assert [each.name for each in CONTENDERS if each.probe and each.probe not in PROBES] == []


def test_each_probe_answers_for_a_contender() -> None:
    assert {each.probe for each in CONTENDERS if each.probe} == PROBES.keys()


@pytest.mark.parametrize(
    "contender", [each for each in CONTENDERS if each.probe], ids=lambda each: each.name
)
def test_a_probe_is_in_the_mode_of_its_contender(contender: Contender) -> None:
    probed = PROBES[contender.probe]
    if isinstance(probed, frameworks.Program):
        assert (probed.rival, probed.variables) == (contender.rival, contender.variables)
        # Quix is serial: it holds the others with transactions as without.
        assert probed.exactly_once is contender.exactly_once or contender.rival == "quix"
    elif isinstance(probed, ours.Service):
        assert is_kworker(contender)
        assert probed.exactly_once is contender.exactly_once
        assert probed.claims is contender.claims
        assert probed.ordering == contender.ordering
        in_tasks = contender.handler in ("wait_async", "wait_hot", "wait_slow")
        assert probed.handler == ("probed_async" if in_tasks else "probed")
    else:
        assert contender.name in (probed.name, f"{probed.name}-sleeps")


def test_kworker_alone_lacks_nothing() -> None:
    assert [each.name for each in CONTENDERS if bool(each.lacks) == is_kworker(each)] == []


@pytest.mark.parametrize("rival", sorted(frameworks.COMMANDS))
def test_a_rival_has_the_handlers_that_are_asked_of_it(rival: str) -> None:
    """Else it would end at once, and be left out."""
    python = {path.stem.removesuffix("_rival"): path for path in SOURCES.glob("*.py")}
    source = python.get(rival, JAVA).read_text()
    asked = {each.handler for each in CONTENDERS if each.rival == rival} | {latency.HANDLER}
    assert [handler for handler in asked if f'"{handler}"' not in source] == []


@pytest.mark.parametrize(
    ("p99_ms", "only_asked", "beside_p99_ms", "holds"),
    [
        (20.0, False, 40.0, False),  # the worst is 990 ms: a few records
        (20.0, False, 840.0, True),
        (900.0, False, 990.0, False),  # slow without a slow record, too
        (900.0, True, 840.0, True),  # of a hundred, that is the worst
        (20.0, False, None, True),  # of an older benchmark
    ],
)
def test_others_wait_if_more_than_a_few_of_them_are_late(
    *, p99_ms: float, only_asked: bool, beside_p99_ms: float | None, holds: bool
) -> None:
    row = latency.Row("some", 5.0, p99_ms, 950.0, 990.0, only_asked, beside_p99_ms=beside_p99_ms)
    assert row.holds_others is holds


class Pacing:
    """Keeps any pace at once, and notes what was asked of it."""

    def __init__(self, run: str, per_second: int) -> None:
        self.asked: list[tuple[str, float]] = [(run, per_second)]

    def begin(self) -> None:
        self.asked.append(("begin", 0))

    def probe(self) -> None:
        self.asked.append(("probe", 0))

    def keep(self, seconds: float) -> list[float]:
        self.asked.append(("keep", seconds))
        return [5.0, 10.0]


@pytest.fixture
def pacings(monkeypatch: pytest.MonkeyPatch) -> list[Pacing]:
    """The paces of the rows, instead of records and contenders."""
    pacings: list[Pacing] = []

    @contextmanager
    def pace(_: str, results: str, *, per_second: int) -> Iterator[Pacing]:
        pacings.append(Pacing(results.removesuffix(".results"), per_second))
        yield pacings[-1]

    @contextmanager
    def started(place: Place, run: str, contender: latency.Probed) -> Iterator[None]:
        if getattr(contender, "rival", "") == "celery":
            raise Unavailable("pip cannot install it")
        yield

    monkeypatch.setattr(latency, "pace", pace)
    monkeypatch.setattr(latency, "_started", started)
    monkeypatch.setattr(frameworks, "prepare", lambda _: None)
    monkeypatch.setattr(disturbance, "Stolen", lambda: SimpleNamespace(share=lambda: 0.0))
    return pacings


def test_latency_has_the_pace_and_a_yes_or_no_a_tenth_of_it(pacings: list[Pacing]) -> None:
    rows = latency.measure(PLACE, 5.0, absent := {"latency of kworker": "it was interrupted"})
    assert absent == {"latency of Celery with Redis, without order": "pip cannot install it"}
    by_name = {each["name"]: pacing for each, pacing in zip(rows, pacings, strict=True)}
    assert by_name.keys() == PROBES.keys() - {"Celery with Redis, without order"}
    phases = [("begin", 0), ("keep", 3.0), ("keep", 5.0), ("probe", 0), ("keep", 2 * PROBE_S)]
    assert by_name["kworker"].asked == [("latency-5-0", PER_SECOND), *phases]
    phases = [("begin", 0), ("keep", 0.5), ("keep", 1.0), ("probe", 0), ("keep", 2 * PROBE_S)]
    assert by_name["hand-written pool"].asked == [("latency-7-0", PER_SECOND / 10), *phases]
    assert {each["name"] for each in rows if each["only_asked"]} <= latency.ASKED.keys()


def test_without_rivals_kworker_alone_is_paced(pacings: list[Pacing]) -> None:
    rows = latency.measure(PLACE, 5.0, {}, rivals=False)
    assert [each["name"] for each in rows] == ["kworker", "kworker, exactly once"]
    assert latency.holders(rows) == {"kworker": False, "kworker, exactly once": False}


def test_a_disturbed_latency_is_measured_again(
    pacings: list[Pacing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a group and topics of its own, which its name stands for."""
    shares = iter([0.05, 0.0123456, 0.0])
    monkeypatch.setattr(disturbance, "Stolen", lambda: SimpleNamespace(share=lambda: next(shares)))
    rows = latency.measure(PLACE, 5.0, {}, rivals=False)
    assert [each["stolen"] for each in rows] == [0.0123, 0.0]
    runs = [pacing.asked[0][0] for pacing in pacings]
    assert runs == ["latency-0-0", "latency-0-1", "latency-1-0"]


def test_a_loop_written_by_hand_answers_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, slept = [], []

    class Producer:
        def __init__(self, _: dict) -> None: ...
        def poll(self, _: float) -> None: ...
        def produce(self, *record: object) -> None:
            sent.append(record)

    monkeypatch.setattr(handwritten, "Producer", Producer)
    monkeypatch.setattr(handwritten.time, "sleep", slept.append)
    handle = handwritten.Probed("kafka", "results")
    for total in (7.5, PROBE_TOTAL):
        order = json.dumps({"order_id": 1, "customer": "c", "total": total}).encode()
        handle(SimpleNamespace(value=lambda order=order: order, key=lambda: b"c"))
    assert slept == [PROBE_S]
    assert [(topic, json.loads(value)["total"], key) for topic, value, key in sent] == [
        ("results", 7.5, b"c"),
        ("results", PROBE_TOTAL, b"c"),
    ]


def test_the_time_of_the_others_is_told_or_the_rival_left_out(tmp_path: Path) -> None:
    place, all_records = Place("", "", tmp_path), Measured(10_000, 9.0, 1 << 20)
    program = frameworks.Program("parallel-consumer", "wait_hot", 1_000, rest=9_800)
    (tmp_path / "run.begun").write_text("100.5")
    with pytest.raises(Broken, match="fewer than 9,800 others ended"):
        frameworks._of_the_rest(place, "run", program, all_records)
    (tmp_path / "run.rest-ended").write_text("102.0")
    found = frameworks._of_the_rest(place, "run", program, all_records)
    assert found == Measured(9_800, 1.5, 1 << 20)


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_handlers_that_compute_run_longer_than_a_start(
    size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 6,000 records, two processes were as fast as one: the second had just started."""
    wanted: list[int] = []

    def measure(place: Place, run: str, service: ours.Service, records: int) -> Measured:
        wanted.append(records)
        return Measured(records, 1.0, 0)

    monkeypatch.setattr(ours, "measure", measure)
    chosen = tuple(each for each in CONTENDERS if each.handler == COMPUTE and not each.rival)
    Benchmark(PLACE, size, chosen, Progress(None, {})).run()
    assert set(wanted) == {30_000}


def line(name: str, **more: str) -> dict:
    figures = {"records_per_second": 5_000, "peak_bytes": 1 << 20, "ratios": {}}
    return {"name": name, "what": name, "probe": "", "lacks": "", **figures, **more}


def test_the_table_says_who_waits_and_what_is_lacking(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = {
        "size": {"rounds": 5, "untargeted_rounds": 1, "records": 1, "waiting": 1},
        "versions": {},
        "absent": {},
        "targets": [],
        "contenders": [
            line("rival", probe="serial", lacks="dead letters"),
            line("ours", probe="by key"),
            line("not measured", probe="unknown"),
        ],
        "latency": [
            latency.Row("serial", 5.0, 9.0, 9.0, 1_000.0)._asdict(),
            latency.Row("by key", 5.0, 9.0, 9.0, 12.0, True)._asdict(),
        ],
    }
    assert table.show(report)
    told = capsys.readouterr().out.splitlines()
    below = {line.split()[0]: under.strip() for line, under in pairwise(told) if line.strip()}
    assert below["rival"] == "others wait for a slow key; it lacks dead letters"
    assert below["ours"] == "no other waits"
    assert below["not"] == ""
    assert not table.show({**report, "targets": [{"ratio": 1, "least": 2, "name": "a", "to": "b"}]})


def test_what_took_the_time_is_told_with_the_longest_contenders() -> None:
    seconds = {"quick": 60.0, "slow": 180.0, "tables": 30.0}
    assert table.spent(seconds, ["tables", "landing"]) == (
        "measured for: contenders 4.0 min (the longest: slow 3.0 min, quick 1.0 min),"
        " tables 0.5 min"
    )


def test_versions_are_those_of_kworkers_own_environment() -> None:
    versions = environments.versions()
    for name in ("pyspark", "confluent-kafka", "orjson"):
        assert versions[name] == f"{name} {metadata.version(name)}"
    for name in ("Python", "librdkafka", "redis-py", "delta-spark", "Apache Kafka", "Java"):
        assert versions[name].removeprefix(f"{name} ")[0].isdigit(), versions[name]


def test_a_version_that_a_command_does_not_tell_is_unknown() -> None:
    assert environments._said(["echo", "v=7"], r"v=(\S+)") == "7"
    assert environments._said(["echo"], r"v=(\S+)") == "of an unknown version"


def test_the_time_of_bare_tasks_is_that_of_the_fast_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a hundred takes longer, and is not looked at."""
    ticks = count()
    monkeypatch.setattr(handwritten.time, "perf_counter", lambda: float(next(ticks)))
    slept = handwritten.bare_tasks_beside_slow(200, 50, slow_s=0.02)
    assert slept == (198, 198.0)  # the time of the last of the others, since that of the begin
