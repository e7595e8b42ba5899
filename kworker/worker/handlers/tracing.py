"""The interface by which pools put spans around the calls of handlers, if tracing is on."""

from typing import Protocol

from kworker.worker.handlers.batch_call import AsyncBatchCall, BatchCall
from kworker.worker.handlers.invocation import AsyncInvoke, Invoke


class Tracing(Protocol):
    """Puts spans around the runs of handlers.

    Each method but `close` wraps a function that runs handlers. A pool is made with the wrapped
    function.
    """

    def invoke(self, invoke: Invoke) -> Invoke: ...
    def async_invoke(self, invoke: AsyncInvoke) -> AsyncInvoke: ...
    def batch_call(self, call: BatchCall) -> BatchCall: ...
    def async_batch_call(self, call: AsyncBatchCall) -> AsyncBatchCall: ...
    def close(self) -> None: ...


class NoTracing:
    """Returns each function as it is, so that a run that is not traced costs nothing more."""

    def invoke(self, invoke: Invoke) -> Invoke:
        return invoke

    def async_invoke(self, invoke: AsyncInvoke) -> AsyncInvoke:
        return invoke

    def batch_call(self, call: BatchCall) -> BatchCall:
        return call

    def async_batch_call(self, call: AsyncBatchCall) -> AsyncBatchCall:
        return call

    def close(self) -> None:
        """Does nothing, because there are no spans to send."""


UNTRACED = NoTracing()
