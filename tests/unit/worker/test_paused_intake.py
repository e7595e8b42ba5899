"""Whose pauses a worker heeds."""

from pathlib import Path
from typing import Any

import pytest

from kworker.core.pauses import order_pause
from kworker.instance.pause_file import PauseFile
from kworker.instance.state_folder import StateFolder
from kworker.worker.assembly import Role, make_paused
from kworker.worker.intake import IntakePolicy


def role(**options: Any) -> Role:
    return Role(0, lambda _listener: None, lambda _topics, _s: {}, IntakePolicy(), **options)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    """Of an instance whose operator has paused one topic."""
    found = StateFolder(tmp_path)
    PauseFile(found.pauses).add(order_pause({}, ["orders"], "me", 1, None))
    return found


def test_a_worker_heeds_the_file(folder: StateFolder) -> None:
    paused = make_paused(role(), folder)(0.0)
    assert ("orders" in paused, "payments" in paused) == (True, False)


def test_a_replay_heeds_no_pause(folder: StateFolder) -> None:
    """Its operator asked for it, perhaps during the pause of the service."""
    assert "orders" not in make_paused(role(replay="0a1b2c"), folder)(0.0)
