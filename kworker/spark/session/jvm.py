"""The process of Spark's JVM: its state and its end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from kworker.config.model import SparkSettings
from kworker.errors import KworkerError
from kworker.host import oom_kills

STOP_TIMEOUT_S = 5.0
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # is set where spark-submit has started the JVM

CALL_FAILED = (PySparkException, Py4JError, OSError)
"""The errors of calls into the JVM: Spark's own, and the connection's."""

_HEAP_FULL = (3, 52)  # exit codes: Java's own, and Spark's
_oom_kills_before = oom_kills()


class JvmGone(KworkerError):
    """Raised when the JVM of a session has ended. Only a new process can start another session."""


class OutOfMemory(JvmGone):
    """Raised when the JVM ended because its heap was full, or the system had no memory left."""


def is_local(master: str) -> bool:
    """True if all of Spark runs in the one JVM of this process."""
    return master.startswith("local")


def has_own_jvm(spark: SparkSettings) -> bool:
    """True if Spark runs in a single JVM, which this process itself starts and ends."""
    return is_local(spark.master) and _SUBMITTED not in os.environ


def check_jvm() -> None:
    """Raises `JvmGone` if the JVM has ended; `OutOfMemory` if it ended for lack of memory."""
    jvm = jvm_process()
    if jvm is None or jvm.poll() is None:
        return
    if jvm.returncode in _HEAP_FULL:
        raise OutOfMemory(
            "Spark's JVM ran out of memory: raise spark.driver.memory in [spark.conf]"
        )
    if jvm.returncode == -signal.SIGKILL and oom_kills() > _oom_kills_before:
        raise OutOfMemory(
            "the system had no memory left for Spark's JVM and killed it: give the host or"
            " container more memory, or lower spark.driver.memory in [spark.conf]"
        )
    signal_or_exit_code = _how(jvm.returncode)
    raise JvmGone(
        f"Spark's JVM has ended ({signal_or_exit_code}), so the job ends; its"
        " supervisor starts it again"
    )


def await_jvm_end() -> None:
    """Gives the JVM a second to end after a failed call. Raises `JvmGone` if it has ended."""
    jvm = jvm_process()
    if jvm is not None:
        try:
            jvm.wait(1.0)
        except subprocess.TimeoutExpired:
            return
    check_jvm()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def has_live_jvm() -> bool:
    """True while the JVM that this process has started runs."""
    jvm = jvm_process()
    return jvm is not None and jvm.poll() is None


def end_jvm(may_wait: Callable[[float], bool]) -> bool:
    """Ends the JVM by closing its standard input; True if it exited with 0.

    The JVM is killed once `may_wait`, called with the seconds that have passed, returns False.
    """
    jvm = jvm_process()
    if jvm is None:
        return True
    began = time.monotonic()
    if may_wait(0.0) and jvm.stdin is not None:
        jvm.stdin.close()
    while jvm.poll() is None and may_wait(time.monotonic() - began):
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(0.1)
    if jvm.poll() is None:
        jvm.kill()
    return jvm.wait() == 0


def forget_ended_jvm() -> None:
    """Makes pyspark forget a JVM that has ended. Else the next session would be given that JVM."""
    jvm = jvm_process()
    if jvm is not None and jvm.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None


def jvm_process() -> "subprocess.Popen[bytes] | None":
    """The JVM that this process has started; None without one."""
    # The only place where pyspark keeps the process that it started.
    return getattr(SparkContext._gateway, "proc", None)
