"""The judgement that the memory of kworker is flat under back pressure."""

import signal
from collections.abc import Sequence

import pytest

from bench import backpressure
from bench.backpressure import Act, Sample

MIB = 1 << 20


def samples(mebibytes: Sequence[float], *, start: Sequence[float] = ()) -> list[Sample]:
    """A sample each 0.1 s; during the start no message is in memory."""
    seen = [(each, 0) for each in start] + [(each, 200) for each in mebibytes]
    return [Sample(i / 10, int(each * MIB), held) for i, (each, held) in enumerate(seen)]


def judged(seen: list[Sample]) -> bool:
    acts = {
        "instant": Act("does nothing", 0, 1.0, 10, "cgroup v2"),
        "unbounded": Act("calls without a limit", -signal.SIGKILL, 1.0, 2, "cgroup v2"),
        "kworker": Act("kworker", 0, 4.0, 10, "cgroup v2", seen),
    }
    return backpressure.verdict(acts, 10)


@pytest.mark.parametrize(
    ("mebibytes", "share", "flat"),
    [
        ([100] * 40, 0.0, True),
        ([100] * 20 + [125] + [100] * 19, 0.25, True),
        ([100] * 20 + [126] + [100] * 19, 0.26, False),
        ([100 + 5 * i for i in range(40)], 150 / 145, False),  # 5 MiB each 0.1 s
        ([120] * 10 + [200] * 10 + [90] * 20, -0.25, True),  # the second quarter may settle
    ],
)
def test_memory_is_flat_if_it_stays_near_its_first_peak(
    mebibytes: list[float], share: float, *, flat: bool
) -> None:
    seen = samples(mebibytes)
    assert backpressure.growth(seen) == pytest.approx(share)
    assert judged(seen) is flat


def test_the_memory_of_a_start_is_no_growth() -> None:
    """The processes that come one after the other have no message yet."""
    seen = samples([100] * 40, start=[10 + i for i in range(30)])
    assert backpressure.growth(seen) == 0.0


@pytest.mark.parametrize("seen", [[], samples([], start=[50] * 40), samples([50, 90] * 5)])
def test_a_run_too_short_to_tell_is_not_judged(seen: list[Sample]) -> None:
    assert backpressure.growth(seen) is None
    assert judged(seen)
    assert "too soon to tell" in backpressure.told_growth(None)


def test_the_growth_is_told_with_its_limit() -> None:
    told = backpressure.told_growth(0.031)
    assert told == "memory of kworker after the first quarter: +3%, at most +25%"
