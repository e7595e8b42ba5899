"""Assembles the loop of the delay process from the configuration."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kworker.clock import now_ms
from kworker.config.model import Config
from kworker.config.topics import delay_ms
from kworker.delay.assignment import DelayAssignment, DelayConsumer
from kworker.delay.forwarder import Forwarder, ForwarderTransactor
from kworker.delay.loop import DelayLoop, DelayWatch
from kworker.delay.partitions import HoldPolicy
from kworker.delay.routes import Routes
from kworker.worker.publish.in_doubt import FencingJudge

_HOLD = HoldPolicy(records_max=10_000, bytes_max=32 << 20)


@dataclass(frozen=True, slots=True)
class DelayPlatform:
    """Clients and clocks of a delay loop: real ones, or the in-memory ones of `kworker.testing`.

    `goes_on` is called during waits: it writes the heartbeat, and returns False when the loop must
    end. `clock` returns monotonic seconds, `wall_ms` milliseconds since 1970.
    """

    consumer: Callable[[DelayAssignment], DelayConsumer]
    transactor: Callable[[], ForwarderTransactor]
    watch: DelayWatch
    fences: FencingJudge
    goes_on: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = now_ms


def make_delay_loop(config: Config, platform: DelayPlatform) -> tuple[DelayLoop, Forwarder]:
    """Makes a delay loop, and its forwarder, which the caller closes at the end."""
    forwarder = Forwarder(platform.transactor, platform.goes_on)
    assignment = DelayAssignment(
        platform.consumer,
        lambda topic: delay_ms(config, topic),
        _HOLD,
        forwarder.open,
        platform.goes_on,
    )
    delays = {config.retry_topic(delay): round(delay * 1000) for delay in config.retry.delays}
    routes = Routes(config.requeue_topic, config.dead_letter.topic, delays)
    loop = DelayLoop(
        assignment,
        forwarder,
        platform.watch,
        routes,
        platform.fences,
        platform.clock,
        platform.wall_ms,
    )
    return loop, forwarder
