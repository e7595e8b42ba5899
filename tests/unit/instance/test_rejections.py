"""What waits to be rejected, and for how long."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

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


def test_a_rejection_of_the_same_instant_is_not_missed(tmp_path: Path) -> None:
    """A clock that ticks slowly leaves the folder's time as it was."""
    refusals = Rejections(tmp_path)
    refusals.add(RECORD, "me@here")
    assert refusals.refresh(1.0)
    changed_ns = tmp_path.stat().st_mtime_ns
    other = replace(RECORD, offset=7)
    Rejections(tmp_path).add(other, "me@here")
    os.utime(tmp_path, ns=(changed_ns, changed_ns))
    assert refusals.refresh(2.0)
    assert refusals.by(other) == "me@here"


def test_workers_can_use_what_root_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under any umask; and to remove a rejection, they need the folder."""
    given: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((path, uid, gid)))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    before = os.umask(0o077)
    try:
        Rejections(tmp_path / "rejected").add(RECORD, "me@here")
    finally:
        os.umask(before)
    owner = tmp_path.stat()
    assert given == [(tmp_path / "rejected", owner.st_uid, owner.st_gid)]
    [path] = (tmp_path / "rejected").iterdir()
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_unreadable_folder_is_told_and_stops_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known rejections stay."""
    refusals = Rejections(tmp_path)
    refusals.add(RECORD, "me@here")
    assert refusals.refresh(1.0)

    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with capture_logs() as said:
        assert not refusals.refresh(2.0)
        assert not refusals.refresh(3.0)
    assert refusals.by(RECORD) == "me@here"
    [line] = said
    assert "must belong to the user of the service" in line["event"]
