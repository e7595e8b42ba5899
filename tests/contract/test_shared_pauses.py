"""Pauses of several hosts over one Redis, and over its twin."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kworker.core.pauses import ALL, order_pause, order_resumption
from kworker.errors import Unreachable
from kworker.instance.pause_file import PauseFile, WatchedPauses
from kworker.worker.idempotency.shared_pauses import SharedPauses
from tests.support.redis_and_twin import Store

NOW_S = 1_790_000_000.0
A_SECOND_S = 1.0
KIND = "pauses:orders"


class Host:
    """An instance: its operator, the claims thread of a worker, and whoever reads the file."""

    def __init__(self, store: Store, folder: Path, ahead_s: float = 0.0) -> None:
        self.now = 0.0
        self._wall = NOW_S + ahead_s
        folder.mkdir()
        self.file = PauseFile(folder / "pauses.json")
        self.shared = SharedPauses(store.texts(KIND), self.file)
        self._watched = WatchedPauses(self.file, lambda: NOW_S)

    def pauses(self, topic: str, for_s: float | None = None) -> None:
        until_ms = None if for_s is None else round((self._wall + for_s) * 1000)
        now_ms = round(self._wall * 1000)
        self.file.add(order_pause(self.file.read(), [topic], "me", now_ms, until_ms))

    def resumes(self, topic: str) -> None:
        now_ms = round(self._wall * 1000)
        self.file.add(order_resumption(self.file.read(), [topic], "me", now_ms))

    def turn(self) -> None:
        """A second of the claims thread."""
        self.now += A_SECOND_S
        self.shared.turn(self.now)

    @property
    def paused(self) -> set[str]:
        self.now += A_SECOND_S
        return set(self._watched.refresh(self.now).names)


@pytest.fixture
def host(store: Store, tmp_path: Path) -> Callable[..., Host]:
    return lambda instance, **options: Host(store, tmp_path / instance, **options)


def test_a_pause_of_one_host_is_a_pause_of_all(host: Callable[..., Host]) -> None:
    a, b = host("a"), host("b")
    a.pauses("orders")
    a.pauses(ALL, for_s=60.0)
    a.turn()
    b.turn()
    assert a.paused == b.paused == {"orders", ALL}
    assert b.file.read() == a.file.read()
    b.resumes("orders")
    b.turn()
    a.turn()
    assert a.paused == b.paused == {ALL}


def test_a_host_that_starts_later_learns_of_a_pause(host: Callable[..., Host]) -> None:
    """Nor need any other host be there still."""
    a = host("a")
    a.pauses("orders")
    a.turn()
    b = host("b")
    assert not b.shared.asked
    b.turn()
    assert b.shared.asked
    assert b.paused == {"orders"}


def test_the_newest_order_counts_whichever_clock_is_ahead(host: Callable[..., Host]) -> None:
    """A resumption outranks the pause that its operator saw, also from an earlier wall clock."""
    fast, slow = host("fast", ahead_s=300.0), host("slow")
    fast.pauses("orders")
    fast.turn()
    slow.turn()
    slow.resumes("orders")
    for _ in range(2):
        slow.turn()
        fast.turn()
    assert fast.paused == slow.paused == set()


def test_orders_given_without_redis_are_all_kept(host: Callable[..., Host], store: Store) -> None:
    """Each host has paused another topic meanwhile."""
    a, b = host("a"), host("b")
    with store.trouble("away"):
        a.pauses("orders")
        b.pauses("payments")
        for one in (a, b):
            with pytest.raises(Unreachable):
                one.turn()
            assert one.shared.asked, "it need not wait for Redis"
    assert (a.paused, b.paused) == ({"orders"}, {"payments"})
    for one in (a, b, a):
        one.turn()
    assert a.paused == b.paused == {"orders", "payments"}


def test_without_redis_a_host_keeps_what_it_knew(host: Callable[..., Host], store: Store) -> None:
    a, b = host("a"), host("b")
    a.pauses("orders")
    a.turn()
    b.turn()
    with store.trouble("away"):
        a.resumes("orders")
        with pytest.raises(Unreachable):
            b.turn()
        assert b.paused == {"orders"}
    a.turn()
    b.turn()
    assert b.paused == set()


def test_a_redis_that_has_lost_all_is_told_again(host: Callable[..., Host], store: Store) -> None:
    a, b = host("a"), host("b")
    a.pauses("orders")
    a.turn()
    store.flush()
    a.turn()
    b.turn()
    assert b.paused == {"orders"}


def test_an_unreadable_order_is_ignored(host: Callable[..., Host], store: Store) -> None:
    """A newer kworker, or somebody else, may have written it."""
    store.texts(KIND).put({"orders": "?", "payments": "{}"})
    a = host("a")
    a.turn()
    assert a.paused == set()
    a.pauses("orders")
    a.turn()
    b = host("b")
    b.turn()
    assert b.paused == {"orders"}


def test_a_folder_that_cannot_be_written_ends_no_worker(
    host: Callable[..., Host], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported once, and tried again."""
    a, b = host("a"), host("b")
    a.pauses("orders")
    a.turn()
    folder = b.file.path.parent
    folder.rename(folder.with_suffix(".away"))
    for _ in range(3):
        b.turn()
    said = capsys.readouterr().out
    assert said.count("it has no effect here yet; next try in 1 s") == 1
    folder.with_suffix(".away").rename(folder)
    b.turn()
    assert b.paused == {"orders"}


def test_services_that_share_a_prefix_pause_apart(store: Store, tmp_path: Path) -> None:
    """They know each other's events, and have topics of their own."""
    a, other = Host(store, tmp_path / "a"), store.texts("pauses:invoices")
    a.pauses(ALL)
    a.turn()
    assert other.get() == {}
