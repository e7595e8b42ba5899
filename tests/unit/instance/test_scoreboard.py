"""The scoreboard: what a worker wrote is what the supervisor reads, over a fork too."""

import os
import re

import pytest

from kworker.core.durations import BOUNDS_S
from kworker.core.phase import Phase
from kworker.core.record import Partition
from kworker.instance.hand import Held
from kworker.instance.scoreboard import RecentLetter, Scoreboard, Text
from kworker.instance.scoreboard_fields import DEAD_BY_REASON, RUN_TIMES, WAIT_TIMES, Field
from kworker.worker.retries.policy import FINAL


def board() -> Scoreboard:
    return Scoreboard.for_workers(processes=2, hands=3)


def place(known: int, offset: int) -> int:
    """As a handler's thread says which record it holds."""
    orders = Partition("orders", 0, 1, scoreboard_index=known, position=0, origin=b"")
    return orders.scoreboard_word + offset


def test_a_child_writes_and_the_parent_reads():
    """The board is made before the fork and must be the same memory after it."""
    slot = board().slots[5]
    pid = os.fork()
    if pid == 0:
        slot.words[Field.PHASE] = Phase.RUNNING
        slot.words[Field.DONE] = 41
        slot.write_text(Text((("a", 0),), ("red",), (("a", 0), ("b", 7))))
        slot.hand(1).take(place(1, 99), 1234)
        os._exit(0)
    os.waitpid(pid, 0)
    assert slot.phase is Phase.RUNNING
    assert slot.counters()["done"] == 41
    assert slot.read_text() == Text((("a", 0),), ("red",), (("a", 0), ("b", 7)))
    assert slot.held() == [Held("b", 7, 99, 1234)]


def test_a_slot_does_not_reach_into_its_neighbour():
    slots = board().slots
    slots[1].write_text(Text(known=tuple((f"topic-{i}", i) for i in range(1000))))
    slots[1].hand(2).take(place(1, 2), 3)
    assert slots[0].held() == slots[2].held() == []
    assert slots[2].read_text() == Text()


def test_a_new_life_begins_empty():
    """A respawned worker must not inherit the suspects of the dead one."""
    slot = board().slots[0]
    slot.write_text(Text(known=(("a", 0),)))
    slot.hand(0).take(place(0, 5), 6)
    slot.words[Field.DONE] = 7
    slot.begin(pid=77, now_ns=8)
    assert slot.held() == []
    assert slot.oldest_since_ns() is None
    assert slot.counters()["done"] == 0
    assert slot.words[Field.PID] == 77


def test_the_oldest_record_in_hand_is_told_until_it_ends():
    slot = board().slots[0]
    slot.hand(0).take(place(0, 1), 500)
    slot.hand(1).take(place(0, 2), 300)
    assert slot.oldest_since_ns() == 300
    slot.hand(1).clear()
    assert slot.oldest_since_ns() == 500


def test_partitions_beyond_the_slots_room_are_cut():
    slot = board().slots[0]
    many = tuple(("a-rather-long-topic-name-" + str(i), i) for i in range(5000))
    slot.write_text(Text(many, (), many))
    text = slot.read_text()
    assert 300 < len(text.known) < 5000
    assert text.known == many[: len(text.known)]
    assert text.partitions_cut


