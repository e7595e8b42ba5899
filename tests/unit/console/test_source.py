"""The console asks once for many, waits for nobody, and says how old its answer is."""

import asyncio
import threading
from typing import Any

import orjson

from kworker.console.app import PageData, why_not_live, why_not_ready, why_not_started
from kworker.console.source import SAMPLE_S, SILENT_S, Snapshot, StatusSource
from kworker.errors import NotRunning
from tests.unit.console.documents import document, worker


class Supervisor:
    """Answers as the test wants, and counts."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = document()
        self.asked = 0
        self.now = 100.0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self) -> dict[str, Any]:
        self.asked += 1
        self.may_answer.wait(30)
        if self.document is None:
            raise NotRunning("orders is not running")
        return self.document

    def source(self) -> StatusSource:
        return StatusSource(self.answer, lambda: self.now, lambda: 1_000_000 + self.now)


def test_many_questions_within_a_second_are_one() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        together = await asyncio.gather(*(source.latest() for _ in range(50)))
        assert [each.document for each in together] == [supervisor.document] * 50
        supervisor.now += 0.9
        await source.latest()
        assert supervisor.asked == 1
        supervisor.now += 0.2
        assert (await source.latest()).age_s == 0
        assert supervisor.asked == 2

    asyncio.run(ask())


def test_a_supervisor_that_does_not_answer_leaves_the_last_answer() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        await source.latest()
        supervisor.may_answer.clear()
        supervisor.now += SILENT_S
        late = await source.latest()
        assert (late.alive, late.problem) == (True, "the supervisor has not answered for 10 s")
        supervisor.now += 0.1
        dead = await source.latest()
        assert (dead.alive, dead.document) == (False, supervisor.document)
        assert supervisor.asked == 2  # one question waits, and no other joins it
        supervisor.may_answer.set()
        await source._asking  # type: ignore[misc]
        assert (await source.latest()).problem == ""

    asyncio.run(ask())


def test_many_pages_cost_one_rendering_of_a_status() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        page = PageData(source)
        assert orjson.loads(orjson.dumps(page.of(Snapshot(None, 0.0, ""))))["status"] is None
        first, second = page.of(await source.latest()), page.of(await source.latest())
        assert first["status"] is second["status"]
        shown = orjson.loads(orjson.dumps(first))
        assert (shown["status"], shown["since"], shown["events"]) == (document(), [], [])
        assert shown["samples"] == [[1_000_100, 80.0, 7, 6, 1.5]]
        supervisor.now += 2.0
        supervisor.document = document(reasons=["bad"])
        later = orjson.loads(orjson.dumps(page.of(await source.latest())))
        assert (later["status"]["reasons"], later["since"]) == (["bad"], [1_000_102])

    asyncio.run(ask())


def test_a_service_that_is_gone_is_asked_again_at_once() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        supervisor.document = None
        gone = await source.latest()
        assert (gone.document, gone.problem) == (None, "orders is not running")
        supervisor.document = document()
        assert (await source.latest()).problem == ""

    asyncio.run(ask())


def test_samples_and_the_start_of_problems_are_kept() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        for _ in range(3):
            await source.latest()
            supervisor.now += SAMPLE_S
        assert [sample.at for sample in source.samples] == [1_000_100, 1_000_105, 1_000_110]
        for left in (9, 8):
            problem = f"worker 0 exited; next start in {left} s"
            supervisor.document = document(state="red", reasons=[problem])
            await source.latest()
            supervisor.now += 2.0
        assert source.since("worker 0 exited; next start in 3 s") == 1_000_115
        assert [event.text for event in source.events] == [
            "the service was running, and is red",
            "worker 0 exited; next start in 9 s",
        ]
        supervisor.document = document()
        await source.latest()
        assert source.since("worker 0 exited; next start in 3 s") is None

    asyncio.run(ask())


def test_the_probes_tell_the_states_apart() -> None:
    def seen(age_s: float = 0.0, **changed: Any) -> tuple[list[str], list[str], list[str]]:
        snapshot = Snapshot(document(**changed), age_s, "no answer" if age_s else "")
        return why_not_live(snapshot), why_not_ready(snapshot), why_not_started(snapshot)

    assert seen() == ([], [], [])
    assert seen(state="paused") == ([], [], [])
    assert seen(state="red", reasons=["bad"]) == ([], ["bad"], [])
    assert seen(state="draining") == ([], ["the service is draining"], [])
    waiting = seen(state="waiting", joined=False, reasons=["no broker"])
    assert waiting == ([], ["no broker"], ["no broker"])
    starting = seen(state="starting", joined=False)
    assert starting[1] == ["the service is starting"]
    assert starting[2] == ["not every worker has joined its group yet"]
    assert seen(SILENT_S + 1) == (["no answer"], ["no answer"], [])
    frozen = seen(SILENT_S + 1, state="waiting", joined=False, reasons=["no broker"])
    assert frozen == (["no answer"],) * 3  # what was in its way once is not the reason now
    unknown = Snapshot(None, 1.0, "no answer")
    assert (why_not_live(unknown), why_not_ready(unknown)) == ([], ["no answer"])


def test_a_status_of_another_form_is_an_answer_all_the_same() -> None:
    """As of an older supervisor, after an upgrade in place: it lives."""
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        await source.latest()
        assert supervisor.document is not None
        supervisor.document = {k: v for k, v in supervisor.document.items() if k != "delay"}
        supervisor.now += SILENT_S + 5
        snapshot = await source.latest()
        assert (snapshot.document, snapshot.problem) == (supervisor.document, "")
        assert why_not_live(snapshot) == []

    asyncio.run(ask())


def test_it_is_not_ready_while_a_worker_has_not_joined() -> None:
    joining = document(workers=[worker(0), worker(1, phase="joining")])
    problems = ["worker 1 has not joined its group (joining)"]
    assert why_not_ready(Snapshot(joining, 0.0, "")) == problems
    assert why_not_started(Snapshot(joining, 0.0, "")) == []


def test_what_was_a_problem_before_has_no_known_beginning() -> None:
    supervisor = Supervisor()

    async def ask() -> None:
        source = supervisor.source()
        supervisor.document = document(reasons=["an old one"])
        await source.latest()
        supervisor.document = document(reasons=["an old one", "a new one"])
        supervisor.now += 5
        await source.latest()
        assert (source.since("an old one"), source.since("a new one")) == (None, 1_000_105)

    asyncio.run(ask())
