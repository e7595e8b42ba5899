"""A commit's metadata: its map whole or not at all, its topic known, never longer than taken."""

import random
from base64 import b64encode
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kworker.core import offset_map
from kworker.core.offset_map import (
    MAP_BITS_MAX,
    METADATA_MAX,
    Committed,
    Ignored,
    OffsetRange,
    Settled,
    TopicIdentity,
    decode,
    encode,
    fits,
    origin_of,
    same_topic,
    unsettled_max,
)

PLACE = ("orders", 3)
HERE = TopicIdentity("cluster", "topic id")
ORIGIN = origin_of(HERE, PLACE)
FORMER = origin_of(TopicIdentity("cluster", "former id"), PLACE)
ELSEWHERE = {
    "another cluster": origin_of(TopicIdentity("another", "topic id"), PLACE),
    "another topic": origin_of(HERE, ("others", 3)),
    "another partition": origin_of(HERE, ("orders", 4)),
    # As mirroring makes it.
    "all of it": origin_of(TopicIdentity("another", "another id"), ("dc2.orders", 3)),
}
FOREIGN = [pytest.param(each, id=what) for what, each in {"former": FORMER, **ELSEWHERE}.items()]
BASE = 1_000
LENGTHS = st.one_of(
    st.integers(1, 4), st.integers(60, 70), st.integers(120, 140), st.integers(8_000, 20_000)
)


@st.composite
def some_runs(draw: st.DrawFn, most: int = 60) -> list[OffsetRange]:
    """Runs beyond BASE, some of them long, and few offsets between them."""
    found, end = [], BASE
    for gap, length in draw(st.lists(st.tuples(st.integers(1, 70), LENGTHS), max_size=most)):
        found.append((end + gap, end + gap + length))
        end = found[-1][1]
    return found


@given(some_runs())
def test_an_offset_map_is_read_as_it_was_written(runs: list[OffsetRange]) -> None:
    text = encode(ORIGIN, BASE, runs)
    assert decode(text, ORIGIN, BASE) == runs
    held = Committed(BASE, text)
    assert same_topic(held, ORIGIN) is True
    assert same_topic(held, FORMER) is False
    assert {same_topic(held, each) for each in ELSEWHERE.values()} == {None}


@given(some_runs(most=8), st.data())
def test_a_character_that_is_damaged_is_noticed_or_does_no_harm(
    runs: list[OffsetRange], data: st.DataObject
) -> None:
    """A map that names other records than those that are done would lose them.

    And a position that is taken for a former topic's is given up.
    """
    text = encode(ORIGIN, BASE, runs)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.one_of(st.sampled_from(text), st.characters()))
    damaged = text[:at] + other + text[at + 1 :]
    found = decode(damaged, ORIGIN, BASE)
    assert isinstance(found, Ignored) or found == runs
    assert same_topic(Committed(BASE, damaged), ORIGIN) is not False


@given(some_runs(most=8), st.data())
def test_a_text_that_is_cut_or_goes_on_is_noticed(
    runs: list[OffsetRange], data: st.DataObject
) -> None:
    text = encode(ORIGIN, BASE, runs)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for other in (cut, text + data.draw(st.text(min_size=1, max_size=5))):
        found = decode(other, ORIGIN, BASE)
        assert isinstance(found, Ignored) or found == ([] if not other else runs)
        assert same_topic(Committed(BASE, other), ORIGIN) is not False


@given(st.text(), st.binary(max_size=80), st.integers(0, 1 << 62))
@example("", bytes(29), 0)
def test_foreign_metadata_never_raises_nor_names_old_offsets(
    text: str, body: bytes, position: int
) -> None:
    """Other tools write there what they like."""
    checked = body + offset_map.crc32(body).to_bytes(4)
    for each in (text, "kworker2:" + text, "kworker2:" + b64encode(checked).decode()):
        found = decode(each, ORIGIN, position)
        assert isinstance(found, Ignored) or all(begin > position for begin, _ in found)
        assert same_topic(Committed(position, each), ORIGIN) is None


@given(st.binary(min_size=1, max_size=60), st.one_of(st.integers(0, 8), st.integers(0, 255)))
@example(b"\x80", 255)
def test_decoded_ranges_ascend_and_do_not_touch(told: bytes, parameter: int) -> None:
    """A later version of this code may have a bug that its check sum does not know of."""
    body = offset_map._HEAD.pack(ORIGIN, BASE, parameter) + told
    text = "kworker2:" + b64encode(body + offset_map.crc32(body).to_bytes(4)).decode()
    found = decode(text, ORIGIN, BASE)
    if isinstance(found, Ignored):
        assert found.kind == "damaged"
        return
    edges = [BASE, *(edge for run in found for edge in run)]
    assert edges == sorted(set(edges))


def test_an_empty_offset_map_takes_49_characters() -> None:
    """Most commits are so, each partition's once in an interval."""
    assert len(encode(ORIGIN, (1 << 63) - 1, [])) == 49


