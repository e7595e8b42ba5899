"""Delivery reports of outputs that have a number, since they have no record of their own."""

from collections.abc import Sequence
from typing import NamedTuple

from kworker.clients.delivery import Refused


class FailedDelivery(NamedTuple):
    """A delivery report of an output that failed: the client's error and the message."""

    number: int
    error: object
    message: object


class NumberedReports:
    """Callbacks for delivery reports, each with a number; they are used again for later outputs.

    A callback for each output would be one object more for each. Owned by the poll thread.
    """

    def __init__(self) -> None:
        self.failed: list[FailedDelivery] = []
        self._callbacks: list[Refused] = []

    def callbacks(self, begin: int, number: int) -> Sequence[Refused]:
        """Returns those with the numbers from `begin` on."""
        own, end = self._callbacks, begin + number
        own.extend([_Callback(self.failed, n) for n in range(len(own), end)])
        return own[begin:end]

    def take_failed(self) -> list[FailedDelivery]:
        """Returns the failed deliveries that were reported since the last call."""
        found = self.failed[:]
        self.failed.clear()
        return found


class _Callback:
    """Called by the client with the error and the message of an output that it did not write."""

    __slots__ = ("_failed", "_number")

    def __init__(self, failed: list[FailedDelivery], number: int) -> None:
        self._failed = failed
        self._number = number

    def __call__(self, error: object, message: object) -> None:
        self._failed.append(FailedDelivery(self._number, error, message))
