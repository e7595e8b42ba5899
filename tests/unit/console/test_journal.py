"""What changed between two statuses, in words."""

from typing import Any

import pytest

from kworker.console.journal import changes, problem_kind
from tests.unit.console.documents import document, worker


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, []),
        ({"uptime_s": 99.0, "held": 1}, []),
        ({"pid": 7, "version": "0.2"}, ["the supervisor is new: pid 7, version 0.2"]),
        ({"state": "draining"}, ["the service was running, and is draining"]),
        ({"reasons": ["no broker answers"]}, ["no broker answers"]),
        ({"workers": [worker(0)]}, ["worker 1 was removed"]),
        ({"workers": [worker(0), worker(1), worker(2)]}, ["worker 2 was added"]),
        ({"workers": [worker(0, pid=5), worker(1)]}, ["worker 0 was pid 100, and is pid 5"]),
        ({"workers": [worker(0, pid=0), worker(1)]}, ["worker 0 has ended: it was pid 100"]),
        (
            {"workers": [worker(0, partitions=[]), worker(1, partitions=[["o", 0], ["o", 1]])]},
            [
                "worker 0 had 1 partitions, and has 0",
                "worker 1 had 1 partitions, and has 2",
            ],
        ),
        ({"delay": {"pid": 5}}, ["the delay process was pid 98, and is pid 5"]),
        ({"spark": {"state": "running"}}, ["the Spark job was off, and is running"]),
        ({"paused": [{"topic": "orders", "by": "me@here"}]}, ["me@here paused orders"]),
        ({"paused": [{"topic": "*", "by": "me@here"}]}, ["me@here paused all topics"]),
    ],
)
def test_each_change_has_its_line(changed: dict[str, Any], lines: list[str]) -> None:
    assert list(changes(document(), document(**changed))) == lines


def test_the_end_of_a_pause_is_a_change() -> None:
    before = document(paused=[{"topic": "*", "by": "a"}, {"topic": "orders", "by": "a"}])
    after = document(paused=[{"topic": "orders", "by": "b"}])
    assert list(changes(before, after)) == ["the pause of all topics is over"]


def test_nothing_has_changed_before_the_first_status() -> None:
    assert list(changes(None, document(state="red"))) == []


def test_a_problem_is_the_same_while_its_numbers_change() -> None:
    assert problem_kind("next start in 12.5 s") == problem_kind("next start in 3 s")
    before, after = (document(reasons=[f"lag of {lag:,} records"]) for lag in (1_000, 20))
    assert list(changes(before, after)) == []


def test_problems_of_two_workers_or_partitions_are_two() -> None:
    exits = [f"worker {n} exited (SIGKILL); next start in 3 s" for n in (1, 2)]
    assert problem_kind(exits[0]) != problem_kind(exits[1])
    unowned = [f"no worker has orders/{n}, for 25 s: 40 records wait" for n in (3, 7)]
    assert problem_kind(unowned[0]) != problem_kind(unowned[1])
    assert list(changes(document(reasons=exits[:1]), document(reasons=exits))) == exits[1:]