@pytest.mark.parametrize("each", [1, 5, 100])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_record_of_the_last_of_many_partitions_is_named(each: int, interleaved: bool) -> None:
    """It is a suspect if its worker dies; and nobody says in which order the group assigns."""
    topics = [f"{topic:030}" for topic in range(2_000 // each)]
    known = [(topic, number) for topic in topics for number in range(each)]
    if interleaved:
        known.sort(key=lambda at: at[1])
    slot = board().slots[0]
    slot.write_text(Text(tuple(sorted(known)), ("red",), tuple(known)))
    text = slot.read_text()
    assert (text.partitions, text.known) == (tuple(sorted(known)), tuple(known))
    assert not text.partitions_cut
    slot.hand(0).take(place(1_999, 99), 7)
    assert slot.held() == [Held(*known[-1], 99, 7)]


def test_a_text_that_was_cut_stays_in_its_own_buffer() -> None:
    """The texts take turns in two buffers, and what is one byte too long spoils the other's."""
    first, second = Scoreboard(2, hands=1).slots
    for length in range(1, 60):
        many = tuple(("x" * length, number) for number in range(6_000))
        first.write_text(Text(many, ("red",), many))
        text = first.read_text()
        assert text.problems == ("red",)
        assert text.known == many[: len(text.known)]
        assert second.read_text() == Text()


@pytest.mark.parametrize(
    "reasons",
    [
        ("the handler's __init__ or open() failed: HTTPError: " + "<p>" * 30_000,),
        tuple(f"topic-{i} is not there: " + "x" * 300 for i in range(1_000)),
        ("\U0001f642" * 100_000, "short", "\ud800" * 100_000),
    ],
)
def test_reasons_have_room_however_long_or_many(reasons: tuple[str, ...]) -> None:
    """Who writes them must not fail of it; and what else is told keeps its own room."""
    slot = board().slots[0]
    partitions = tuple((f"topic-{i}", i) for i in range(100))
    slot.write_text(Text(partitions, reasons, partitions))
    text = slot.read_text()
    assert (text.partitions, text.known) == (partitions, partitions)
    assert text.problems[0][:20].encode() == reasons[0][:20].encode()
    assert all(len(reason) <= 1_000 for reason in text.problems)
    cut = [told for told in text.problems if len(told) == 1_000]
    assert all(told.endswith("…") for told in cut)
    assert bool(cut) == any(len(reason) > 1_000 for reason in reasons)


def test_no_part_of_the_text_takes_the_room_of_another() -> None:
    """Of what is too long each part keeps something, its first."""
    slot = board().slots[0]
    many = tuple((f"a-rather-long-topic-name-{i}", i) for i in range(5_000))
    reasons = tuple("\U0001f642" * 5_000 for _ in range(20))
    delays = tuple((f"{i}s", i, None) for i in range(5_000))
    slot.write_text(Text(many, reasons, many, delays))
    text = slot.read_text()
    told = (text.partitions, text.known, text.delays, text.problems)
    assert [len(part) > 300 for part in told] == [True, True, True, False]
    assert len(text.problems) >= 1
    assert text.delays == delays[: len(text.delays)]


def test_a_dead_letter_is_told_whatever_its_error_holds() -> None:
    slot = board().slots[0]
    slot.write_text(Text(letters=(RecentLetter("a:0:1", "rejected", "\ud800" + "x" * 5_000, 7),)))
    [letter] = slot.read_text().letters
    assert letter[:2] == ("a:0:1", "rejected")
    assert letter.error.startswith("\\ud800xxx")
    assert letter.error.endswith("…")
    assert len(letter.error) == 300


def test_a_partition_and_an_offset_fit_into_one_word():
    """The highest of each that a service may reach; beyond, a record in hand is not named."""
    slot = board().slots[0]
    slot.hand(0).take(place((1 << 15) - 1, (1 << 48) - 1), 1)
    assert slot.hand(0).read() == ((1 << 15) - 1, (1 << 48) - 1, 1)
    slot.hand(0).take(place(1 << 40, 5), 1)
    assert slot.held() == []
    slot.write_text(Text(known=tuple(("orders", number) for number in range(1 << 15))))
    assert slot.held() == []
    slot.hand(0).take(place((1 << 15) - 2, 5), 1)
    assert slot.held() == [Held("orders", (1 << 15) - 2, 5, 1)]


def test_each_reason_of_a_dead_letter_has_a_number() -> None:
    assert set(DEAD_BY_REASON) == {"rejected", "exhausted", *FINAL}


@pytest.mark.parametrize(("fields", "name"), [(RUN_TIMES, "RUNS"), (WAIT_TIMES, "WAITS")])
def test_the_counts_of_durations_are_those_of_their_bounds(
    fields: tuple[Field, ...], name: str
) -> None:
    units = {"MS": 0.001, "S": 1.0}
    named = [re.fullmatch(rf"{name}_(\d+)(MS|S)", field.name) for field in fields[:-2]]
    assert [int(each[1]) * units[each[2]] for each in named if each] == list(BOUNDS_S)
    assert [field.name for field in fields[-2:]] == [f"{name}_LONGER", f"{name}_US"]


def test_handlers_are_busy_while_they_run_and_a_batch_is_one_run() -> None:
    slot = board().slots[0]
    slot.words[Field.RUNS_US] = 2_500_000
    assert slot.busy_s(10.0) == 2.5
    slot.hand(0).take(place(0, 1), 9_000_000_000)
    slot.hand(1).take(place(0, 2), 9_000_000_000)
    assert slot.busy_s(10.0) == 3.5
    slot.hand(2).take(place(0, 3), 8_000_000_000)
    assert slot.busy_s(10.0) == 5.5
