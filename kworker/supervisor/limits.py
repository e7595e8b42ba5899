"""The supervisor's time limits and intervals; tests make them short."""

from dataclasses import dataclass, field

from kworker.core.restart import RestartPolicy
from kworker.core.wear import WearPolicy


@dataclass(frozen=True, slots=True)
class Limits:
    """The supervisor's time limits and intervals in seconds, and its policies.

    `restart` is the policy after a process has died, `wear` the policy for workers over `memory`.
    """

    turn_s: float = 0.25  # the longest sleep of the loop
    gap_s: float = 5.0  # a turn that took longer means that the supervisor was stopped
    heartbeat_s: float = 60.0  # a poll thread that is silent for longer is stuck
    stalled_s: float = 60.0  # a pool that finishes nothing for longer with no handler running, too
    boot_s: float = 300.0  # until the first poll: the import of a handler may be slow
    dump_gap_s: float = 0.2  # between the stack dumps of two processes
    dump_s: float = 0.5  # between SIGUSR1 to a stuck worker, which dumps stacks, and SIGTERM
    term_s: float = 2.0  # between that SIGTERM, in which other records may finish, and SIGABRT
    abort_s: float = 5.0  # between SIGABRT, which dumps stacks too, and SIGKILL
    drain_margin_s: float = 10.0  # over drain_timeout, in which workers leave the group and close
    left_grace_s: float = 0.3  # in which processes that a worker left may end by themselves
    left_term_s: float = 2.0  # between SIGTERM and SIGKILL to them
    quit_s: float = 2.0  # between SIGQUIT and SIGKILL
    check_every_s: float = 3.0  # between preflight checks while something is unreachable
    session_margin_s: float = 3.0  # over the session time-out, after which a dead member is gone
    check_s: float = 300.0  # a preflight check that takes longer is killed and repeated
    ready_s: float = 30.0  # systemd receives READY by then, joined or not
    status_every_s: float = 2.0  # between two STATUS lines to systemd, at least
    progress_every_s: float = 0.5  # between progress lines to `stop`, `reload` and `restart`
    sample_every_s: float = 1.0  # between samples of the counters, for rates
    rate_over_s: float = 5.0  # the time that a rate is measured over
    memory_every_s: float = 5.0  # between checks of the workers' sizes
    unowned_s: float = 20.0  # a partition without an owner for longer is a problem
    spark_stop_s: float = 15.0  # between SIGTERM and SIGKILL
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    wear: WearPolicy = field(default_factory=WearPolicy)
