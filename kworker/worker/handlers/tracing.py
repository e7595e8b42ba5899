"""The interface by which pools put spans around the calls of handlers, if tracing is on."""

from typing import Protocol

from kworker.worker.handlers.batch_call import AsyncBatchCall, BatchCall
from kworker.worker.handlers.invocation import AsyncSteps, Invoke


class Tracing(Protocol):
    """Puts spans around the runs of handlers.

    Each method but `close` wraps a function, or steps, that run handlers. A pool is made with what
    is returned.
    """

    def invoke(self, invoke: Invoke) -> Invoke: ...
    def async_steps(self, steps: AsyncSteps) -> AsyncSteps: ...
    def batch_call(self, call: BatchCall) -> BatchCall: ...
    def async_batch_call(self, call: AsyncBatchCall) -> AsyncBatchCall: ...
    def close(self) -> None: ...


class NoTracing:
    """Returns all as it is, so that a run that is not traced costs nothing more."""

    def invoke(self, invoke: Invoke) -> Invoke:
        return invoke

    def async_steps(self, steps: AsyncSteps) -> AsyncSteps:
        return steps

    def batch_call(self, call: BatchCall) -> BatchCall:
        return call

    def async_batch_call(self, call: AsyncBatchCall) -> AsyncBatchCall:
        return call

    def close(self) -> None:
        """Does nothing, because there are no spans to send."""


UNTRACED = NoTracing()
