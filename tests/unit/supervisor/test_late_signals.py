"""Signals that reach the supervisor while Python ends."""

import os
import signal
import subprocess
import sys

from kworker.supervisor.signals import HANDLED

CODE = 7
ENDS = f"""
import sys
from kworker.supervisor.signals import Signals

signals = Signals()
signals.install()
print("installed", flush=True)
sys.stdin.readline()
signals.ignore()
sys.exit({CODE})
"""
TIMES = 5  # each meets the moment in which Python has restored the default actions


def test_no_signal_replaces_the_exit_code_while_python_ends():
    """One Ctrl-C more than needed must not hide that a drain timed out."""
    ended = [
        _code_under(signum)
        for signum in HANDLED
        if signum not in (signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU)
        for _ in range(TIMES)
    ]
    assert set(ended) == {CODE}


def _code_under(signum: int) -> int:
    """The exit code of a process that is sent a signal again and again until it has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "installed\n"
        process.stdin.write("\n")
        process.stdin.close()
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(process.pid, signum)
    return process.returncode
