"""Whose pauses a worker heeds: those of its file, once Redis has been asked for more of them."""

from pathlib import Path
from typing import Any

import pytest

from kworker.clients.memory.redis import MemoryRedis, MemoryRedisTexts
from kworker.core.pauses import ALL, order_pause
from kworker.errors import Unreachable
from kworker.instance.pause_file import PauseFile
from kworker.instance.state_folder import StateFolder
from kworker.worker.assembly import Role, make_paused
from kworker.worker.idempotency.shared_pauses import SharedPauses
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
    paused = make_paused(role(), folder, None)(0.0)
    assert ("orders" in paused, "payments" in paused) == (True, False)


def test_a_replay_heeds_no_pause(folder: StateFolder) -> None:
    """Its operator asked for it, perhaps during the pause of the service."""
    assert "orders" not in make_paused(role(replay="0a1b2c"), folder, None)(0.0)


@pytest.mark.parametrize("away", [False, True])
def test_nothing_is_taken_before_redis_has_been_asked(folder: StateFolder, away: bool) -> None:
    """Another host may have paused all topics while this one did not run.

    A Redis that does not answer holds nothing back: then what the file says counts.
    """
    redis = MemoryRedis()
    texts = MemoryRedisTexts(redis, kind="pauses:orders", prefix="test:")
    texts.put({ALL: '{"at_ms": 1, "by": "me", "since_ms": 1, "until_ms": null}'})
    shared = SharedPauses(texts, PauseFile(folder.pauses))
    paused = make_paused(role(), folder, shared)
    assert "payments" in paused(0.0)
    redis.away = away
    if away:
        with pytest.raises(Unreachable):
            shared.turn(0.0)
    else:
        shared.turn(0.0)
    assert "orders" in paused(0.0)
    assert ("payments" in paused(0.0)) is not away
