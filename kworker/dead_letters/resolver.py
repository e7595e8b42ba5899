"""Doing something about dead letters: in transactions, one command at a time, resumable."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from kworker.clients.errors import KafkaRequestError
from kworker.clock import now_ms
from kworker.core.outcome import Output
from kworker.dead_letters.repair import RateLimit, RepairStep, batches
from kworker.dead_letters.resolutions import How, Resolution, resolved
from kworker.errors import AlreadyRunning, Unreachable

T = TypeVar("T")

_LOOK_S = 0.05  # between two looks at whether a wait is to end


class ResolverTransactor(Protocol):
    """What is needed of `KafkaTransactor` or its twin."""

    def open(self) -> None: ...
    def begin(self) -> None: ...
    def produce(self, output: Output) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Signature:
    """What is noted of each dead letter that is resolved, and where."""

    state_topic: str
    dead_topic: str
    how: How
    by: str  # user@host
    transactional_id: str  # of all such commands of the service


class Resolver:
    """Writes records and the resolutions of their dead letters together, all or nothing.

    Used by one thread. All such commands of a service have one transactional id, so `open`
    fences the one before: what the state topic says then holds until this one is fenced
    itself, and can write no more.
    """

    def __init__(self, transactor: ResolverTransactor, signature: Signature) -> None:
        self._transactor = transactor
        self._signature = signature

    def open(self) -> None:
        """Waits for the end of what an earlier one has begun. Raises as `resolve` does."""
        with self._told():
            self._transactor.open()

    def resolve(self, batch: Iterable[RepairStep]) -> None:
        """One transaction. Raises AlreadyRunning when fenced, Unreachable otherwise.

        After either it is of no more use. Whether the batch was written, the state topic tells
        whoever opens the next one.
        """
        now = now_ms()
        with self._told():
            self._transactor.begin()
            for step in batch:
                if step.output is not None:
                    self._transactor.produce(step.output)
                self._transactor.produce(self._resolved(step, now))
            self._transactor.commit()

    def _resolved(self, step: RepairStep, now: int) -> Output:
        signature = self._signature
        resolution = Resolution(signature.how, signature.by, now)
        return resolved(signature.state_topic, signature.dead_topic, step.identity, resolution)

    def close(self) -> None:
        """What is open is given up."""
        self._transactor.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except KafkaRequestError as error:
            raise self._failure(error) from None

    def _failure(self, error: KafkaRequestError) -> AlreadyRunning | Unreachable:
        again = "the same command again goes on, and does nothing twice"
        if error.retriable:
            return Unreachable(f"Kafka did not take it ({error}): {again}")
        signature = self._signature
        return AlreadyRunning(
            f"another command has taken over the dead letters of {signature.dead_topic}, or a"
            f" stranger the transactional id {signature.transactional_id}: when that has ended,"
            f" {again}"
        )


class Stop:
    """Whether somebody wants the end, after the transaction under way.

    A first signal is noted; a second one does what it always does.
    """

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM, while the block runs."""
        before = {number: signal.signal(number, self._note) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, _ENDING[signal.Signals(number)])

    def until(self, items: Iterable[T]) -> Iterator[T]:
        """The items, until it is asked for."""
        for item in items:
            if self.asked:
                return
            yield item

    def wait(self, until_s: float) -> None:
        """Until that time (monotonic), or until it is asked for."""
        while not self.asked and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))


_ENDING: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def run(
    steps: Iterable[RepairStep],
    resolver: Resolver,
    pace: RateLimit,
    stop: Stop,
    tell: Callable[[int], None],
) -> int:
    """Takes the steps, at the pace, until they end or it is asked to stop; how many it took.

    `tell` hears of that number after each transaction. Raises as `Resolver.resolve` does.
    """
    done, due_s = 0, time.monotonic()
    for batch in batches(steps, pace.batch_max):
        stop.wait(due_s)
        if stop.asked:
            break
        resolver.resolve(batch)
        due_s = time.monotonic() + pace.rest_s(len(batch))
        done += len(batch)
        tell(done)
    return done


@contextmanager
def alone(file: Path, name: str) -> Iterator[None]:
    """Refuses a second command at once where it can be seen; elsewhere the fence ends the first.

    The lock is on the configuration, which is there whoever runs the service or this command:
    nothing is made that could be in the service's way. Raises AlreadyRunning.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _locked(fd):
            raise AlreadyRunning(
                f"another command for the dead letters of {name} is running here: wait for it,"
                " or end it with Ctrl-C; then the same command again goes on"
            )
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
