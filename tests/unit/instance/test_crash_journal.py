"""The crash journal: what the supervisor writes is what the next worker reads."""

import os
from pathlib import Path

import pytest

from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import CrashJournal

PLACE = ("orders", 3, 77)
DAY_S = 24 * 3600


@pytest.fixture
def journal(tmp_path: Path) -> CrashJournal:
    return CrashJournal(tmp_path / "suspects")


def files(journal: CrashJournal) -> list[Path]:
    return list(journal._folder.iterdir())


def accuse(
    journal: CrashJournal, *places: tuple[str, int, int], now_s: float, most: int = 100
) -> None:
    journal.add_suspects(places, "crash", "SIGSEGV", now_s, most)


def test_the_journal_is_empty_before_the_first_death(journal: CrashJournal):
    assert journal.read() == {}
    assert not journal.watch().changed()


def test_a_suspect_is_read_with_its_cause_and_time(journal: CrashJournal):
    accuse(journal, PLACE, now_s=1000.0)
    assert journal.read() == {PLACE: Suspect(PLACE, "crash", 0, 0, ("SIGSEGV",), 1000.0)}


def test_counted_deaths_survive_the_next_accusation(journal: CrashJournal):
    """A worker's death between two of the cell must not begin the count anew."""
    journal._folder.mkdir()
    journal.write(Suspect(PLACE, "crash", 1, 1, ("SIGKILL",), 900.0))
    journal.add_suspects([PLACE], "timeout", "SIGABRT", 1000.0, 100)
    found = Suspect(PLACE, "timeout", 1, 1, ("SIGKILL", "SIGABRT"), 900.0)
    assert journal.read() == {PLACE: found}


def test_the_crash_journal_is_private_and_shows_every_change(journal: CrashJournal):
    accuse(journal, PLACE, now_s=1000.0)
    [file] = files(journal)
    assert file.stat().st_mode & 0o777 == 0o600
    assert journal._folder.stat().st_mode & 0o777 == 0o700
    watch = journal.watch()
    os.utime(journal._folder, ns=(1, 1))
    assert watch.changed()
    assert not watch.changed()
    journal.write(Suspect(PLACE, "crash", 1))
    assert watch.changed()
    os.utime(journal._folder, ns=(2, 2))
    assert watch.changed()
    assert not watch.changed()
    journal.remove(PLACE)
    assert watch.changed()
    assert journal.read() == {}
    journal.remove(PLACE)


def test_a_topic_of_any_length_and_any_number_of_ends_fit(journal: CrashJournal):
    place = ("x" * 249, 2**31 - 1, 2**63 - 1)
    for _ in range(30):
        accuse(journal, place, now_s=1000.0)
    [suspect] = journal.read().values()
    assert suspect.place == place
    assert len(suspect.ended) == 10


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"place": ["a", 1]}', b"\xff" * 9000])
def test_a_file_that_is_none_of_ours_is_no_suspect(journal: CrashJournal, content: bytes):
    accuse(journal, PLACE, now_s=1000.0)
    (journal._folder / "strange.json").write_bytes(content)
    assert list(journal.read()) == [PLACE]


def test_the_oldest_suspects_over_the_limit_are_forgotten(journal: CrashJournal):
    """A worker in a crash loop must not fill the disk."""
    accuse(journal, ("orders", 0, 0), now_s=1000.0)
    for file in files(journal):
        os.utime(file, (1000, 1000))
    accuse(journal, *(("orders", 0, offset) for offset in (1, 2, 3)), now_s=1000.0, most=3)
    assert sorted(place[2] for place in journal.read()) == [1, 2, 3]


def test_a_suspect_is_forgotten_after_a_day(journal: CrashJournal):
    """Its position was settled by somebody who did not know this folder."""
    accuse(journal, ("orders", 0, 0), now_s=1000.0)
    [old] = files(journal)
    written = old.stat().st_mtime
    accuse(journal, ("orders", 0, 1), now_s=written + DAY_S / 2)
    assert len(journal.read()) == 2
    os.utime(old, (written - DAY_S, written - DAY_S))
    accuse(journal, ("orders", 0, 2), now_s=written + 1)
    assert sorted(place[2] for place in journal.read()) == [1, 2]
