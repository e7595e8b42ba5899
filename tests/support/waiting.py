"""Waiting for a condition, the only way in which these tests let time pass."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], *, timeout_s: float = 30.0, every_s: float = 0.02, what: str = ""
) -> T:
    """The first true value of `condition`, asked again and again; AssertionError after the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what or condition}")
        time.sleep(every_s)


def repeated(
    experiment: Callable[[int], T], valid: Callable[[T], bool], *, tries: int = 5, what: str = ""
) -> T:
    """The first valid outcome of an experiment that may miss, called with 0, 1 …

    AssertionError with all that was seen, if it missed each time: then it is not chance.
    """
    seen: list[T] = []
    for number in range(tries):
        seen.append(experiment(number))
        if valid(seen[-1]):
            return seen[-1]
    raise AssertionError(f"missed {tries} times: {what or valid}; seen: {seen}")
