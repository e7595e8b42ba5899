"""`make profile`, but for what it measures: its arithmetic, its output, the roles of threads."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import handlers, stage_profile, stages
from bench.stage_profile import ROWS, Profile, Times, Waits, between, lock_shares, waits
from bench.stages import HANDLERS, LOOP, NEVER_BLOCK, POLL, STAGES
from bench.watched import Broken
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.thread_pool import ThreadPool


@pytest.mark.parametrize(
    ("listed", "threads", "found"),
    [
        ([(5.0, 3.0), (3.0, 2.0)], (6.0, 1.0), Waits(8.0, 5.0, 1.0, 2.0)),
        ([(5.0, 3.0)], (6.0, 4.0), Waits(5.0, 3.0, 2.0, 0.0)),  # most of it in other stages
        ([(5.0, 5.1)], (6.0, 1.0), Waits(5.0, 5.1, 0.0, 0.0)),  # the clocks differ a little
    ],
)
def test_waits_are_for_the_lock_if_not_for_a_cpu(
    listed: list[Times], threads: Times, found: Waits
) -> None:
    assert waits(listed, threads) == found


def test_the_share_of_the_lock_has_a_lower_and_an_upper_bound() -> None:
    waiting = [Waits(8.0, 5.0, 1.0, 2.0), Waits(2.0, 1.0, 0.0, 1.0)]
    assert lock_shares(waiting) == pytest.approx((0.3, 0.4))
    assert lock_shares([Waits(0.0, 0.0, 0.0, 0.0)]) == (0.0, 0.0)


def report(done: int, ns: int, loop_ns: int = 0) -> dict[str, Any]:
    """As a worker writes it: each stage has taken `ns`, half of that on a CPU."""
    return {
        "at_s": done / 1_000,
        "done": done,
        "stages": {stage.name: [ns, ns // 2] for stage in STAGES},
        "threads": {POLL: [ns, ns // 4], HANDLERS: [ns, ns], LOOP: [loop_ns, 0]},
        "process_s": ns * 40 / 1e9,
    }


def test_a_profile_is_what_lies_between_two_reports() -> None:
    found = between(report(1_000, 10**6), report(3_000, 9 * 10**6), sleeps=False)
    assert found.rate == pytest.approx(1_000)
    assert found.stages["take"] == (4.0, 2.0)
    assert found.process_us == pytest.approx(160)
    calm = len(NEVER_BLOCK)
    assert found.waits[POLL] == (4.0 * calm, 2.0 * calm, 1.0, 2.0 * calm - 1.0)
    assert found.waits[HANDLERS] == (4.0, 2.0, 2.0, 0.0)


def test_a_handler_that_sleeps_has_no_share_of_the_lock() -> None:
    """Its wait is what it is there for."""
    found = between(report(1_000, 0), report(3_000, 10**6), sleeps=True)
    assert list(found.waits) == [POLL]
    assert [name for name, row in ROWS.items() if row.sleeps] == ["256 threads", "1,000 tasks"]


def test_the_profile_is_told_with_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    found = between(report(1_000, 0), report(3_000, 8 * 10**6, 10**7), sleeps=False)
    stage_profile.show("1,000 tasks", found._replace(stolen=0.01))
    told = capsys.readouterr().out
    for line in (
        "1,000 tasks: 1,000 records/s",
        "take                4.00    2.00     2.00",
        "event loop (CPU)            5.00",
        "librdkafka                147.00",  # 160, but for two threads of 4 and one of 5
        "poll thread        28.00   14.00       1.00         13.00",
        "waiting for the interpreter's lock: 41% of this wall time, or up to 50%",
        "1% of the CPU went to other machines",
    ):
        assert f"{line}\n" in told


def test_a_service_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    ended: Any = SimpleNamespace(poll=lambda: 78, returncode=78)
    with pytest.raises(Broken, match="it ended with exit code 78"):
        list(stage_profile._reports(tmp_path / "run.stages", 2_000_000, ended))


def test_a_stage_that_no_record_reached_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = report(1_000, 0), report(3_000, 10**6)
    last["stages"]["handlers"] = [0, 0]
    stage_profile.show("1,000 tasks", between(first, last, sleeps=True))
    assert "handlers" not in capsys.readouterr().out


def test_the_figures_in_json_are_named() -> None:
    profile = Profile(1.0, {"take": (2.0, 1.0)}, {}, {POLL: Waits(8.0, 5.0, 1.0, 2.0)}, 3.0, 0.01)
    told = json.loads(json.dumps(stage_profile.told({"no-op": profile})))["no-op"]
    assert told["waits"][POLL] == {"wall": 8.0, "cpu": 5.0, "for_cpu": 1.0, "for_lock": 2.0}
    assert (told["stages"], told["stolen"]) == ({"take": [2.0, 1.0]}, 0.01)


def test_each_row_has_its_handler_in_the_benchmark() -> None:
    """A worker that counts its stages imports them by name."""
    names = {row.service.handler for row in ROWS.values()}
    assert [name for name in names if not callable(getattr(handlers, name, None))] == []
    assert set(NEVER_BLOCK) <= {stage.name for stage in STAGES}


def test_threads_of_a_worker_are_found_by_their_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that the pool of threads, and the event loop, give theirs."""
    hands: Any = [None, None]
    pool = ThreadPool(lambda *_: pytest.fail("no record is run"), hands)
    assert {stages._role(thread.name) for thread in pool._threads} == {HANDLERS}
    monkeypatch.setattr(stages, "_scheduled", lambda _: [10, 1])
    loop = HandlerLoop()
    loop.start()
    try:
        found = stages.scheduled()
    finally:
        loop.end()
        loop.join(5.0)
    assert found[POLL] == [10, 1]
    assert found[LOOP][0] >= 10  # another test may have left a loop


def test_the_kernel_tells_how_long_a_thread_was_on_a_cpu() -> None:
    """And how long it waited for one, which no other clock tells."""
    before_ns, _ = stages.scheduled()[POLL]
    deadline_s = time.thread_time() + 0.02
    while time.thread_time() < deadline_s:
        pass
    on_cpu_ns, waited_ns = stages.scheduled()[POLL]
    assert on_cpu_ns - before_ns > 10_000_000  # it may lag by a tick
    assert waited_ns >= 0
