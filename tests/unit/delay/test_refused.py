"""Partitions that Kafka refuses: each is tried by itself, and none of them takes all turns."""

from kworker.delay.refused import RefusedPartitions

BAD, WORSE, SUSPECT, FINE = ("retry", 0), ("retry", 1), ("retry", 2), ("retry", 3)
WHY = "refused: too large"


def test_a_refused_partition_rests_while_others_can_go() -> None:
    """In the back-off before, nothing can be forwarded."""
    refusals = RefusedPartitions(rest_s=1.0)
    refusals.refused([BAD], WHY)
    refusals.resumed(100.0)
    assert refusals.choose([BAD, FINE], 100.9) == [FINE]
    assert refusals.choose([BAD, FINE], 101.0) == [BAD]


def test_two_bad_partitions_do_not_take_turns_by_themselves() -> None:
    """Each would be awake when the other one's back-off is over."""
    refusals = RefusedPartitions(rest_s=1.0)
    refusals.refused([BAD, WORSE], WHY)
    refusals.refused([BAD], WHY)
    refusals.resumed(100.0)
    assert refusals.choose([BAD, WORSE, FINE], 100.0) == [FINE]
    assert refusals.choose([BAD, WORSE, FINE], 101.0) == [WORSE]
    refusals.refused([WORSE], WHY)
    refusals.resumed(102.0)
    assert refusals.choose([BAD, WORSE, FINE], 102.0) == [FINE]
    assert refusals.choose([BAD, WORSE], 102.0) == [BAD]  # nobody waits for it


def test_a_suspect_is_tried_before_what_was_refused_again() -> None:
    """It was only in bad company, and its records are due."""
    refusals = RefusedPartitions(rest_s=1.0)
    refusals.refused([BAD, WORSE, SUSPECT], WHY)
    for now, bad in ((100.0, BAD), (102.0, WORSE)):
        refusals.refused([bad], WHY)
        refusals.resumed(now)
    assert refusals.choose([BAD, WORSE, SUSPECT], 104.0) == [SUSPECT]
    refusals.accepted([SUSPECT])
    assert refusals.choose([BAD, WORSE], 104.0) == [BAD]
