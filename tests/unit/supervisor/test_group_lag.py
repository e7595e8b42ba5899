"""The lag and the partitions without an owner, for a worker with thousands of partitions."""

from dataclasses import dataclass

import pytest

from kworker.core.message import PartitionId
from kworker.core.restart import RestartPolicy
from kworker.instance.scoreboard import Scoreboard, Text
from kworker.instance.scoreboard_fields import Field
from kworker.supervisor.children.worker_process import WorkerProcess
from kworker.supervisor.group_lag import GroupLag
from kworker.supervisor.limits import Limits

UNOWNED_S = Limits().unowned_s


@dataclass
class Workers:
    """What the lag needs of a fleet: one living worker, which has lag in its own partitions."""

    worker: WorkerProcess

    @property
    def workers(self) -> list[WorkerProcess]:
        return [self.worker]

    living = workers

    def sum(self, field: Field) -> int:
        return self.worker.slot.words[field]


@pytest.fixture
def fleet() -> Workers:
    worker = WorkerProcess(0, Scoreboard(1, 2).slots[0], RestartPolicy())
    worker.begin_life(pid=77, now=0.0)
    worker.slot.words[Field.LAG_RECORDS] = 50
    worker.slot.words[Field.UNFINISHED] = 70
    return Workers(worker)


def partitions(topics: int, each: int) -> tuple[PartitionId, ...]:
    """Those of topics with names of 30 characters."""
    return tuple((f"{topic:030}", number) for topic in range(topics) for number in range(each))


def told(behind: tuple[tuple[str, tuple[int, ...]], ...], others: str = "") -> Text:
    """The text of the delay process, as it comes through its own slot."""
    [slot] = Scoreboard(1, 0).slots
    slot.write_text(Text(behind=behind, others=((others, (0,)),) if others else ()))
    return slot.read_text()


def after(fleet: Workers, delay_text: Text) -> tuple[GroupLag, list[str]]:
    """The problems, a second after the partitions have had no owner for too long."""
    lag = GroupLag(fleet, Limits())
    for now in (0.0, UNOWNED_S + 1):
        lag.turn(lambda: delay_text, now)
    return lag, lag.problems(delay_text, UNOWNED_S + 1)


@pytest.mark.parametrize(("topics", "each"), [(20, 100), (400, 5), (2_000, 1)])
def test_thousands_of_partitions_have_an_owner_and_count_once(
    fleet: Workers, topics: int, each: int
) -> None:
    """Those that the worker cannot tell would be red for ever, and counted by both sides."""
    mine = partitions(topics, each)
    fleet.worker.slot.write_text(Text(mine, ("some reason",), mine))
    delay_text = told(tuple((f"{topic:030}", (9,) * each) for topic in range(topics)))
    lag, problems = after(fleet, delay_text)
    assert problems == []
    counted = lag.status(delay_text)
    assert (counted["records"], counted["unfinished"]) == (50, 70)


def test_one_unowned_partition_among_thousands_is_named(fleet: Workers) -> None:
    *mine, (topic, number) = partitions(20, 100)
    fleet.worker.slot.write_text(Text(tuple(mine), (), tuple(mine)))
    delay_text = told(tuple((f"{name:030}", (9,) * 100) for name in range(20)))
    lag, [problem] = after(fleet, delay_text)
    assert problem.startswith(f"no worker has {topic}/{number}, for 21 s: 9 records wait")
    assert lag.status(delay_text)["records"] == 59


def test_the_lag_is_unknown_of_partitions_that_are_not_told(fleet: Workers) -> None:
    """Nobody can say then which of the group's partitions are the worker's."""
    fleet.worker.slot.write_text(Text(partitions(20_000, 1), (), partitions(20_000, 1)))
    delay_text = told((("orders", (9,)),))
    lag, problems = after(fleet, delay_text)
    assert problems == []
    counted = lag.status(delay_text)
    assert (counted["records"], counted["unfinished"]) == (None, None)
    assert counted["topics"] == [{"topic": "orders", "partitions": 1, "behind": 9}]


def test_partitions_of_other_instances_are_known_with_the_lag(fleet: Workers) -> None:
    """Without the ones, the others would seem to have no owner."""
    behind = (("orders", (9,)),)
    assert after(fleet, told(behind, others="orders"))[1] == []
    [slot] = Scoreboard(1, 0).slots
    others = tuple((f"{topic:030}", (0,)) for topic in range(20_000))
    slot.write_text(Text(behind=behind, others=others))
    lag, problems = after(fleet, slot.read_text())
    assert problems == []
    assert lag.status(slot.read_text())["records"] is None
