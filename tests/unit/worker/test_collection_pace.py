"""How often Python looks for garbage, by the rate of a worker."""

import gc
import time
from collections.abc import Iterator

import pytest

from kworker.instance.scoreboard import Scoreboard
from kworker.instance.scoreboard_fields import Field
from kworker.worker.collection_pace import LEAST, MOST, CollectionPace


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("consumed", "young"), [(0, LEAST), (600, LEAST), (40_000, 20_000), (4_000_000, MOST)]
)
def test_young_objects_are_looked_through_once_a_seconds_records(consumed: int, young: int) -> None:
    slot = Scoreboard(1, 1).slots[0]
    pace = CollectionPace(slot)
    begun = time.monotonic()
    pace.turn(begun)
    slot.words[Field.CONSUMED] = consumed
    pace.turn(begun + 2.0)
    assert gc.get_threshold()[0] == young
    pace.turn(begun + 3.0)  # nothing came meanwhile
    assert gc.get_threshold()[0] == LEAST
