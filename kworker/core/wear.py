"""The replacement of workers that have grown over their memory limit."""

from dataclasses import dataclass
from typing import assert_never

from kworker.core.restart import Backoff


@dataclass(frozen=True, slots=True)
class WearPolicy:
    """The limits on replacing a worker that uses too much memory.

    `gives_back` is the least memory that a replacement must free, as a share of the memory limit.
    The next replacement is put off for `first_s` at first, and for `longest_s` at most.
    """

    gives_back: float = 0.1  # of the limit, at least
    first_s: float = 60.0  # between two replacements of one slot, doubling
    longest_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Fits:
    """The worker is within its memory limit, or a replacement would free too little memory."""


@dataclass(frozen=True, slots=True)
class TooLargeAtFirst:
    """The worker was over its memory limit before its first record; a new one would be so again."""

    baseline_bytes: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The worker is over its memory limit, but the last replacement is too recent for another."""

    for_s: float


@dataclass(frozen=True, slots=True)
class WornOut:
    """The worker is over its memory limit, and must be replaced now."""


Judgement = Fits | TooLargeAtFirst | Waits | WornOut


class Wear:
    """Decides when the worker process in one slot is replaced because it uses too much memory.

    Times are monotonic seconds. The baseline is the size of the process at its first poll, which
    includes imported handlers and opened clients. Growth is the size beyond the baseline. If the
    last replacement was a short time ago, the next one is put off, unless the worker has grown by
    more than the memory limit itself.
    """

    def __init__(self, policy: WearPolicy) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.first_s, policy.longest_s, 2 * policy.longest_s)
        self._began = 0.0
        self._not_before = float("-inf")

    def begins(self, now: float) -> None:
        """Notes the start of a new process."""
        self._began = now

    def weigh(
        self, size_bytes: int, baseline_bytes: int, limit_bytes: int, now: float
    ) -> Judgement:
        """Returns whether the worker process must be replaced for its memory. Changes nothing.

        `baseline_bytes` is the size of the process at its first poll. That poll must be over.
        """
        grown = size_bytes - baseline_bytes
        if size_bytes > limit_bytes and grown >= limit_bytes * self._policy.gives_back:
            if now >= self._not_before or grown > limit_bytes:
                return WornOut()
            return Waits(self._not_before - now)
        if baseline_bytes > limit_bytes:
            return TooLargeAtFirst(baseline_bytes)
        return Fits()

    def replaced(self, now: float) -> None:
        """Notes that a new process replaces the worker's present one.

        The next replacement is put off for longer, unless the replaced process has lived long.
        """
        self._not_before = now + self._backoff.failed(now - self._began)


def reason(judgement: Judgement, size_bytes: int, limit_bytes: int) -> str:
    """Returns a text that says why a worker uses too much memory, and what follows.

    The text continues a sentence whose subject is the worker. Returns "" for `Fits`.
    """
    most = f"over workers.memory = {_mebibytes(limit_bytes)}"
    match judgement:
        case TooLargeAtFirst(baseline_bytes):
            return (
                f"took {_mebibytes(baseline_bytes)} before its first record, {most}: replacing it"
                " cannot help; raise workers.memory, or import less"
            )
        case Waits(for_s):
            return (
                f"has grown to {_mebibytes(size_bytes)}, {most}, and was replaced for that lately:"
                f" the next replacement is due in {for_s:.0f} s"
            )
        case WornOut():
            return f"has grown to {_mebibytes(size_bytes)}, {most}: it is drained and replaced"
        case Fits():
            return ""
        case _:
            assert_never(judgement)


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"
