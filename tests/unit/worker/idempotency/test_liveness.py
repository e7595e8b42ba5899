"""Whose claims may be taken over: silence counts only while it could have been broken."""

from kworker.worker.idempotency.liveness import OwnerLiveness

LEASE_S = 30.0


def watching(*heard: tuple[float, int | None]) -> OwnerLiveness:
    """Met at 0, heard at these times with these beats; an answer takes no time."""
    silence = OwnerLiveness(LEASE_S)
    silence.watch("host/1", 0.0)
    for at, beat in heard:
        silence.update(dict.fromkeys(silence.owners, beat), at, at)
    return silence


def every(seconds: int, *, to: int, beat: int | None = 7) -> list[tuple[float, int | None]]:
    return [(float(at), beat) for at in range(0, to + 1, seconds)]


def test_a_beat_that_stands_still_for_a_lease_is_death() -> None:
    """And not before."""
    assert not watching(*every(5, to=25)).is_dead("host/1")
    assert watching(*every(5, to=30)).is_dead("host/1")
    assert watching(*every(5, to=30, beat=None)).is_dead("host/1")


def test_a_beat_that_moves_is_life() -> None:
    """Whatever was before it: the lease begins anew."""
    assert not watching(*every(5, to=25), (30.0, 8), (35.0, 8), (55.0, 8)).is_dead("host/1")


def test_time_without_an_answer_does_not_count() -> None:
    """Nobody could renew while Redis was away, however long: each watch begins anew."""
    silence = watching(*every(5, to=25))
    silence.interrupted()
    silence.watch("host/1", 1000.0)
    for at in (1000.0, 1010.0, 1020.0):
        silence.update({"host/1": 7}, at, at)
        assert not silence.is_dead("host/1")
    silence.update({"host/1": 7}, 1030.0, 1030.0)
    assert silence.is_dead("host/1")


def test_a_gap_between_looks_proves_no_death() -> None:
    """A gap in the looking may hide an outage, or this process was stopped itself."""
    assert not watching((0.0, 7), (31.0, 7)).is_dead("host/1")


def test_a_slow_answer_is_no_silence() -> None:
    """From an answer to the next question: what lay within the calls is not known."""
    silence = OwnerLiveness(LEASE_S)
    silence.watch("host/1", 0.0)
    silence.update({"host/1": 7}, 0.0, 2.0)
    for at in (10.0, 20.0, 31.0):
        silence.update({"host/1": 7}, at, at + 2.0)
    assert not silence.is_dead("host/1")
    silence.update({"host/1": 7}, 36.0, 36.0)
    assert silence.is_dead("host/1")


def test_an_owner_that_blocks_no_record_is_forgotten() -> None:
    """Else every call would ask for all that ever lived."""
    silence = watching(*every(10, to=200))
    assert silence.owners == []
    assert not silence.is_dead("host/1")
