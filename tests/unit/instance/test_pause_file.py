"""The pause file: what an operator orders is what every process of the instance reads."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.pauses import (
    ALL,
    NOTHING_PAUSED,
    Pause,
    PauseOrder,
    Resumption,
    order_pause,
    order_resumption,
)
from kworker.instance.pause_file import PauseFile, WatchedPauses, decode, decode_order, encode

NOW_S = 1_790_000_000.0
NOW_MS = int(NOW_S * 1000)
LATER_S = 1.0  # on the monotonic clock: the file is read again


@pytest.fixture
def file(tmp_path: Path) -> PauseFile:
    return PauseFile(tmp_path / "pauses.json")


class Watching:
    """A process that reads the file, on clocks of its own."""

    def __init__(self, file: PauseFile) -> None:
        self.now = 100.0
        self.wall = NOW_S
        self.watched = WatchedPauses(file, lambda: self.wall)

    def reads(self, passing_s: float = LATER_S) -> set[str]:
        self.now += passing_s
        return set(self.watched.refresh(self.now).names)


def test_what_is_ordered_is_read_by_all(file: PauseFile) -> None:
    one, other = Watching(file), Watching(file)
    assert one.reads() == set()
    orders = file.add(order_pause({}, ["orders"], "me@here", NOW_MS, None))
    assert one.reads() == other.reads() == {"orders"}
    file.add(order_pause(orders, [ALL], "me@here", NOW_MS, None))
    assert one.reads() == {"orders", ALL}
    file.add(order_resumption(file.read(), ["orders", ALL], "me@here", NOW_MS))
    assert one.reads() == other.reads() == set()


def test_a_start_reads_the_file_at_its_first_look(file: PauseFile) -> None:
    """Whatever the monotonic clock says: no record may slip through before."""
    file.add(order_pause({}, [ALL], "me", NOW_MS, None))
    assert ALL in WatchedPauses(file, lambda: NOW_S).refresh(-1e9).names


def test_a_pause_ends_without_a_change_of_the_file(file: PauseFile) -> None:
    file.add(order_pause({}, ["orders"], "me", NOW_MS, NOW_MS + 5000))
    process = Watching(file)
    assert process.reads() == {"orders"}
    process.wall += 5.0
    assert process.reads() == set()


def test_an_older_order_changes_nothing(file: PauseFile) -> None:
    """Another host tells of it late."""
    newest = file.add({"orders": Resumption(NOW_MS, "me")})
    before = _written(file)
    assert file.add({"orders": Pause(NOW_MS - 1, "you", NOW_MS - 1)}) == newest
    assert _written(file) == before


def _written(file: PauseFile) -> tuple[int, int]:
    """Changes with each write, and not with a read, as the time of access does."""
    found = file.path.stat()
    return found.st_ino, found.st_mtime_ns


def test_orders_given_at_once_are_all_kept(file: PauseFile) -> None:
    """Two operators, and the claims threads of all workers."""
    topics = [f"topic-{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda t: file.add(order_pause({}, [t], "me", NOW_MS, None)), topics))
    assert Watching(file).reads() == set(topics)


def test_a_lock_that_is_never_released_is_an_error(
    file: PauseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was stopped while it wrote must not stop the claims of a worker."""
    monkeypatch.setattr("kworker.instance.pause_file._LOCK_S", 0.1)
    fd = os.open(file.path.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        file.add(order_pause({}, ["orders"], "me", NOW_MS, None))
    os.close(fd)
    assert file.read() == {}


def test_the_service_may_read_what_root_wrote(file: PauseFile) -> None:
    """Also under an umask that forbids it; the folder is closed to everybody else."""
    before = os.umask(0o077)
    try:
        file.add(order_pause({}, ["orders"], "me", NOW_MS, None))
    finally:
        os.umask(before)
    assert file.path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(file.path.parent) == ["pauses.json"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"null", b"1"])
def test_a_damaged_file_leaves_the_known_pauses_in_force(file: PauseFile, content: bytes) -> None:
    """Taking records that shall wait is worse than waiting for too long."""
    file.add(order_pause({}, ["orders"], "me", NOW_MS, None))
    process = Watching(file)
    assert process.reads() == {"orders"}
    file.path.write_bytes(content)
    assert process.reads() == {"orders"}
    assert file.read() == {}
    file.path.unlink()
    assert process.reads() == set()


def test_a_damaged_file_is_replaced_by_the_next_order(file: PauseFile) -> None:
    file.path.write_bytes(b"{")
    file.add(order_pause({}, ["orders"], "me", NOW_MS, None))
    assert Watching(file).reads() == {"orders"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "7", '{"at_ms": 1}', '{"at_ms": 1e999, "by": "x"}'),
        *('{"at_ms": [], "by": 1}', '{"at_ms": 1, "by": "x", "since_ms": 1}'),
    ],
)
def test_an_unreadable_order_is_none(text: str) -> None:
    """A newer kworker, or somebody else, may have written it to Redis."""
    assert decode_order(text) is None
    assert decode(b'{"orders": %s}' % (text or "0").encode()) == {}


times = st.integers(0, 2**53)
orders = st.one_of(
    st.builds(Pause, times, st.text(max_size=99), times, st.none() | times),
    st.builds(Resumption, times, st.text(max_size=99)),
)


@given(orders)
def test_every_order_is_read_as_it_was_written(order: PauseOrder) -> None:
    assert decode_order(encode(order)) == order


def test_nothing_is_paused_where_no_file_is(tmp_path: Path) -> None:
    watched = WatchedPauses(PauseFile(tmp_path / "missing" / "pauses.json"))
    assert watched.refresh(0.0) == NOTHING_PAUSED
