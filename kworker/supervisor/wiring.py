"""The functions that a service is wired to, and its time limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kworker.config.model import Config
from kworker.supervisor.children import console_child, spark_job
from kworker.supervisor.children.fleet import ChildMain
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import Preflight


@dataclass(frozen=True, slots=True)
class Wiring:
    """The functions that a service calls; tests replace them.

    `worker_main` runs in each worker, `delay_main` in the delay process, `preflight` in a child
    before the first fork; `read_config` reads the configuration again, at a reload. `changed_files`
    is called in each turn with the monotonic time; if it names files, the service reloads.
    """

    worker_main: ChildMain
    delay_main: ChildMain
    preflight: Preflight
    read_config: Callable[[], Config]
    changed_files: Callable[[float], Sequence[str]] = lambda _: ()
    limits: Limits = field(default_factory=Limits)
    spark_command: Sequence[str] = spark_job.COMMAND
    console_command: Sequence[str] = console_child.COMMAND
