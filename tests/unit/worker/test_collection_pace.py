"""How often Python looks for garbage, by the rate of a worker."""

import gc
import time
from collections.abc import Iterator

import pytest

from kworker.instance.scoreboard import Scoreboard, Slot
from kworker.instance.scoreboard_fields import Field
from kworker.worker.collection_pace import MOST, CollectionPace

LEAST = 700


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(LEAST, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def slot() -> Slot:
    return Scoreboard(1, 1).slots[0]


@pytest.mark.parametrize(
    ("consumed", "young"), [(0, LEAST), (600, LEAST), (40_000, 20_000), (4_000_000, MOST)]
)
def test_young_objects_are_looked_through_once_a_seconds_records(
    slot: Slot, consumed: int, young: int
) -> None:
    pace = CollectionPace(slot)
    begun = time.monotonic() + 1.0  # when a second of the past is forgotten
    pace.turn(begun)
    slot.words[Field.CONSUMED] = consumed
    pace.turn(begun + 2.0)
    assert gc.get_threshold()[0] == young
    pace.turn(begun + 3.0)  # nothing came meanwhile
    assert gc.get_threshold()[0] == LEAST


def test_it_is_raised_at_once_and_lowered_after_a_second(slot: Slot) -> None:
    """A worker that starts with a backlog looks for garbage no more often than it will later."""
    pace = CollectionPace(slot)
    begun = time.monotonic() + 1.0
    pace.turn(begun)
    slot.words[Field.CONSUMED] = 5_000
    found = []
    for now in (begun + 0.1, begun + 0.9, begun + 1.0):
        pace.turn(now)
        found.append(gc.get_threshold()[0])
    assert found == pytest.approx([50_000, 50_000, 5_000], abs=1)


@pytest.mark.parametrize("chosen", [(5, 5, 5), (0, 10, 10)])
def test_what_a_handler_chooses_stands(slot: Slot, chosen: tuple[int, int, int]) -> None:
    """Who tunes it knows the objects of the application."""
    pace = CollectionPace(slot)
    pace.turn(time.monotonic())
    gc.set_threshold(*chosen)
    slot.words[Field.CONSUMED] = 50_000
    pace.turn(time.monotonic() + 1.0)
    assert gc.get_threshold() == chosen


@pytest.mark.parametrize(("chosen", "young"), [(0, 0), (200_000, 200_000)])
def test_what_the_handlers_module_chooses_is_the_least(slot: Slot, chosen: int, young: int) -> None:
    """0 is none at all."""
    gc.set_threshold(chosen, 10, 10)
    pace = CollectionPace(slot)
    slot.words[Field.CONSUMED] = 50_000
    pace.turn(time.monotonic() + 1.0)
    assert gc.get_threshold()[0] == young
