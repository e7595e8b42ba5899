"""The oracles can see: each finds the contradiction that it is there for, and no other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.offset_map import encode
from tests.support import oracles
from tests.support.history import Commit, decode_key, decode_value, java_hash
from tests.support.kafka import Read
from tests.support.ledgers import STOPPED, Fault, Invocation, Produced
from tests.support.maps import named_beyond

AT = ("orders", 0)
MS = 1_000_000
KEY = b"\x00\x01\x00\x05group\x00\x06orders\x00\x00\x00\x07"
VALUE_3 = b"\x00\x03" + b"\x00" * 7 + b"\x2a" + b"\xff" * 4 + b"\x00\x01m" + b"\x00" * 7 + b"\x09"
VALUE_4 = (
    b"\x00\x04" + b"\x00" * 7 + b"\x2a" + b"\xff" * 4 + b"\x02m" + b"\x00" * 7 + b"\x09"
    b"\x01\x00\x10" + b"u" * 16
)


def produced(*offsets: int, key: str = "k") -> list[Produced]:
    return [Produced(str(offset), AT, offset, key, 0) for offset in offsets]


def run(
    offset: int, start: int, end: int | None, *, pid: int = 1, raised: bool = False
) -> Invocation:
    """One run, in milliseconds."""
    over = None if end is None else end * MS
    return Invocation(pid, AT, offset, 1, "k", start * MS, over, raised)


def result(offset: int) -> Read:
    source = f"orders/0/{offset}/0".encode()
    return Read(("results", 0), 0, None, b"", {"kworker-source": source}, 0)


def commit(position: int, time_ms: int) -> Commit:
    return Commit(AT, position, "", time_ms)


def killed(pid: int, at_ms: int) -> Fault:
    return Fault("kill -9", pid, 0, (AT,), at_ms * MS, at_ms * MS, 1)


def stopped(pid: int, from_ms: int, to_ms: int) -> Fault:
    return Fault(STOPPED, pid, 0, (AT,), from_ms * MS, to_ms * MS, 1)


def test_a_record_that_only_failed_or_was_cut_off_is_lost() -> None:
    """A beginning is not an end."""
    runs = [run(0, 1, 2), run(1, 1, 2, raised=True), run(2, 1, None)]
    assert oracles.lost(produced(0, 1, 2, 3), runs) == [(*AT, 1), (*AT, 2), (*AT, 3)]
    assert oracles.phantoms(produced(0, 1), runs) == [(*AT, 2)]


def test_results_are_counted_against_ends() -> None:
    """A record handled twice may have two results, one handled once may not."""
    runs = [run(0, 1, 2), run(0, 3, 4), run(1, 1, 2)]
    results = [result(0), result(0), result(1), result(1)]
    assert oracles.results_too_many(results, runs) == [(*AT, 1)]
    assert oracles.without_result(produced(1, 2), results) == [(*AT, 2)]


def test_a_commit_above_a_record_that_ends_later_is_unsafe() -> None:
    """Whichever of those below it was the last; a gap between offsets is none of them."""
    ends = oracles.first_ends([run(0, 1, 50), run(3, 1, 20), run(4, 1, 90)])
    records = produced(0, 3, 4)
    safe = [commit(0, 1), commit(3, 51), commit(4, 51), commit(5, 90)]
    assert oracles.unsafe(safe, records, ends) == []
    early, never = commit(4, 40), commit(9, 200)
    assert oracles.unsafe([early], records, ends) == [(early, (*AT, 0))]
    assert oracles.unsafe([never], [*records, *produced(8)], ends) == [(never, (*AT, 8))]


def test_a_map_that_names_a_record_before_its_end_is_unsafe() -> None:
    """The first that names it; and what it names was committed when its process was killed."""
    runs = [run(0, 1, None), run(1, 1, 50), run(2, 1, 20), run(1, 90, 91, pid=2)]
    safe = Commit(AT, 0, encode(bytes(16), 0, [(2, 3)]), 30)
    early = Commit(AT, 0, encode(bytes(16), 0, [(1, 3)]), 40)
    ends = oracles.first_ends(runs)
    assert oracles.unsafe_maps([safe, early], produced(0, 1, 2), ends) == [(early, (*AT, 1))]
    fault = killed(1, 80)
    repeats = oracles.repeated(runs)
    assert oracles.unexplained(repeats, [fault], [safe], {1, 2}) == []
    assert oracles.unexplained(repeats, [fault], [safe, early], {1, 2}) == repeats


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=40))
def test_maps_are_read_as_they_were_written(lengths: list[tuple[int, int]]) -> None:
    """By other code; and the smaller form is not always the same."""
    runs, end = [], 7
    for gap, length in lengths:
        runs.append((end + gap, end + gap + length))
        end = runs[-1][1]
    told = named_beyond(7, encode(bytes(16), 7, runs))
    assert [offset for run in told for offset in run] == [o for run in runs for o in range(*run)]


def test_a_position_that_goes_back_is_seen() -> None:
    """In the order of the log, whatever the clock says."""
    commits = [commit(5, 10), commit(4, 10), commit(6, 9)]
    assert oracles.backward(commits) == [(commits[0], commits[1])]
    assert oracles.short_of_the_end({AT: 6}, {AT: 5}) == {AT: 1}


def test_a_kill_explains_only_repeats_not_yet_committed() -> None:
    """What was committed before the kill must not come again; nor anything without a kill."""
    runs = [run(0, 1, 2), run(1, 3, 4), run(0, 30, 31, pid=2), run(1, 32, 33, pid=2)]
    repeats = oracles.repeated(runs)
    fault = killed(1, 20)
    assert oracles.unexplained(repeats, [fault], [commit(0, 1)], {1, 2}) == []
    assert oracles.unexplained(repeats, [fault], [commit(1, 10)], {1, 2}) == [(runs[0], runs[2])]
    assert oracles.unexplained(repeats, [], [commit(0, 1)], {1, 2}) == repeats
    assert oracles.unexplained(repeats, [killed(1, 40)], [commit(0, 1)], {1, 2}) == repeats


def test_the_kill_of_a_worker_explains_its_isolated_repeats() -> None:
    """It ends with its worker. The kill of another, or one before the run, explains nothing."""
    repeats = oracles.repeated([run(0, 3, 4, pid=7), run(0, 30, 31, pid=2)])
    [fault] = faults = [killed(1, 20)]
    elsewhere = replace(fault, partitions=(("other", 0),))
    assert oracles.unexplained(repeats, faults, [], {1, 2}) == []
    assert oracles.unexplained(repeats, faults, [], {1, 2, 7}) == repeats
    assert oracles.unexplained(repeats, [elsewhere], [], {1, 2}) == repeats
    assert oracles.unexplained(repeats, [killed(1, 40)], [], {1, 2}) == repeats
    late = oracles.repeated([run(0, 300, 310, pid=7), run(0, 400, 410, pid=2)])
    assert oracles.unexplained(late, faults, [], {1, 2}) == late
    assert oracles.unexplained(repeats, faults, [commit(1, 10)], {1, 2}) == repeats


def test_a_retry_does_not_count_as_a_repeat() -> None:
    """It raised, so it is not done."""
    assert oracles.repeated([run(0, 1, 2, raised=True), run(0, 3, 4)]) == []


@pytest.mark.parametrize(
    "runs",
    [
        [run(0, 1, 5), run(1, 4, 6)],  # overlapping
        [run(1, 1, 2), run(0, 3, 4)],  # changing places
        [run(0, 1, 2, raised=True), run(1, 3, 4), run(0, 5, 6)],  # overtaking a retry
        [run(0, 1, None), run(1, 3, 4)],  # before the other ended
    ],
)
def test_overlapping_or_swapped_records_of_a_key_are_disordered(runs: list[Invocation]) -> None:
    """Order is by offset, and one at a time."""
    assert oracles.disordered(runs) != []


def test_a_kill_ends_what_the_process_had_begun() -> None:
    """So the next process may begin it again."""
    runs = [run(0, 1, None), run(0, 30, 31, pid=2), run(1, 32, 33, pid=2)]
    assert oracles.disordered(runs, [killed(1, 20)]) == []
    assert oracles.disordered(runs, [killed(1, 31)]) != []


def test_the_kill_of_a_worker_ends_its_isolated_runs() -> None:
    """A moment later, at most: until then the next one may not begin it."""
    runs = [run(0, 1, None, pid=7), run(0, 300, 301, pid=2), run(1, 302, 303, pid=2)]
    fault = killed(1, 20)
    assert oracles.disordered(runs, [fault], {1, 2}) == []
    assert oracles.disordered(runs, [fault], {1, 2, 7}) != []
    assert oracles.disordered(runs, [replace(killed(7, 20), partitions=())], {1, 2}) == []
    assert oracles.disordered(runs, [replace(fault, partitions=())], {1, 2}) != []
    assert oracles.disordered(runs, [killed(1, 299)], {1, 2}) != []
    assert oracles.disordered([run(0, 200, None, pid=7), *runs[1:]], [fault], {1, 2}) != []


def test_a_stopped_worker_may_go_on_for_a_moment() -> None:
    """Before it knows that all of it is another's; not for long, and nobody else may."""
    fault = stopped(1, 10, 200)
    spans, stray = run(0, 5, 201), run(1, 205, 206)
    runs = [spans, run(0, 100, 101, pid=2), run(1, 102, 103, pid=2), stray]
    repeats = oracles.repeated(runs)
    assert len(repeats) == 2
    assert oracles.unexplained(repeats, [fault], [], {1, 2}) == []
    assert oracles.disordered(runs, [fault]) == []
    assert oracles.disordered(runs, [replace(fault, what="kill -9 worker")]) != []
    late = [*runs[:-1], run(1, 205 + oracles.STRAYS_MS, 900)]
    assert oracles.unexplained(oracles.repeated(late), [fault], [], {1, 2}) == [(late[2], late[3])]
    assert oracles.disordered([*late, run(2, 800, 801)], [fault]) != []
    other = [*runs[:-1], replace(stray, pid=3)]
    assert oracles.unexplained(oracles.repeated(other), [fault], [], {1, 2}) != []


@pytest.mark.parametrize("value", [VALUE_3, VALUE_4])
def test_commits_are_decoded(value: bytes) -> None:
    """Both versions that brokers write; a key of another group is none of ours."""
    at = decode_key(KEY, "group")
    assert at == ("orders", 7)
    assert decode_value(at, value) == Commit(at, 42, "m", 9)
    assert decode_key(KEY, "other") is None
    assert decode_key(b"\x00\x02\x00\x05group", "group") is None


def test_a_groups_partition_is_found_as_java_does() -> None:
    """Also where the hash is negative."""
    assert java_hash("hello") == 99162322
    assert java_hash("orders") == -1008770331
