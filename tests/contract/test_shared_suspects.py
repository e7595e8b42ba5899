"""Suspects of several hosts over one Redis, and over its twin."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kworker.core.headers import SourcePosition
from kworker.core.suspects import Suspect
from kworker.errors import Unreachable
from kworker.instance.crash_journal import CrashJournal, WatchedJournal
from kworker.worker.quarantine.known_suspects import KnownSuspects
from kworker.worker.quarantine.shared_suspects import SharedSuspects
from tests.support.records import a_partition, a_record
from tests.support.redis_and_twin import Store

WALL_S = 1_700_000_000.0
DAY_S = 24 * 3600.0
A_SECOND_S = 1.0
PLACE: SourcePosition = ("orders", 0, 7)


class Host:
    """A worker of an instance: what its two threads do with suspects, on a clock of its own."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.now = 0.0
        self.wall = WALL_S
        self.journal = CrashJournal(folder)
        self.shared = SharedSuspects(
            store.texts("suspects"), WatchedJournal(self.journal), lambda: self.wall
        )
        self.known = KnownSuspects(folder, self.shared)

    def accuse(self, place: SourcePosition = PLACE) -> None:
        """As the supervisor does."""
        self.journal.add_suspects([place], "crash", "SIGSEGV", self.wall, 100)

    def turn(self) -> None:
        """A second of the claims thread, then one of the poll thread."""
        self.now += A_SECOND_S
        self.shared.turn(self.now)
        self.known.refresh(self.now)
        self.known.merge_shared()

    def suspects(self, place: SourcePosition = PLACE) -> bool:
        return a_record(a_partition(*place[:2]), place[2]) in self.known

    def of(self, place: SourcePosition = PLACE) -> Suspect:
        return self.known.of(a_record(a_partition(*place[:2]), place[2]))

    def settle(self, place: SourcePosition = PLACE) -> None:
        self.known.settled([a_record(a_partition(*place[:2]), place[2])])


@pytest.fixture
def host(store: Store, tmp_path: Path) -> Callable[[str], Host]:
    return lambda instance: Host(store, tmp_path / instance)


def test_a_suspect_of_one_host_is_a_suspect_of_all(host: Callable[[str], Host]) -> None:
    """The next owner of its partition may be anywhere."""
    a, b = host("a"), host("b")
    a.accuse()
    a.turn()
    b.turn()
    assert b.suspects()
    assert b.of() == a.of() == Suspect(PLACE, "crash", ended=("SIGSEGV",), since=WALL_S)
    a.settle()
    a.turn()
    b.turn()
    assert not a.known
    assert not b.known


def test_any_host_may_settle_a_suspect(host: Callable[[str], Host], store: Store) -> None:
    """Its first host may be gone for ever; or live, and then does not tell of it again."""
    a, b = host("a"), host("b")
    a.accuse()
    a.turn()
    b.turn()
    b.settle()
    assert not b.known
    for _ in range(2):
        b.turn()
        a.turn()
    assert not b.known
    assert store.texts("suspects").get() == {}


def test_deaths_are_counted_over_hosts(host: Callable[[str], Host]) -> None:
    """A killer must not begin anew with each host that it comes to."""
    a, b = host("a"), host("b")
    a.accuse()
    a.turn()
    b.turn()
    b.known.record_death(Suspect(PLACE, "crash", deaths=1, since=WALL_S))
    b.turn()
    a.turn()
    assert a.of().deaths == b.of().deaths == 1
    again = host("a")  # its file knows of none
    again.turn()
    b.turn()
    assert again.of().deaths == b.of().deaths == 1


def test_a_worker_takes_back_the_suspects_of_a_dead_sibling(
    host: Callable[[str], Host], store: Store
) -> None:
    """One that settled a suspect may be killed before it has told."""
    dead, alive = host("a"), host("a")
    dead.accuse()
    dead.turn()
    alive.turn()
    dead.settle()
    alive.turn()
    assert store.texts("suspects").get() == {}


def test_old_suspects_are_forgotten(host: Callable[[str], Host], store: Store) -> None:
    """What did not come again for a day was settled by somebody who could not tell."""
    a, b = host("a"), host("b")
    a.accuse()
    a.turn()
    b.wall += DAY_S + 1
    b.turn()
    assert not b.known
    assert store.texts("suspects").get() == {}


def test_an_unreadable_suspect_is_ignored(host: Callable[[str], Host], store: Store) -> None:
    """A newer kworker, or somebody else, may have written it."""
    store.texts("suspects").put({"orders/0/7": "{}", "orders/0/8": "?"})
    b = host("b")
    b.turn()
    assert not b.known


def test_without_redis_each_host_knows_its_own_and_tells_later(
    host: Callable[[str], Host], store: Store
) -> None:
    """Nor is anything forgotten that was to be taken back."""
    a, b = host("a"), host("b")
    a.accuse()
    a.turn()
    b.turn()
    with store.trouble("away"):
        a.accuse(("orders", 0, 8))
        b.settle()
        for one in (a, b):
            with pytest.raises(Unreachable):
                one.turn()
        a.known.refresh(a.now, force=True)
        assert a.suspects(("orders", 0, 8))
    a.turn()
    b.turn()
    assert b.suspects(("orders", 0, 8))
    assert not b.suspects()


def test_a_new_assignment_looks_up_suspects_at_once(
    host: Callable[[str], Host], store: Store
) -> None:
    """Its first records may be those that killed their last owner."""
    a, b = host("a"), host("b")
    b.turn()
    a.accuse()
    a.turn()
    b.shared.turn(b.now)
    assert not b.shared.others
    b.known.refresh(b.now, force=True)
    with store.trouble("away"), pytest.raises(Unreachable):
        b.shared.turn(b.now)
    b.shared.turn(b.now)
    b.known.merge_shared()
    assert b.suspects()


def test_the_last_settled_suspect_is_taken_back_at_the_end(
    host: Callable[[str], Host], store: Store
) -> None:
    """A worker that has drained does not come again."""
    a = host("a")
    a.accuse()
    a.turn()
    a.known.refresh(a.now, force=True)
    a.settle()
    a.shared.end()
    assert store.texts("suspects").get() == {}
