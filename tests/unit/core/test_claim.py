"""What is written to Redis is read back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.claim import (
    OUTCOME_BYTES_MAX,
    ClaimDone,
    Claimed,
    ClaimState,
    KeptOutcome,
    pack,
    state_of,
    unpack,
)
from kworker.core.headers import SOURCE
from kworker.core.outcome import (
    NO_RESULTS,
    Output,
    Results,
    Succeeded,
    outputs_of,
    plain_result,
    size_of,
)

DATA = st.none() | st.binary(max_size=50)
OUTPUTS = st.builds(
    Output, st.text(min_size=1), DATA, DATA, st.lists(st.tuples(st.text(), DATA), max_size=3)
)


PLAIN = st.builds(
    lambda key, value, source: plain_result(
        "t", key, value, source, size_of([(SOURCE, source)], key, value)
    ),
    DATA,
    st.binary(max_size=50),
    st.binary(max_size=50),
)


def plain(results: Succeeded) -> object:
    return [(o.topic, o.key, o.value, o.headers, o.size) for o in outputs_of(results)]


@given(st.just(NO_RESULTS) | PLAIN | st.builds(Results, st.lists(OUTPUTS, min_size=1, max_size=3)))
def test_an_outcome_is_handed_on_byte_for_byte(results: Succeeded) -> None:
    """Nothing to publish is an outcome, too."""
    packed = pack(results)
    assert packed is not None
    unpacked = unpack(packed)
    assert plain(unpacked) == plain(results)
    assert (unpacked is NO_RESULTS) == (results is NO_RESULTS)


def test_an_outcome_over_64_kib_is_not_handed_on() -> None:
    """It is measured as the user sees it, not as it is packed."""
    assert pack(Results([Output("t", b"k", b"v" * (OUTCOME_BYTES_MAX - 1), [])])) is not None
    assert pack(Results([Output("t", b"k", b"v" * OUTCOME_BYTES_MAX, [])])) is None
    half = Output("t", None, b"v" * (OUTCOME_BYTES_MAX // 2), [("h", b"")])
    assert pack(Results([half, half])) is None


@pytest.mark.parametrize(
    "state",
    [
        ClaimDone(),
        Claimed("host-1/b.1/12/34", "orders/3/17"),
        KeptOutcome("orders/3/17", 'null\n"x y"'),
        KeptOutcome("orders/3/17", 'null\n"x y"', "host-1/b.1/12/34"),
    ],
)
def test_a_state_is_read_as_it_was_written(state: ClaimState) -> None:
    """Owners and positions hold no blanks."""
    assert state_of(str(state)) == state


@pytest.mark.parametrize("text", ["", "1", "c", "conly", "e", "enone", "e x", "enone\n", "x y"])
def test_a_foreign_claim_state_is_refused(text: str) -> None:
    """It must not be taken for a claim, and least for what is done."""
    with pytest.raises(ValueError, match="for an event, which kworker never writes"):
        state_of(text)
