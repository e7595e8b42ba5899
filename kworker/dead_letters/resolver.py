"""Resolves dead letters in transactions, for one command of a service at a time.

If a command was interrupted, the same command, run again, goes on where it stopped.
"""

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
from kworker.dead_letters.resolutions import How, Resolution, resolution_record
from kworker.errors import AlreadyRunning, Unreachable

T = TypeVar("T")

_CHECK_S = 0.05  # between two checks in a wait


class ResolverTransactor(Protocol):
    """The methods of `KafkaTransactor`, and of its in-memory twin, that `Resolver` uses."""

    def open(self) -> None: ...
    def begin(self) -> None: ...
    def produce(self, output: Output) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Signature:
    """The values that one command writes into each resolution of a dead letter: `how` and `by`.

    Also holds the names of both topics, and the transactional id of the command's producer.
    """

    state_topic: str
    dead_topic: str
    how: How
    by: str  # user@host
    transactional_id: str  # of all such commands of the service


class Resolver:
    """Writes records and the resolutions of their dead letters together, all or nothing.

    Used by one thread. All commands that resolve dead letters of a service share one transactional
    id. So `open` fences a command that was started earlier: that command can commit no more. From
    then on only this command writes resolutions, until a later one fences it.
    """

    def __init__(self, transactor: ResolverTransactor, signature: Signature) -> None:
        self._transactor = transactor
        self._signature = signature

    def open(self) -> None:
        """Fences an earlier command, which can then commit no more, and aborts its transaction.

        Raises Unreachable if Kafka refuses temporarily; AlreadyRunning if it refuses for good,
        since another command or program has taken over the transactional id.
        """
        with self._errors_converted():
            self._transactor.open()

    def resolve(self, batch: Iterable[RepairStep]) -> None:
        """Writes the records of the batch, and their resolutions, in one transaction.

        Raises Unreachable if Kafka refuses temporarily; AlreadyRunning if it refuses for good,
        since another command or program has taken over the transactional id. After an error this
        resolver must not be used again. The topic `<name>.dead.state` shows if it was written.
        """
        now = now_ms()
        with self._errors_converted():
            self._transactor.begin()
            for step in batch:
                if step.output is not None:
                    self._transactor.produce(step.output)
                self._transactor.produce(self._resolution(step, now))
            self._transactor.commit()

    def _resolution(self, step: RepairStep, now: int) -> Output:
        signature = self._signature
        resolution = Resolution(signature.how, signature.by, now)
        return resolution_record(
            signature.state_topic, signature.dead_topic, step.identity, resolution
        )

    def close(self) -> None:
        """Aborts the open transaction, if there is one, without waiting for it."""
        self._transactor.close()

    @contextmanager
    def _errors_converted(self) -> Iterator[None]:
        try:
            yield
        except KafkaRequestError as error:
            raise self._failure(error) from None

    def _failure(self, error: KafkaRequestError) -> AlreadyRunning | Unreachable:
        again = "run the same command again to go on; nothing is done twice"
        if error.retriable:
            return Unreachable(f"Kafka refused the transaction ({error}); {again}")
        signature = self._signature
        return AlreadyRunning(
            f"another command has taken over the dead letters of {signature.dead_topic}, or"
            f" another program the transactional id {signature.transactional_id}; when it has"
            f" ended, {again}"
        )


class Interruption:
    """A person's request to stop after the transaction under way.

    The first signal sets the attribute `requested`. A second signal has its default effect.
    """

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Takes SIGINT and SIGTERM as requests to stop while the block runs."""
        before = {number: signal.signal(number, self._note) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, _ENDING[signal.Signals(number)])

    def until(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items until a stop is requested."""
        for item in items:
            if self.requested:
                return
            yield item

    def wait(self, until_s: float) -> None:
        """Waits until the monotonic time `until_s`, or until a stop is requested."""
        while not self.requested and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_CHECK_S, left_s))


_ENDING: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def resolve_all(
    steps: Iterable[RepairStep],
    resolver: Resolver,
    pace: RateLimit,
    stop: Interruption,
    report: Callable[[int], None],
) -> int:
    """Resolves the steps at this pace, until a stop is requested; returns the number resolved.

    After each transaction, calls `report` with the number resolved so far. Raises Unreachable if
    Kafka refuses a transaction temporarily, AlreadyRunning if it refuses a transaction for good.
    """
    done, due_s = 0, time.monotonic()
    for batch in batches(steps, pace.batch_max):
        stop.wait(due_s)
        if stop.requested:
            break
        resolver.resolve(batch)
        due_s = time.monotonic() + pace.rest_s(len(batch))
        done += len(batch)
        report(done)
    return done


@contextmanager
def exclusive(file: Path, name: str) -> Iterator[None]:
    """Keeps a second command of this service from running on this host.

    Raises AlreadyRunning if another command is running. The configuration file is locked: every
    command reads it, so no lock file is needed. This lock does not stop a second command on another
    host; that command fences the first one instead.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _locked(fd):
            raise AlreadyRunning(
                f"another command for the dead letters of {name} is running on this host:"
                " wait for it, or end it with Ctrl-C, and run this command again"
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
