"""What waits to be rejected, and for how long."""

import os
from pathlib import Path

from kworker.core.headers import Source
from kworker.instance.rejections import KEPT_S, Rejections

RECORD = Source("orders", 3, 1042, 1_700_000_000_123)
ARMED_S = 1_790_000_000.0


def test_a_rejection_is_forgotten_after_a_day(tmp_path: Path) -> None:
    """Its record was settled where nobody here saw it; some day another may be taken for it."""
    wall = ARMED_S
    refusals = Rejections(tmp_path, lambda: wall)
    refusals.add(RECORD, "me@here")
    [path] = tmp_path.iterdir()
    os.utime(path, (ARMED_S, ARMED_S))
    assert refusals.refresh(1.0)
    wall += KEPT_S
    assert not refusals.refresh(2.0)
    assert refusals.by(RECORD) == "me@here"
    assert [each.source for each in refusals.pending()] == [RECORD]
    wall += 1
    assert refusals.pending() == []
    assert not refusals.refresh(3.0)
    assert not refusals.any
    assert list(tmp_path.iterdir()) == []


def test_a_start_after_more_than_a_day_finds_none(tmp_path: Path) -> None:
    Rejections(tmp_path).add(RECORD, "me@here")
    [path] = tmp_path.iterdir()
    os.utime(path, (ARMED_S, ARMED_S))
    later = Rejections(tmp_path, lambda: ARMED_S + KEPT_S + 1)
    later.refresh(1.0)
    assert not later.any
    assert list(tmp_path.iterdir()) == []
