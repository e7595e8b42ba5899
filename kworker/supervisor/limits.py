"""How long the supervisor waits for what; tests make the waits short."""

from dataclasses import dataclass, field

from kworker.core.restart import RestartPolicy
from kworker.core.wear import WearPolicy


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, all of them."""

    turn_s: float = 0.25  # the longest sleep of the loop
    gap_s: float = 5.0  # a turn that took longer means that the supervisor was stopped
    heartbeat_s: float = 60.0  # a poll thread that is silent for longer is stuck
    stalled_s: float = 60.0  # a pool that ends nothing for longer while no handler works is stuck
    boot_s: float = 300.0  # a slow import of a handler is no reason to kill it sooner
    dump_gap_s: float = 0.2  # between two processes that are asked for their stacks
    dump_s: float = 0.5  # a stuck worker has so long to write its stacks, until SIGTERM
    term_s: float = 2.0  # between that SIGTERM, in which others' records may end, and SIGABRT
    abort_s: float = 5.0  # between SIGABRT, which dumps stacks too, and SIGKILL
    drain_margin_s: float = 10.0  # over drain_timeout, in which workers leave the group and close
    left_grace_s: float = 0.3  # what a worker left may end by itself in so long
    left_term_s: float = 2.0  # between SIGTERM and SIGKILL for it
    quit_s: float = 2.0  # between SIGQUIT and SIGKILL
    check_every_s: float = 3.0  # between preflight checks while something is unreachable
    session_margin_s: float = 3.0  # over the session time-out, by which a dead member is gone
    check_s: float = 300.0  # a preflight check that takes longer is ended and tried again
    ready_s: float = 30.0  # systemd hears READY by then, joined or not
    status_every_s: float = 2.0  # at most so often does systemd hear a new STATUS
    progress_every_s: float = 0.5  # lines to `stop` and `restart`
    sample_every_s: float = 1.0  # of the counters, for rates
    rate_over_s: float = 5.0
    memory_every_s: float = 5.0
    unowned_s: float = 20.0  # a partition that no worker has for longer is told
    spark_stop_s: float = 15.0  # between SIGTERM and SIGKILL
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    wear: WearPolicy = field(default_factory=WearPolicy)