def test_foreign_metadata_does_not_identify_a_topic() -> None:
    """Kafka's own tools put a group elsewhere without metadata; positions are believed then.

    Some leave there what they find, which is of another position.
    """
    assert decode("", ORIGIN, BASE) == []
    for text in ("", "AQAAAZ", encode(FORMER, BASE - 1, []), encode(ORIGIN, BASE - 1, [])):
        assert same_topic(Committed(BASE, text), ORIGIN) is None


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("base", [BASE, BASE - 1])
def test_a_position_without_a_map_has_none_to_ignore(origin: bytes, base: int) -> None:
    """After a move to another cluster each partition would be said to be done again."""
    assert decode(encode(origin, base, []), ORIGIN, BASE) == []


def test_a_position_of_a_former_topic_settles_nothing() -> None:
    """With a map or without; one that came from elsewhere is believed, but for its map."""
    of_former = Committed(BASE, encode(FORMER, BASE, []))
    mapped = Committed(BASE, encode(FORMER, BASE, [(1_001, 1_002)]))
    assert {Settled.of(each, HERE, PLACE).end for each in (of_former, mapped)} == {0}
    for origin in ELSEWHERE.values():
        held = Committed(BASE, encode(origin, BASE, [(1_001, 1_002)]))
        assert Settled.of(held, HERE, PLACE) == Settled(BASE)
    assert Settled.of(mapped, None, PLACE) == Settled(BASE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("AQAAAZ", "not written by kworker"),
        ("kworker1:AQAAAZ", "of another version"),
        *(
            (encode(origin, BASE, [(1_001, 1_002)]), "of another cluster, topic or partition")
            for origin in (FORMER, *ELSEWHERE.values())
        ),
        (encode(ORIGIN, BASE - 1, [(1_001, 1_002)]), "of position 999, not 1000"),
    ],
)
def test_an_offset_map_of_another_log_or_position_is_foreign(text: str, why: str) -> None:
    """A topic that was made again; or MirrorMaker, which pairs a position with what it finds."""
    found = decode(text, ORIGIN, BASE)
    assert isinstance(found, Ignored)
    assert found.kind == "foreign"
    assert why in found.why


def test_thousands_of_scattered_records_take_a_bit_each() -> None:
    runs = [(BASE + 1 + n, BASE + 2 + n) for n in range(0, 20_000, 2)]
    text = encode(ORIGIN, BASE, runs)
    assert len(text) < 20_000 / 8 * 4 / 3 + 60
    assert decode(text, ORIGIN, BASE) == runs


def test_millions_beyond_one_record_take_a_few_bytes() -> None:
    assert len(encode(ORIGIN, BASE, [(BASE + 1, BASE + 5_000_000)])) < 64


def test_one_of_twelve_unsettled_takes_six_bits() -> None:
    """As where one key is slow."""
    runs = [(BASE + 12 * n + 1, BASE + 12 * n + 12) for n in range(4_000)]
    assert len(encode(ORIGIN, BASE, runs)) < 4_000 * 6 / 8 * 4 / 3 + 60
    assert decode(encode(ORIGIN, BASE, runs), ORIGIN, BASE) == runs


def test_the_longest_offset_map_fits_and_a_longer_one_raises() -> None:
    """A commit with it would be refused, and the position with it."""
    runs = [(BASE + 1 + n, BASE + 2 + n) for n in range(0, MAP_BITS_MAX, 2)]
    assert METADATA_MAX - 4 < len(encode(ORIGIN, BASE, runs)) <= METADATA_MAX
    with pytest.raises(ValueError, match="is too large for a commit"):
        encode(ORIGIN, BASE, [(b + 1000 * i, e + 1000 * i) for i, (b, e) in enumerate(runs)])


@settings(max_examples=200)
@given(st.lists(LENGTHS, min_size=1, max_size=300), st.randoms(use_true_random=False), LENGTHS)
def test_the_foreseen_map_size_is_never_exceeded(
    lengths: list[int], chance: random.Random, last: int
) -> None:
    """In whatever order the records end that are not done; the fewer they are, the less it is."""
    opened, at = [BASE], BASE
    for length in lengths:
        at += 1 if chance.random() < 0.5 else length
        opened.append(at)
    end = at + 1 + last
    left = sorted(chance.sample(opened, chance.randint(1, len(opened))))
    runs = [(one + 1, other) for one, other in pairwise([*left, end]) if one + 1 < other]
    _, code = offset_map._golomb_rice(left[0], runs)
    foreseen = offset_map._bits_max(len(opened), end - BASE)
    assert 8 * len(code) < offset_map._bits_max(len(left), end - left[0]) + 8 <= foreseen + 8


@given(st.integers(1, 5_000), st.integers(1, 1 << 62))
def test_no_other_parameter_makes_a_smaller_map(unsettled: int, more: int) -> None:
    span = unsettled + more
    of_each = [unsettled * (k + 1) + ((span - unsettled) >> k) for k in range(63)]
    assert offset_map._bits_max(unsettled, span) == min(of_each)


def test_few_unsettled_records_never_stop_their_partition() -> None:
    """Any number of records may finish beyond one that is stuck."""
    assert all(fits(400, 10**exponent) for exponent in range(1, 19))
    assert unsettled_max(40_000) > 4_500
    assert unsettled_max(5_000_000) > 1_800
    assert not fits(3_000, 1_000_000)
    assert fits(MAP_BITS_MAX, MAP_BITS_MAX)
