"""Makes the pool and the encoder that the configuration and the handlers ask for."""

import time
from collections.abc import Callable

from kworker.config.model import Config, WorkersSettings
from kworker.instance.scoreboard import Slot
from kworker.worker.handlers.async_pool import AsyncPool
from kworker.worker.handlers.batch_pool import BatchPool, LoopRunners, ThreadRunners
from kworker.worker.handlers.batch_run import make_async_run_batch, make_run_batch
from kworker.worker.handlers.chunk_run import ChunkRun
from kworker.worker.handlers.invocation import make_async_steps, make_invoke
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.thread_pool import ThreadPool
from kworker.worker.handlers.tracing import UNTRACED, Tracing
from kworker.worker.topic_limits import TopicLimits

HandlerPool = ThreadPool | AsyncPool | BatchPool


def make_pool(
    config: Config,
    slot: Slot,
    handlers: Handlers,
    encoder: ResultEncoder,
    clock: Callable[[], float] = time.monotonic,
    tracing: Tracing = UNTRACED,
) -> HandlerPool:
    """Makes the pool that fits the handlers: threads, an event loop, or batches on either.

    `clock`, in seconds, measures how long a batch waits for more records. Handlers on an event loop
    must have been opened. `tracing` puts spans around the runs of handlers.
    """
    timeout_s, attempts = config.workers.handler_timeout, len(config.retry.delays) + 1
    made = (handlers, encoder, timeout_s, attempts)
    count = runs_at_once(config.workers, handlers)
    if handlers.batchings:
        hands = [slot.hand(i) for i in range(slot.hands)]
        runners = (
            LoopRunners(make_async_run_batch(*made, tracing), count, handlers.loop)
            if handlers.is_async
            else ThreadRunners(make_run_batch(*made, tracing), count)
        )
        return BatchPool(handlers, runners, hands, clock)
    hands = [slot.hand(i) for i in range(count)]
    if handlers.is_async:
        return AsyncPool(tracing.async_steps(make_async_steps(*made)), hands, handlers.loop)
    run_chunk = ChunkRun(*made) if tracing is UNTRACED else None
    return ThreadPool(tracing.invoke(make_invoke(*made)), hands, run_chunk)


def runs_at_once(workers: WorkersSettings, handlers: Handlers) -> int:
    """Returns the number of runs of handlers that may go on at the same time."""
    return workers.concurrency if handlers.is_async else workers.threads


def make_encoder(config: Config, limits: TopicLimits, replay: str = "") -> ResultEncoder:
    """Makes the encoder of handlers' results. `replay` is a replay's id, or empty."""
    return ResultEncoder(config.delivery.results, config.delivery.topics, limits, replay)
