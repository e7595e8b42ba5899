"""The calls of handlers, each with a span around it."""

from collections.abc import Callable

from kworker.core.bisection import PartOutcomes
from kworker.core.outcome import Outcome
from kworker.core.record import Record
from kworker.log.running import ThreadCall
from kworker.worker.handlers.batch_call import AsyncBatchCall, BatchCall, BatchPart
from kworker.worker.handlers.invocation import AsyncSteps, Invoke
from kworker.worker.handlers.signature import Batching
from kworker.worker.tracing.run_spans import RunSpans, note_failures


class TracedRuns:
    """Puts spans around the functions that pools call. See `Tracing`."""

    def __init__(self, spans: RunSpans, close: Callable[[], None]) -> None:
        """`close` sends the spans that are left, at the end of the process."""
        self._spans = spans
        self.close = close

    def invoke(self, invoke: Invoke) -> Invoke:
        spans = self._spans

        def run_traced(record: Record, began_ns: int, thread: ThreadCall) -> Outcome:
            with spans.of_run(record):
                return invoke(record, began_ns, thread)

        return run_traced

    def async_steps(self, steps: AsyncSteps) -> AsyncSteps:
        spans, invoke = self._spans, steps.in_one()

        async def run_traced(record: Record, began_ns: int) -> Outcome:
            with spans.of_run(record):
                return await invoke(record, began_ns)

        return AsyncSteps.of(run_traced)

    def batch_call(self, call: BatchCall) -> BatchCall:
        spans = self._spans

        def call_traced(batching: Batching, part: BatchPart) -> PartOutcomes:
            with spans.of_call(part) as span:
                ends = call(batching, part)
                note_failures(span, ends)
                return ends

        return call_traced

    def async_batch_call(self, call: AsyncBatchCall) -> AsyncBatchCall:
        spans = self._spans

        async def call_traced(batching: Batching, part: BatchPart) -> PartOutcomes:
            with spans.of_call(part) as span:
                ends = await call(batching, part)
                note_failures(span, ends)
                return ends

        return call_traced
