"""Which growth is answered with a replacement, and how soon again."""

import pytest

from kworker.core.wear import Fits, Judgement, TooLargeAtFirst, Waits, Wear, WearPolicy, WornOut

MIB = 1 << 20
LIMIT = 512 * MIB


@pytest.mark.parametrize(
    ("baseline", "size", "judgement"),
    [
        (100, 512, Fits()),
        (100, 513, WornOut()),
        (600, 600, TooLargeAtFirst(600 * MIB)),
        (600, 640, TooLargeAtFirst(600 * MIB)),
        (600, 660, WornOut()),
        (500, 530, Fits()),
        (500, 560, WornOut()),
    ],
)
def test_only_memory_that_a_restart_frees_is_wear(
    baseline: int, size: int, judgement: Judgement
) -> None:
    """Over a limit that is less than its imports take, each new life would be replaced at once."""
    assert Wear(WearPolicy()).weigh(size * MIB, baseline * MIB, LIMIT, 0.0) == judgement


def leaks(wear: Wear, lives: int, *, after_s: float) -> list[float]:
    """Lives that are over the limit so long after they began; how old each was when replaced."""
    ages, now = [], 0.0
    for _ in range(lives):
        wear.begins(now)
        began, now = now, now + after_s
        match wear.weigh(600 * MIB, 100 * MIB, LIMIT, now):
            case Waits(for_s):
                now += for_s
        assert wear.weigh(600 * MIB, 100 * MIB, LIMIT, now) == WornOut()
        wear.replaced(now)
        ages.append(now - began)
    return ages


def test_replacements_of_a_slot_wait_1_to_30_minutes() -> None:
    """One every 5 s, for ever, is an outage that looks like health."""
    assert leaks(Wear(WearPolicy()), 8, after_s=5.0) == [5, 60, 120, 240, 480, 960, 1800, 1800]


def test_a_slow_leak_never_waits_for_its_replacement() -> None:
    assert leaks(Wear(WearPolicy()), 4, after_s=2000.0) == [2000.0] * 4


def test_growth_of_more_than_the_limit_is_replaced_at_once() -> None:
    """Memory stays bounded while a replacement is put off."""
    wear = Wear(WearPolicy())
    leaks(wear, 3, after_s=5.0)
    now = 200.0
    assert isinstance(wear.weigh(600 * MIB, 100 * MIB, LIMIT, now), Waits)
    assert wear.weigh(613 * MIB, 100 * MIB, LIMIT, now) == WornOut()
